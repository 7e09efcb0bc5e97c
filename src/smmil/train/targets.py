"""Training for targets that are no class: fitted on training cases, validated, completed for the selected weights."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from smmil.bag import Bag, BagBatch
from smmil.config import TargetConfig, TrainingConfig
from smmil.data.targets import TargetColumns, find_columns
from smmil.errors import ConfigError, DataError
from smmil.evaluate.ranking import OperatingPoints
from smmil.models import Output, own_target
from smmil.target import Target, fit_target

# Below this many bags a batch holds so few pairs of cases that Cox's partial likelihood hardly compares any.
_FEW_FOR_COX = 8


class _TargetBags(Protocol):
    """What is used of a BagDataset: the ids of its bags, and the table that knows target, patient and rows of each."""

    ids: tuple[str, ...]
    manifest: Any


def _memory_columns(config: TargetConfig, bags: Sequence[Bag]) -> TargetColumns | None:
    """The columns of bags in memory, checked as those of a manifest are; None for classes."""
    if config.kind == "class":
        for bag in (bag for bag in bags if bag.target is not None):
            raise ConfigError(f"smmil.fit: bag {bag.id} has a target; say its kind, such as target='survival'")
        return None
    rows = {bag.id: _memory_row(config.kind, bag) for bag in bags}
    width = {len(row) for row in rows.values() if row is not None} or {0}
    names = [f"label_{n}" for n in range(max(width))] if config.kind == "multilabel" else []
    found = find_columns(config, pd.DataFrame(columns=names), "smmil.fit")
    assert found is not None
    if width != {len(found.columns)}:
        raise DataError(f"smmil.fit: {config.kind} needs {len(found.columns)} numbers as target of every bag")
    nothing = (math.nan,) * len(found.columns)
    table = pd.DataFrame([row or nothing for row in rows.values()], columns=list(found.columns))
    for problem in found.problems(table.assign(id=list(rows)), training=True):
        raise DataError(f"smmil.fit: {problem}")
    return found


def _memory_row(kind: str, bag: Bag) -> tuple[float, ...] | None:
    """What is to be predicted of a bag in memory: its level, or its target."""
    if kind == "ordinal":
        return None if bag.y is None else (float(bag.y),)
    return None if bag.target is None else tuple(bag.target.tolist())


def _fit_run_target(config: TargetConfig, train_set: _TargetBags, val_set: _TargetBags) -> Target | None:
    """The target of a run, from its training cases; a patient whose bags say the same counts once. None: classes."""
    columns = train_set.manifest.target
    if columns is None:
        return None
    rows = _target_rows(train_set)
    groups = (train_set.manifest.groups[id_] for id_ in train_set.ids)
    once = list(dict.fromkeys(zip(groups, map(tuple, rows.tolist()), strict=True)))
    levels = 1 + int(max(rows[:, 0].max(), _target_rows(val_set)[:, 0].max())) if config.kind == "ordinal" else 0
    return fit_target(config, columns.columns, np.array([row for _, row in once]), levels)


def _target_rows(bags: _TargetBags) -> np.ndarray:
    """Rows (n, t) of all bags; one without is an error."""
    rows = [bags.manifest.targets[id_] for id_ in bags.ids]
    for id_, row in zip(bags.ids, rows, strict=True):
        if row is None:
            raise DataError(f"bag {id_!r} has no target; training needs one for every bag")
    return np.array(rows, dtype=np.float64)


def _give_target(model: nn.Module, target: Target | None) -> None:
    """Let a model know what it predicts; without a target it predicts classes, whatever it did before."""
    if target is not None:
        model.target = target  # type: ignore[assignment]
    elif own_target(model) is not None:
        del model.target


def _target_notes(model: nn.Module, target: Target | None, settings: TrainingConfig) -> Iterator[str]:
    """What a user should know before training, in words."""
    if target is None:
        return
    edges = [f"{edge:g}" for edge in target.stated().get("edges", ())]
    times = f"; times {', '.join(edges)}" if edges else ""
    named = ", ".join(target.columns)
    yield f"target of kind {target.kind}: {named}{times}; weights are selected by val {target.metric}"
    for term in getattr(model, "class_terms", ()):
        yield f"{type(model).__name__}: {term}, needs classes and is left out; the bag loss counts in full"
    if target.kind == "cox" and settings.batch_size < _FEW_FOR_COX:
        yield (
            f"note: Cox compares the cases of a batch; training.batch_size={settings.batch_size} gives it few pairs: "
            f"set it to {_FEW_FOR_COX} or more, or use target.kind=survival (accumulate does not help)"
        )


_Found = Iterable[tuple[BagBatch, Output]]


def _completed(target: Target, found: _Found) -> Target:
    """The target with what depends on the selected weights: Cox's baseline hazard, of the training cases found."""
    return target.with_baseline(*_judged(target, found)) if target.needs_baseline else target


def _validate_target(target: Target, found: _Found) -> dict[str, float]:
    """Metric of the target and its loss over all validation bags at once."""
    return _judgement(target, *_judged(target, found))


def _judgement(target: Target, logits: Tensor, known: Tensor) -> dict[str, float]:
    """Metric of the target and its loss, of logits (n, c) in double precision and what is known (n, t)."""
    probs, value = target.predicted(logits)
    scores = probs.numpy() if value is None else value.numpy()
    metric = _METRICS[target.metric](scores, known.numpy().astype(np.float64))
    return {target.metric: metric, "loss": float(target.loss(logits, known))}


def _judged(target: Target, found: _Found) -> tuple[Tensor, Tensor]:
    """Logits (n, c) in double precision and what is known (n, t) of all bags."""
    logits, known = [], []
    for batch, output in found:
        for name, row in zip(batch.ids, output.logits, strict=True):
            if not bool(torch.isfinite(row).all()):
                raise DataError(f"{name}: the model gives NaN or Inf for this bag; check its features: smmil inspect")
        logits.append(output.logits.double().cpu())
        known.append(target.known(batch).cpu())
    return torch.cat(logits), torch.cat(known)


def _macro_auroc(probs: np.ndarray, known: np.ndarray) -> float:
    """Mean AUROC of the labels that have both values among the known; nan where none has."""
    areas = []
    for scores, truth in zip(probs.T, known.T, strict=True):
        told = ~np.isnan(truth)
        if len(np.unique(truth[told])) == 2:
            areas.append(OperatingPoints.of(scores[told], truth[told] > 0).roc_area())
    return float(np.mean(areas)) if areas else math.nan


def _kappa(level: np.ndarray, known: np.ndarray) -> float:
    """Cohen's kappa with quadratic weights of the nearest level; nan where nothing could disagree."""
    answer, truth = np.rint(level), known[:, 0]
    chance = np.square(answer[:, None] - truth[None]).mean()
    return float(1 - np.square(answer - truth).mean() / chance) if chance else math.nan


def _spearman(value: np.ndarray, known: np.ndarray) -> float:
    """Rank correlation; nan where one side is constant."""
    from scipy.stats import rankdata

    a, b = rankdata(value), rankdata(known[:, 0])
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else math.nan


def _cindex(risk: np.ndarray, known: np.ndarray) -> float:
    """Harrell's C: share of the pairs, one with an event before the other's time, whose risks are in that order."""
    time, event = known[:, 0], known[:, 1] > 0
    later = (time[:, None] < time[None]) | ((time[:, None] == time[None]) & ~event[None])
    pairs = later & event[:, None]
    right = (risk[:, None] > risk[None]) + 0.5 * (risk[:, None] == risk[None])
    return float(right[pairs].mean()) if pairs.any() else math.nan


_METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "auroc": _macro_auroc,
    "kappa": _kappa,
    "spearman": _spearman,
    "cindex": _cindex,
}
