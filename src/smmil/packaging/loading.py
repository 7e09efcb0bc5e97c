"""Load a package after checking its checksums, and predict with it from raw images or bags."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from smmil.data.covariates import Covariates
from smmil.data.manifest import Manifest
from smmil.encoders.table import is_outside
from smmil.errors import ConfigError, DataError, require_trust_code
from smmil.evaluate.calibration import Calibration
from smmil.evaluate.drift import DriftSummary
from smmil.files import read_json, read_text, write_text
from smmil.formats import find_reader
from smmil.packaging.facts import FORMAT
from smmil.predict.cases import ChosenCalibration, Origin, Predicted, predict_table
from smmil.predict.drift import DRIFT, read_drift
from smmil.predict.inference import TrainedModel, rebuilt
from smmil.prepare.pipeline import PreparePlan, plan, run
from smmil.prepare.recipe import SCANS, SOURCES, Recipe, load_recipe
from smmil.prepare.table import find_sources
from smmil.weights import read_weights

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([\w][\w.-]*)")


def _write_sums(folder: Path) -> None:
    """Write SHA256SUMS over all files of the folder."""
    names = sorted(path.name for path in folder.iterdir())
    write_text(folder / SUMS, "".join(f"{_sum(folder / name)}  {name}\n" for name in names))


def _check_sums(folder: Path, needed: Iterable[str], ours: Iterable[str]) -> None:
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
        lines = [line for line in read_text(path).splitlines() if line.strip()]
    except DataError as problem:
        if not path.exists():
            raise DataError(f"{path.parent}: no {SUMS} here; give a folder written by smmil package") from None
        raise DataError(f"{problem}; {_AGAIN}") from None
    found = [_LINE.fullmatch(line) for line in lines]
    wrong = [line for line, match in zip(lines, found, strict=True) if match is None]
    if wrong:
        raise DataError(f"{path}: got {wrong[0][:80]!r}, expected lines of sha256sum; {_AGAIN}")
    return {match[2]: match[1] for match in found if match is not None}


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NEEDED = ("config.json", "model.safetensors")
CALIBRATION = "calibration.json"
FILES = (*NEEDED, "README.md", "recipe.json", "model.onnx", CALIBRATION, DRIFT)


@dataclass(frozen=True)
class Package:
    """A model ready for use, its config.json, and the recipe from raw images to bags (None: not known)."""

    folder: Path
    trained: TrainedModel
    config: dict[str, Any]
    recipe: Recipe | None = None
    calibration: Calibration | None = None  # applied to every prediction unless another is given
    drift: DriftSummary | None = None  # the same

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
    _check_sums(folder, NEEDED, FILES)
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
    require_trust_code(config["model"]["name"], folder, trust_code)
    if encoder is not None and is_outside(encoder):
        require_trust_code(encoder, folder, trust_code)
    path = folder / "model.safetensors"
    tensors, _ = read_weights(path)
    trained = rebuilt(tensors, _facts(config), folder / "config.json", trust_code)
    if "covariates" in trained.facts:
        Covariates.from_facts(trained.facts["covariates"], str(folder / "config.json"))
    if trained.weights != config["weights"]:
        raise DataError(f"{path}: not the weights that config.json names; copy the package again")
    promise = Calibration.load(folder / CALIBRATION) if (folder / CALIBRATION).exists() else None
    drift = read_drift(folder / DRIFT) if (folder / DRIFT).exists() else None
    package = Package(folder, trained, config, recipe, promise, drift)
    _ = package.origin  # what is missing is noticed now
    return package


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    """The facts of the checkpoint the package was made from, as predictions need them."""
    hashes = config["training"]["hashes"]
    more = {k: v for k, v in config["model"].items() if k in ("link", "covariates")}
    return {
        "model": {key: config["model"][key] for key in ("name", "options", "in_dim", "n_classes")} | more,
        "features": {key: config["features"][key] for key in ("encoder", "recipe")},
        "epoch": config["training"]["epoch"],
        "config": hashes["config"],
        "split": hashes["split"],
        **{key: value for key, value in config["training"].items() if key in ("corrections", "bags", "covariates")},
        **{key: value for key, value in config.items() if key == "target"},
    }


def _recipe(folder: Path, features: dict[str, Any]) -> Recipe | None:
    path = folder / "recipe.json"
    if not path.exists():
        return None
    content = read_json(path, dict)
    try:
        recipe = load_recipe(None, content["settings"])
    except (ConfigError, LookupError, TypeError, AttributeError) as problem:
        raise DataError(f"{path}: not a recipe of this version ({problem}); copy the package again") from None
    if content["encoder"] != features["encoder"] or recipe.digest(content["encoder"]) != features["recipe"]:
        raise DataError(f"{path}: not the recipe the model was trained on; copy the package again")
    return recipe


PREPARED = "prepared"
_TAKES = {"slide": "slides", "ct": "CT scans", "points": "crops around points of slides"}
_TAKES |= {"mr": "MR scans", "stack": "scans as folders of pictures", "patches": "patch files (tables x.patches.csv)"}
_TABLES = (".csv", ".parquet")
_BAGS = (".h5", ".hdf5", ".pt")


@dataclass(frozen=True)
class Images:
    """How raw images are read, where they do not say it themselves.

    labels, points, mpp, weights  as for `smmil.prepare.plan`; workers: processes that prepare side by side
    """

    labels: str | Path | None = None
    points: str | Path | None = None
    mpp: float | None = None
    weights: str | Path | None = None
    workers: int | None = None

    def refuse_idle(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                raise ConfigError(f"--{name}: is for raw images, but these are bags; leave it out")


def predict_package(
    package: Package,
    sources: Sequence[str | Path],
    *,
    out: str | Path,
    images: Images | None = None,
    device: str = "auto",
    on_case: Callable[[Any], Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    calibration: ChosenCalibration | None = None,
    drift: DriftSummary | bool | None = None,
) -> Predicted:
    """One file per case in `out`, from slides, scans, folders of them, a manifest of bags, or bag files.

    Bags made from raw images are kept in out/prepared, so an interrupted call can simply be repeated; the predictions
    are those of preparing with the same recipe and predicting from the manifest, bit for bit.
    calibration  applied to every prediction; unless given, that of the package
    drift        summary that every case is compared with; unless given, that of the package; False: none
    """
    paths, images = [Path(source) for source in sources], images or Images()
    if calibration is None and package.calibration is not None:
        calibration = ChosenCalibration(package.calibration, where=str(package.folder / CALIBRATION))
    options: dict[str, Any] = {"out": out, "device": device, "progress": progress, "calibration": calibration}
    options["drift"] = (package.drift if drift in (None, True) else drift) or None
    table = _table_of_bags(paths)
    if table is not None:
        images.refuse_idle()
        table.for_target(package.trained.target_columns).check_table(training=False)
        return predict_table(package.trained, table, table.ids, package.origin, **options)
    executor = "serial" if images.workers in (None, 1) else "processes"
    todo = _preparation(package, paths, Path(out), images, device)
    done = run(todo, executor=executor, workers=images.workers, on_case=on_case)
    failed = {id_: reason for id_, _, reason in done.failures}
    if done.manifest is None:
        none = Predicted(failed=failed)
        none.write_failures(Path(out))
        return none
    table = Manifest.read(done.manifest)
    return predict_table(package.trained, table, table.ids, package.origin, failed=failed, **options)


def _table_of_bags(paths: Sequence[Path]) -> Manifest | None:
    """Manifest of the bags in a manifest file, or in files or folders of bags; None for raw images."""
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DataError(f"{missing[0]}: no such file or folder")
    tables = [path for path in paths if path.suffix.lower() in _TABLES]
    if tables and len(paths) > 1:
        raise ConfigError(f"{tables[0]}: a manifest stands alone; give it without other files")
    if tables:
        return Manifest.read(tables[0])
    files = {path: _bag_files(path) for path in paths}
    bags = [bag for found in files.values() for bag in found]
    if not bags:
        return None
    if not all(files.values()):
        other = next(path for path, found in files.items() if not found)
        raise ConfigError(f"{bags[0]} is a bag, but {other} is none; predict bags and images in two steps")
    rows = [{"id": bag.stem, "path": str(bag.absolute())} for bag in bags]
    return Manifest(pd.DataFrame(rows, dtype=str), Path(), "the bags")


def _bag_files(path: Path) -> list[Path]:
    """The bags in a file or folder, none if it holds raw images."""
    files = sorted(path.glob("*.h5")) if path.is_dir() else [path] if path.suffix.lower() in _BAGS else []
    for file in files:
        find_reader(file)  # an error that says what is expected, if it is none
    return files


def _preparation(package: Package, paths: list[Path], out: Path, images: Images, device: str) -> PreparePlan:
    """Plan of the preparation; refused when the encoder's weights are not those of training."""
    if package.recipe is None:
        raise ConfigError(
            f"{paths[0]}: this package cannot read raw images, since the recipe of its features is not part of it; "
            "give bags or a manifest of features from the same encoder"
        )
    _refuse_misfit(paths, package.recipe.kind, images.points, out / PREPARED)
    given = {key: value for key, value in vars(images).items() if key != "workers"}
    todo = plan(paths, out / PREPARED, package.recipe, device=device, **given)
    trained = package.config["features"]["encoder"]
    if todo.encoder != trained:
        raise ConfigError(
            f"encoder {package.recipe.encoder}: its weights here give {todo.encoder}, but the model was trained on "
            f"{trained}; give the file of those weights with --weights"
        )
    place, ours = out / PREPARED, {"encoder": todo.encoder, "settings": json.loads(json.dumps(todo.recipe.settings()))}
    stored = place / "recipe.json"
    if stored.exists() and any((place / "bags").rglob("*.h5")) and read_json(stored) != ours:
        raise ConfigError(f"{place}: holds images prepared for a package with another recipe; choose another --out")
    return todo


def _refuse_misfit(paths: list[Path], kind: str, points: str | Path | None, own: Path) -> None:
    """Refuse images or points of another kind than the package was trained on."""
    if kind == "points" and points is None:
        raise ConfigError(f"{paths[0]}: this package was trained on {_TAKES[kind]}; give their table with --points")
    if kind != "points" and points is not None:
        raise ConfigError(f"--points: this package was trained on {_TAKES[kind]}; leave the option out")
    found = find_sources(paths, skip=own, stacks=kind == "stack")
    if all(source.kind not in (None, *SOURCES[kind]) for source in found):
        other = "slides" if kind in SCANS else "scans"
        raise ConfigError(f"{paths[0]}: holds {other}, but this package was trained on {_TAKES[kind]}; give those")
