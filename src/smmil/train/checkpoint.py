"""Training checkpoints: model, optimiser and training state in one file."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smmil.errors import ConfigError, DataError
from smmil.weights import read_weights, save_weights

_MODEL, _OPTIMISER = "model/", "optimiser/"


@dataclass
class State:
    """How far training is. No random state: every step is seeded by its place in the run.

    epoch    epochs finished, so also the number of the running one      step  its batches already done
    sums     of the running epoch: loss parts times bags, and `bags`     history  one row per finished epoch
    best, lowest_loss  the row and weights digest of the epoch selected so far     ended  why training is over
    """

    epoch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    lowest_loss: dict[str, Any] | None = None
    ended: str | None = None

    def add_losses(self, parts: dict[str, Tensor], bags: int) -> None:
        """Add the mean losses of a batch to the sums of the running epoch."""
        for name, value in parts.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value.detach()) * bags
        self.sums["bags"] = self.sums.get("bags", 0) + bags


def save_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, identity: dict[str, Any]
) -> None:
    """Write everything needed to resume exactly from here."""
    tensors = {_MODEL + name: tensor for name, tensor in model.state_dict().items()}
    numbers: dict[str, Any] = {}
    for index, memory in optimiser.state_dict()["state"].items():
        for key, value in memory.items():
            target = tensors if isinstance(value, Tensor) else numbers
            target[f"{_OPTIMISER}{index}/{key}"] = value
    save_weights(path, tensors, {"state": asdict(state), "optimiser": numbers, "identity": identity})


def peek(path: Path) -> State:
    """Read the state in a checkpoint, without a model."""
    return _state(path, read_weights(path)[1])


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, identity: dict[str, Any]
) -> tuple[State, dict[str, Any]]:
    """Restore model and optimiser; returns the state and the identity under which it was saved.

    A checkpoint of another config or another split is refused.
    """
    tensors, note = read_weights(path)
    state, saved = _state(path, note), note["identity"]
    _refuse_other(path, saved, identity)
    try:
        model.load_state_dict({k.removeprefix(_MODEL): v for k, v in tensors.items() if k.startswith(_MODEL)})
    except RuntimeError as problem:
        raise DataError(f"{path}: weights do not fit the model ({' '.join(str(problem).split())})") from None
    _restore_optimiser(optimiser, {**tensors, **note["optimiser"]})
    return state, saved


def _state(path: Path, note: dict[str, Any]) -> State:
    try:
        return State(**note["state"])
    except (KeyError, TypeError):
        raise DataError(f"{path}: holds weights but no training state; use checkpoints/last.safetensors") from None


def _refuse_other(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    if saved["config"] != now["config"]:
        raise ConfigError(f"{path}: belongs to another config; use another --out folder")
    if saved["split"] != now["split"]:
        raise DataError(
            f"{path}: ids or labels of the training and validation bags have changed since this run began; "
            "restore the manifest or use another --out folder"
        )


def _restore_optimiser(optimiser: torch.optim.Optimizer, values: dict[str, Any]) -> None:
    memory: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith(_OPTIMISER):
            index, key = name.removeprefix(_OPTIMISER).split("/", 1)
            memory.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": memory, "param_groups": optimiser.state_dict()["param_groups"]})
