"""From a published checkpoint to a folder that `smmil predict` takes."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from smmil.errors import DataError, check_choice
from smmil.models import create_model
from smmil.published.checkpoint import read_checkpoint
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
    except (KeyError, StopIteration, IndexError, ValueError) as problem:
        raise DataError(f"{path}: not a whole checkpoint of {table.title}: {problem} is missing") from None
    model = create_model(table.model, made.in_dim, made.n_classes, **made.options)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        raise DataError(f"{path}: does not fit {table.title}: {' '.join(str(problem).split())}") from None
    shape = {"name": table.model, "options": made.options, "in_dim": made.in_dim, "n_classes": made.n_classes}
    return Imported(model.eval(), shape, dropped)


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
