"""A metric over the test sets of rotating folds, each judged by a model of its own: comparisons within folds only.

Scores and probabilities of different models are not on one scale, so no case is ever compared with a case of another
fold. A fold gives sums, the sums of all folds are added, and the metric is read off the total. What is added:

AUROC               pairs of a positive and a negative of the same fold, and how many of them are in the right order:
                    the mean of the folds' AUROC weighted by their pairs
average precision, sensitivity at a specificity   positives, weighted mean of the folds' values: the mean over all
                    positives of the precision at their own rank in their own fold
metrics of counts   true and false positives and negatives, each at the threshold of its fold
means over cases    values of the cases, each judged by the model that was not trained on it
FROC                lesions: share of all lesions found where each fold has so many false alarms per bag
others              cases, weighted mean of the folds' values

None of these changes when the scores of one fold are stretched or shifted with their threshold (probabilities, loss,
Brier score and calibration error judge what the numbers say, and are not meant to be free of their scale).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smmil.evaluate import instances, ranking
from smmil.evaluate.bootstrap import Kinds, Settings, Statistic, Weighted, _bounds, statistic
from smmil.evaluate.instances import KnownInstances
from smmil.evaluate.metrics import METRICS, Metric, _full_name
from smmil.prediction import Prediction

Sums = Callable[[np.ndarray], np.ndarray]


class _FoldSums(NamedTuple):
    """The cases of one fold, what they add to the total as a function of how often each counts, and their kinds."""

    cases: list[Prediction]
    sums: Sums
    kinds: Kinds
    value: Weighted  # the metric of this fold alone
    counts: bool  # whether the sums are counts at a threshold


def pooled_statistic(
    folds: Sequence[Sequence[Prediction]], metric: str, settings: Sequence[Settings]
) -> tuple[Statistic, list[float]]:
    """A metric over all cases of all folds, compared within folds only, and the metric of every fold.

    Cases of the statistic stand fold by fold; every case must be in one fold only. settings: those of each fold.
    """
    found = METRICS[_full_name(metric)]
    parts = [_fold_sums(found, cases, one) for cases, one in zip(folds, settings, strict=True)]
    ends = np.cumsum([len(part.cases) for part in parts])[:-1]
    adds_counts = all(part.counts for part in parts)

    def value(weights: np.ndarray) -> float:
        total = np.sum([part.sums(own) for part, own in zip(parts, np.split(weights, ends), strict=True)], axis=0)
        if adds_counts:
            return float(found.function(ranking.Counts(*total.tolist())))
        return ranking._ratio(float(total[0]), float(total[1]))

    whole = [part.value(np.ones(len(part.cases), dtype=np.int64)) for part in parts]
    cases = [p for part in parts for p in part.cases]
    return Statistic(found.name, cases, value, _joined_kinds(parts), _bounds(found, cases)), whole


def _joined_kinds(parts: Sequence[_FoldSums]) -> Kinds:
    """Which cases are of each kind that some fold needs."""
    names = dict.fromkeys(name for part in parts for name in part.kinds)
    nothing = [np.zeros(len(part.cases), dtype=bool) for part in parts]
    columns = {name: [part.kinds.get(name, none) for part, none in zip(parts, nothing, strict=True)] for name in names}
    return {name: np.concatenate(column) for name, column in columns.items()}


def _adds_counts(metric: Metric, cases: Sequence[Prediction]) -> bool:
    """Whether a metric is one of counts at a threshold, of two classes."""
    return metric.basis == "counts" and metric.rows is None and not (
        metric.level == "bag" and any(len(p.probs) > 2 for p in cases)
    )  # fmt: skip


def _fold_sums(metric: Metric, predictions: Sequence[Prediction], settings: Settings) -> _FoldSums:
    whole = statistic(predictions, metric.name, settings)
    single = metric.per_case or metric.level == "energy" or (metric.level == "instance" and settings.pool == "per_bag")
    counts = not single and _adds_counts(metric, predictions)
    if single:
        sums = _sums_of_cases(whole)
    elif counts:
        sums = _sums_of_counts(metric, whole.cases, settings)
    else:
        sums = _weighted_sums(whole.value, _mass(metric, whole.cases, settings))
    return _FoldSums(whole.cases, sums, whole.kinds, whole.value, counts)


def _sums_of_cases(whole: Statistic) -> Sums:
    """Sum of the values of the cases, and how many have one."""
    values = np.array([whole.value(alone) for alone in np.eye(len(whole.cases), dtype=np.int64)], dtype=np.float64)
    there = ~np.isnan(values)
    table = np.stack([np.where(there, values, 0.0), there], axis=1).reshape(-1, 2)
    return lambda weights: weights @ table


def _sums_of_counts(metric: Metric, cases: Sequence[Prediction], settings: Settings) -> Sums:
    """True and false positives and negatives at the threshold of the fold."""
    if metric.level == "bag":
        cut = 0.5 if settings.threshold is None else settings.threshold
        known = [KnownInstances(p.probs[-1:], np.array([p.y]) == 1) for p in cases]
    else:
        cut = settings.threshold or 0.0
        known = [KnownInstances.of(p, settings.column) for p in cases]
    table = np.array([ranking.Counts.of(k.scores >= cut, k.truth) for k in known], dtype=np.int64).reshape(-1, 4)
    return lambda weights: weights @ table


def _weighted_sums(value: Weighted, mass: Weighted) -> Sums:
    """The value of a fold times its mass, and the mass; nothing where the fold has no value."""

    def sums(weights: np.ndarray) -> np.ndarray:
        found, heavy = value(weights), mass(weights)
        return np.zeros(2) if np.isnan(found) else np.array([found * heavy, heavy])

    return sums


def _mass(metric: Metric, cases: Sequence[Prediction], settings: Settings) -> Weighted:
    """How much of what a metric counts is in a fold: pairs, positives, lesions or cases."""
    if metric.level == "lesion":
        lesions = instances._FrocCurve(cases, settings.column).n_lesions
        return lambda weights: float(weights @ lesions)
    two_classes = metric.level == "instance" or all(len(p.probs) < 3 for p in cases)
    if metric.basis != "points" or metric.rows is not None or not two_classes:
        return lambda weights: float(weights.sum())
    if metric.level == "bag":
        truth = [np.array([p.y == 1]) for p in cases]
    else:
        truth = [KnownInstances.of(p, settings.column).truth for p in cases]
    positive, negative = (np.array([int((t == side).sum()) for t in truth], dtype=np.int64) for side in (True, False))
    if metric.function is not ranking.OperatingPoints.roc_area:
        return lambda weights: float(weights @ positive)
    return lambda weights: float(weights @ positive) * float(weights @ negative)
