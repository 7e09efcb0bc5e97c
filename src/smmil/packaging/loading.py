"""Load a package, after every file was compared with its checksum."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from smmil.encoders.table import FREE_NAMES
from smmil.errors import ConfigError, DataError
from smmil.files import read_json, write_text
from smmil.packaging.facts import FORMAT
from smmil.predict import Origin, TrainedModel, rebuilt
from smmil.prepare import Recipe, load_recipe
from smmil.weights import read_weights

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([\w][\w.-]*)")


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS over all files of the folder."""
    names = sorted(path.name for path in folder.iterdir())
    write_text(folder / SUMS, "".join(f"{_sum(folder / name)}  {name}\n" for name in names))


def check_sums(folder: Path, needed: Iterable[str], ours: Iterable[str]) -> None:
    """An error unless every listed file is there and unchanged; of `ours`, none may be there without being listed."""
    listed = _listed(folder / SUMS)
    missing = [name for name in needed if name not in listed]
    unlisted = [name for name in ours if name not in listed and (folder / name).exists()]
    if missing or unlisted:
        raise DataError(f"{folder / SUMS}: does not list {(missing or unlisted)[0]}; {_AGAIN}")
    for name, wanted in listed.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder}: {name} is missing; {_AGAIN}")
        if _sum(folder / name) != wanted:
            raise DataError(f"{folder / name}: is not the file that was packaged (its checksum differs); {_AGAIN}")


_AGAIN = "copy the package again, or renew SHA256SUMS if you changed it on purpose"


def _listed(path: Path) -> dict[str, str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"{path.parent}: no {SUMS} here; give a folder written by smmil package") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path}: not readable as text ({problem}); {_AGAIN}") from None
    found = [_LINE.fullmatch(line) for line in lines]
    wrong = [line for line, match in zip(lines, found, strict=True) if match is None]
    if wrong:
        raise DataError(f"{path}: got {wrong[0][:80]!r}, expected lines of sha256sum; {_AGAIN}")
    return {match[2]: match[1] for match in found if match is not None}


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NEEDED = ("config.json", "model.safetensors")
FILES = (*NEEDED, "README.md", "recipe.json", "model.onnx")


@dataclass(frozen=True)
class Package:
    """A model ready for use, its config.json, and the recipe from raw images to bags (None: not known)."""

    folder: Path
    trained: TrainedModel
    config: dict[str, Any]
    recipe: Recipe | None = None

    @property
    def model(self) -> nn.Module:
        return self.trained.model

    @property
    def origin(self) -> Origin:
        training = self.config["training"]
        settings = training["settings"]
        threads, seed = settings.get("threads"), settings.get("seed")
        return Origin(training["checkpoint"], training["split"].get("fold"), seed, threads)


def load_package(folder: str | Path, *, trust_code: bool = False) -> Package:
    """The package in a folder written by `smmil package`; a file that was changed is refused.

    trust_code  a package may name a model or an encoder outside smmil (`module:name`), which means running that code
    """
    folder = Path(folder)
    check_sums(folder, NEEDED, FILES)
    config = read_json(folder / "config.json")
    try:
        return _load(folder, config, trust_code)
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise DataError(f"{folder / 'config.json'}: not that of a package of this version ({what})") from None


def _load(folder: Path, config: dict[str, Any], trust_code: bool) -> Package:
    if config["format"] != FORMAT:
        raise DataError(
            f"{folder}: written as format {config['format']}, but this version reads {FORMAT}; update smmil"
        )
    recipe = _recipe(folder, config["features"])
    encoder = None if recipe is None else recipe.encoder
    outside = [name for name in (config["model"]["name"], encoder) if name is not None and _is_outside(name)]
    if outside and not trust_code:
        raise ConfigError(f"{folder}: would run code outside smmil ({outside[0]}); give --trust-code if you know it")
    path = folder / "model.safetensors"
    tensors, _ = read_weights(path)
    trained = rebuilt(tensors, _facts(config), path)
    if trained.weights != config["weights"]:
        raise DataError(f"{path}: not the weights that config.json names; copy the package again")
    return Package(folder, trained, config, recipe)


def _is_outside(name: str) -> bool:
    return ":" in name and not name.startswith(FREE_NAMES)


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    """The facts of the checkpoint the package was made from, as predictions need them."""
    hashes = config["training"]["hashes"]
    return {
        "model": {key: config["model"][key] for key in ("name", "options", "in_dim", "n_classes")},
        "features": {key: config["features"][key] for key in ("encoder", "recipe")},
        "epoch": config["training"]["epoch"],
        "config": hashes["config"],
        "split": hashes["split"],
    }


def _recipe(folder: Path, features: dict[str, Any]) -> Recipe | None:
    path = folder / "recipe.json"
    if not path.exists():
        return None
    content = read_json(path)
    recipe = load_recipe(None, content["settings"])
    if content["encoder"] != features["encoder"] or recipe.digest(content["encoder"]) != features["recipe"]:
        raise DataError(f"{path}: not the recipe the model was trained on; copy the package again")
    return recipe
