"""Convert a checkpoint of CLAM, TransMIL or another program to a run folder for `smmil predict`; no code in it runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smmil.errors import ConfigError, DataError, check_choice
from smmil.foreign_weights import LAYOUTS
from smmil.foreign_weights.programs import PROGRAMS, Tensors, _Layout
from smmil.models import create_model
from smmil.runtime import versions
from smmil.weights import read_foreign_weights, read_weights, save_weights, tensors_digest

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")


def _read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Its tensors by dotted name, without what training frameworks put around them; weights only, never code."""
    path = Path(path)
    tensors = _flat(read_foreign_weights(path, _WRAPPERS))
    if not tensors:
        raise DataError(f"{path}: holds no named tensors; save the state_dict() of the model")
    tensors = {re.sub(r"(^|\.)module\.", r"\1", name): tensor for name, tensor in tensors.items()}
    if all(name.startswith("model.") for name in tensors):
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {name} holds NaN or Inf; the training it comes from has failed")
    return tensors


def _flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Tensor]:
    """Tensors of nested mappings; other entries (epoch, settings) are not weights."""
    flat: dict[str, Tensor] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, Tensor):
            flat[f"{prefix}{key}"] = value
    return flat


@dataclass(frozen=True)
class Imported:
    """A model of smmil with published weights.

    dropped  names that have no place here, as they are not trained or never used
    assumed  options that the checkpoint does not tell and nobody gave: as the program sets them
    """

    model: nn.Module
    shape: dict[str, Any]
    dropped: list[str]
    assumed: dict[str, Any]


def import_weights(path: str | Path, layout: str, options: Mapping[str, Any] | None = None) -> Imported:
    """The model of a published checkpoint, in eval mode; `options` are those that the checkpoint does not tell."""
    table = PROGRAMS[check_choice(layout, LAYOUTS, "layout")]
    given = dict(options or {})
    for name in given.keys() - table.open.keys():
        known = ", ".join(table.open) or "none is"
        raise ConfigError(f"{name}: not an option that a checkpoint of {table.title} leaves open; {known}")
    tensors, dropped = table.renamed(_read_checkpoint(path), str(path))
    try:
        made = table.shape({**dropped, **tensors})
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from None
    except KeyError as problem:
        lost = table.both_names(problem.args[0])
        raise DataError(f"{path}: not a whole checkpoint of {table.title}: {lost} is missing; save all of it") from None
    except (IndexError, ValueError):
        raise DataError(f"{path}: the weights do not have the shapes of {table.title}; was --from meant?") from None
    chosen = {**made.options, **table.open, **given}
    model = create_model(table.model, made.in_dim, made.n_classes, **chosen)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        problems = _misfits(table, tensors, model.state_dict()) or " ".join(str(problem).split())
        raise DataError(f"{path}: does not fit {table.title}: {problems}") from None
    shape: dict[str, Any] = {"name": table.model, "options": chosen, "in_dim": made.in_dim, "n_classes": made.n_classes}
    if table.link != "softmax":
        shape["link"] = table.link
        model.link = shape["link"]
    assumed = {name: value for name, value in table.open.items() if name not in given}
    return Imported(model.eval(), shape, list(dropped), assumed)


def _misfits(table: _Layout, given: Tensors, wanted: Tensors) -> str:
    """What is missing, superfluous or of another shape, by our names and theirs."""
    problems = [f"{table.both_names(name)} is missing" for name in wanted if name not in given]
    problems += [f"{table.both_names(name)} has no place" for name in given if name not in wanted]
    for name in sorted(set(given) & set(wanted)):
        sizes = [" x ".join(map(str, tensors[name].shape)) for tensors in (given, wanted)]
        if sizes[0] != sizes[1]:
            problems.append(f"{table.both_names(name)} is {sizes[0]}, expected {sizes[1]}")
    return "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")


def _is_same(target: Path, found: Imported) -> bool:
    tensors, facts = read_weights(target)
    return facts["model"] == found.shape and tensors_digest(tensors) == tensors_digest(found.model.state_dict())


def convert_weights(
    path: str | Path, layout: str, out: str | Path, options: Mapping[str, Any] | None = None
) -> Imported:
    """Write the imported model to `out`/checkpoints/best.safetensors, with where it came from."""
    found = import_weights(path, layout, options)
    target = Path(out) / "checkpoints" / "best.safetensors"
    if (Path(out) / "config.yaml").exists():
        raise DataError(f"{out}: is the folder of a training run; use another --out folder")
    if target.exists() and not _is_same(target, found):
        raise DataError(f"{out}: holds another converted model; use another --out folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = tensors_digest(_read_checkpoint(path))
    facts = {
        "model": found.shape,
        "features": {"encoder": None, "recipe": None},
        "selected_by": "imported",
        "epoch": None,
        "config": None,
        "split": None,
        "versions": versions(),
        "imported": {"layout": layout, "file": Path(path).name, "tensors": mark, "dropped": found.dropped},
    }
    save_weights(target, found.model.state_dict(), facts)
    return found
