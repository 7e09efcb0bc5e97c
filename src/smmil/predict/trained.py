"""A trained model, read back from the folder of its run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smmil.config import TrainConfig, load_config
from smmil.errors import DataError, check_choice
from smmil.models import create_model
from smmil.weights import read_weights, tensors_digest

CHECKPOINTS = ("best", "lowest_loss")


@dataclass(frozen=True)
class TrainedModel:
    """A model read back from a run, with the facts it was saved with."""

    model: nn.Module
    facts: dict[str, Any]
    weights: str


def load_run(run_dir: str | Path, checkpoint: str = "best") -> tuple[nn.Module, TrainConfig]:
    """The trained model of a run, ready for use, and the settings it was trained with."""
    return load_trained(run_dir, checkpoint).model, load_config(Path(run_dir) / "config.yaml")


def load_trained(run_dir: str | Path, checkpoint: str = "best") -> TrainedModel:
    """The model of a run together with what is known about its training."""
    check_choice(checkpoint, CHECKPOINTS, "checkpoint")
    path = Path(run_dir) / "checkpoints" / f"{checkpoint}.safetensors"
    if not path.exists():
        raise DataError(
            f"{run_dir}: no checkpoints/{checkpoint}.safetensors here; give the --out folder of smmil train"
        )
    tensors, facts = read_weights(path)
    return rebuilt(tensors, facts, path)


def rebuilt(tensors: Mapping[str, Tensor], facts: dict[str, Any], path: Path) -> TrainedModel:
    """The model that `facts` describe, with these weights in it, ready for use."""
    made = facts["model"]
    model = create_model(made["name"], made["in_dim"], made["n_classes"], **made["options"])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as problem:
        raise DataError(f"{path}: weights do not fit the model ({' '.join(str(problem).split())})") from None
    return TrainedModel(model.eval(), facts, tensors_digest(tensors))
