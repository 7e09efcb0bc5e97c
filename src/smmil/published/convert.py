"""From a published checkpoint to a folder that `smmil predict` takes."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from smmil.errors import DataError, check_choice
from smmil.models import create_model
from smmil.published.checkpoint import read_checkpoint
from smmil.published.layout import Layout, Tensors
from smmil.published.names import LAYOUTS
from smmil.runtime import versions
from smmil.weights import read_weights, save_weights, tensors_digest


@dataclass(frozen=True)
class Imported:
    """A model of ours with somebody else's weights; `dropped` are names the published program stores and never uses."""

    model: nn.Module
    shape: dict[str, Any]
    dropped: list[str]


def import_weights(path: str | Path, layout: str) -> Imported:
    """The model of a published checkpoint, in eval mode."""
    table = import_module(f"smmil.published.{check_choice(layout, LAYOUTS, 'layout')}").LAYOUT
    tensors, dropped = table.renamed(read_checkpoint(path), str(path))
    try:
        made = table.shape(tensors)
    except KeyError as problem:
        lost = table.both_names(problem.args[0])
        raise DataError(f"{path}: not a whole checkpoint of {table.title}: {lost} is missing; save all of it") from None
    except (IndexError, ValueError):
        raise DataError(f"{path}: the weights do not have the shapes of {table.title}; was --from meant?") from None
    model = create_model(table.model, made.in_dim, made.n_classes, **made.options)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        told = _misfits(table, tensors, model.state_dict()) or " ".join(str(problem).split())
        raise DataError(f"{path}: does not fit {table.title}: {told}") from None
    shape = {"name": table.model, "options": made.options, "in_dim": made.in_dim, "n_classes": made.n_classes}
    return Imported(model.eval(), shape, dropped)


def _misfits(table: Layout, given: Tensors, wanted: Tensors) -> str:
    """What is missing, superfluous or of another shape, by our names and theirs."""
    told = [f"{table.both_names(name)} is missing" for name in wanted if name not in given]
    told += [f"{table.both_names(name)} has no place" for name in given if name not in wanted]
    for name in sorted(set(given) & set(wanted)):
        sizes = [" x ".join(map(str, tensors[name].shape)) for tensors in (given, wanted)]
        if sizes[0] != sizes[1]:
            told.append(f"{table.both_names(name)} is {sizes[0]}, expected {sizes[1]}")
    return "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")


def convert_weights(path: str | Path, layout: str, out: str | Path) -> Imported:
    """Write the imported model to `out`/checkpoints/best.safetensors, with where it came from."""
    found = import_weights(path, layout)
    target = Path(out) / "checkpoints" / "best.safetensors"
    if (Path(out) / "config.yaml").exists():
        raise DataError(f"{out}: is the folder of a training run; use another --out folder")
    if target.exists() and tensors_digest(read_weights(target)[0]) != tensors_digest(found.model.state_dict()):
        raise DataError(f"{out}: holds another converted model; use another --out folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "model": found.shape,
        "features": {"encoder": None, "recipe": None},
        "selected_by": "imported",
        "epoch": None,
        "config": None,
        "split": None,
        "versions": versions(),
        "imported": {
            "layout": layout,
            "file": Path(path).name,
            "tensors": _fingerprint(path),
            "dropped": found.dropped,
        },
    }
    save_weights(target, found.model.state_dict(), facts)
    return found


def _fingerprint(path: str | Path) -> str:
    return tensors_digest(read_checkpoint(path))
