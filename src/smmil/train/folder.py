"""The folder of a run: settings, split, logs and checkpoints, each file complete at any moment."""

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from smmil.config import TrainConfig, load_config
from smmil.errors import ConfigError, DataError
from smmil.files import read_json, read_text, remove_leftovers, write_json, write_text
from smmil.weights import read_weights, save_weights, tensors_digest

_MODEL, _LOSS, _OPTIMISER = "model/", "loss/", "optimiser/"
_SELECTED = {"epoch": int, "loss": float, "weights": str}


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


def selection_metric(row: dict[str, Any]) -> str:
    """The metric in the row of a selected epoch: auroc, or that of another target."""
    return next((key for key in row if key not in _SELECTED), "auroc")


def _save_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    state: State,
    identity: dict[str, Any],
    loss: nn.Module | None = None,
) -> None:
    """Write everything needed to resume exactly from here; loss: one that learns along with the model."""
    learning = _learning(model, loss).items()
    tensors = {key + name: tensor for key, module in learning for name, tensor in module.state_dict().items()}
    numbers: dict[str, Any] = {}
    for index, memory in optimiser.state_dict()["state"].items():
        for key, value in memory.items():
            target = tensors if isinstance(value, Tensor) else numbers
            target[f"{_OPTIMISER}{index}/{key}"] = value
    save_weights(path, tensors, {"state": asdict(state), "optimiser": numbers, "identity": identity})


def _learning(model: nn.Module, loss: nn.Module | None) -> dict[str, nn.Module]:
    """What learns, by the prefix of its tensors."""
    return {_MODEL: model} if loss is None else {_MODEL: model, _LOSS: loss}


def _read_state(path: Path) -> State:
    """Read the state in a checkpoint, without a model."""
    return _state(path, read_weights(path)[1])


def _load_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    identity: dict[str, Any],
    loss: nn.Module | None = None,
) -> tuple[State, dict[str, Any]]:
    """Restore model, optimiser and loss; returns the state and the identity under which it was saved.

    A checkpoint of another config or another split is refused.
    """
    tensors, note = read_weights(path)
    state = _state(path, note)
    try:
        saved = note["identity"]
        _refuse_other(path, saved, identity)
        for key, module in _learning(model, loss).items():
            module.load_state_dict({k.removeprefix(key): v for k, v in tensors.items() if k.startswith(key)})
        _restore_optimiser(optimiser, {**tensors, **note["optimiser"]})
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
        raise DataError(f"{path}: weights do not fit the model, or their note is damaged ({reason})") from None
    return state, saved


def _state(path: Path, note: dict[str, Any]) -> State:
    try:
        state = TypeAdapter(State).validate_python(note["state"])
        for chosen in (state.best or {}, state.lowest_loss or {}):
            wanted = {**_SELECTED, selection_metric(chosen): float} if chosen else {}
            if not all(isinstance(chosen[key], kind) for key, kind in wanted.items()):
                raise TypeError("best")
        if state.step and not state.sums.get("bags"):
            raise KeyError("bags")
        return state
    except (ValidationError, KeyError, TypeError):
        raise DataError(f"{path}: holds weights but no training state; use checkpoints/last.safetensors") from None


def _refuse_other(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    if saved["config"] != now["config"]:
        raise ConfigError(f"{path}: belongs to another config; use another --out folder")
    if saved["split"] != now["split"]:
        raise DataError(
            f"{path}: ids or labels of the training and validation bags have changed since this run began, or the "
            "corrections have; restore the manifest and the marks or use another --out folder"
        )


def _restore_optimiser(optimiser: torch.optim.Optimizer, values: dict[str, Any]) -> None:
    memory: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith(_OPTIMISER):
            index, key = name.removeprefix(_OPTIMISER).split("/", 1)
            memory.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({"state": memory, "param_groups": optimiser.state_dict()["param_groups"]})


_WRITTEN = ("split.json", "metrics.csv", "run.json", "timing.csv")


@dataclass(frozen=True)
class RunFolder:
    """Files of a run: their names, and when they may be written."""

    path: Path

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.path / "checkpoints" / "last.safetensors"

    def weights(self, name: str) -> Path:
        """Weight file of a selection: best or lowest_loss."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def refuse_other(self, config: TrainConfig) -> None:
        """Raise an error that names the keys if this is the folder of another config."""
        stored = self.path / "config.yaml"
        if not stored.exists() and self.last.exists():
            raise DataError(f"{self.path}: has checkpoints but no config.yaml; restore it or use another --out folder")
        if not stored.exists() and self.weights("best").exists():
            raise DataError(f"{self.path}: holds a model that was not trained here; use another --out folder")
        if not stored.exists() and (foreign := self._foreign_files()):
            raise DataError(f"{self.path}: holds {foreign[0]}, which no run of smmil wrote; use another --out folder")
        there = load_config(stored, trust_code=True) if stored.exists() else config  # compared only
        differing = there.differing_keys(config)
        if differing:
            raise ConfigError(f"{self.path}: holds another run: {', '.join(differing)}; use another --out folder")

    def _foreign_files(self) -> list[str]:
        """Files that a run would overwrite, in a folder without config.yaml (which a run writes before them)."""
        return [name for name in _WRITTEN if (self.path / name).exists()]

    def bind(self, config: TrainConfig, split: dict[str, list[str]]) -> None:
        """Make this the folder of `config`; called after all checks, so that a wrong call leaves no folder."""
        for folder in (self.path, self.path / "checkpoints"):
            folder.mkdir(parents=True, exist_ok=True)
        if not (self.path / "config.yaml").exists():
            write_text(self.path / "config.yaml", config.to_yaml())
        write_json(self.path / "split.json", split)

    def finished(self) -> State | None:
        """The final state if this run is over and its selected weights read back well, else None."""
        for folder in (self.path, self.last.parent):
            remove_leftovers(folder)
        if not self.last.exists():
            return None
        try:
            state = _read_state(self.last)
        except DataError as problem:
            raise DataError(f"{problem}; restore it, or move it away to restart this run") from None
        if state.ended is None:
            return None
        for name, chosen in (("best", state.best), ("lowest_loss", state.lowest_loss)):
            if chosen is None or tensors_digest(read_weights(self.weights(name))[0]) != chosen["weights"]:
                raise DataError(
                    f"{self.weights(name)}: not the weights this run selected; train again in another folder"
                )
        return state

    def write_metrics(self, history: list[dict[str, Any]]) -> None:
        """Write metrics.csv from the history: the same bytes however often the run was interrupted."""
        write_text(self.path / "metrics.csv", table_text(history))

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Write run.json: model, data, versions and status of the run."""
        write_json(self.path / "run.json", json.loads(json.dumps(facts), parse_constant=lambda _: None))

    def mark_finished(self, state: State) -> None:
        """Complete run.json of a run that was killed between its last checkpoint and this file."""
        facts = read_json(self.path / "run.json", dict)
        if facts.get("status") != "finished":
            self.write_facts({**facts, **_outcome(state, "finished")})

    def add_timing(self, epoch: int, seconds: float) -> None:
        """Add a line to timing.csv, the only file with clock times, so the only one that differs between equal runs."""
        path = self.path / "timing.csv"
        before = read_text(path) if path.exists() else "epoch,seconds\n"
        write_text(path, f"{before}{epoch},{seconds:.3f}\n")


def _outcome(state: State, status: str) -> dict[str, Any]:
    """Status and selected epochs of a run, for run.json."""
    return {"status": status, "ended": state.ended, "best": state.best, "lowest_loss": state.lowest_loss}


def table_text(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as CSV; columns in order of first appearance, numbers with all their digits."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
