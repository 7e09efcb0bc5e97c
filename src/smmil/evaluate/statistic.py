"""Metrics by name, ready to be computed again and again with cases counted several times."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate import ranking
from smmil.evaluate.bags import BAG_METRICS, SPECIFICITIES, bag_metrics
from smmil.evaluate.detection import RATES, FrocCurve, marked_cases, usable
from smmil.evaluate.instances import (
    AT_A_THRESHOLD,
    INSTANCE_METRICS,
    POOLS,
    Known,
    bags_of_pool,
    case_of_row,
    energies,
    gather,
    instance_metrics,
    known_instances,
    pointing,
)
from smmil.evaluate.instances import NAMES as ENERGIES
from smmil.prediction import Prediction

_FEW_CASES = 500  # up to here a table of all pairs of cases is small
Metric = str | Callable[[Sequence[Prediction]], float]
METRIC_NAMES = (
    *(f"bag_{name}" for name in BAG_METRICS),
    *(f"inst_{name}" for name in INSTANCE_METRICS),
    *(f"energy_{name}" for name in ENERGIES),
    "froc",
)
_RANKED: dict[str, Callable[[ranking.OperatingPoints], float]] = {
    "auroc": ranking.roc_area,
    "auprc": ranking.average_precision,
    **{name: partial(ranking.sensitivity_at, specificity=level) for name, level in SPECIFICITIES.items()},
}
_COUNTED: dict[str, Callable[[ranking.Counts], float]] = {
    **AT_A_THRESHOLD,
    "accuracy": ranking.accuracy,
    "balanced_accuracy": ranking.balanced_accuracy,
}


class Statistic(NamedTuple):
    """A metric of fixed cases as a function of how often each case counts.

    name   its full name                          cases  the cases that take part, sorted by id
    value  whole numbers (one per case) -> number; all ones give the metric itself
    """

    name: str
    cases: list[Prediction]
    value: Callable[[np.ndarray], float]

    @property
    def estimate(self) -> float:
        """The metric of the cases as they are."""
        return self.value(np.ones(len(self.cases), dtype=np.int64))


class Settings(NamedTuple):
    """How a metric is to be taken: threshold (of bags 0.5 when None), pool and score column of instance metrics."""

    threshold: float | None = None
    pool: str = "all"
    column: int | None = None


def full_name(metric: str) -> str:
    """The name as in METRIC_NAMES: a bare name such as auroc means the bags, instance_ is another word for inst_."""
    name = f"bag_{metric}" if metric in BAG_METRICS else metric.replace("instance_", "inst_", 1)
    return check_choice(name, METRIC_NAMES, "metric")


def statistic(predictions: Sequence[Prediction], metric: Metric, settings: Settings = Settings()) -> Statistic:
    """The metric of the cases that can take part: labelled ones for bag_..., those with instance labels for inst_...

    metric  one of METRIC_NAMES, or a function of a list of predictions that returns a number (nan when undefined)
    """
    cases = sorted(predictions, key=lambda p: p.id)
    check_choice(settings.pool, POOLS, "pool")
    if not isinstance(metric, str):
        return Statistic(getattr(metric, "__name__", "metric"), cases, _repeated(cases, metric))
    name = full_name(metric)
    if name == "froc":
        return _of_lesions(cases, settings)
    part, key = name.split("_", 1)
    if part == "energy":
        cases = [p for p in cases if p.edges is not None]
        return Statistic(name, cases, _averaged([energies([p], settings.column)[key] for p in cases]))
    return (_of_bags if part == "bag" else _of_instances)(name, key, cases, settings)


def _of_bags(name: str, key: str, cases: list[Prediction], settings: Settings) -> Statistic:
    cases = [p for p in cases if p.y is not None]
    cut = 0.5 if settings.threshold is None else settings.threshold

    def whole(some: Sequence[Prediction]) -> float:
        return bag_metrics(some, cut)[key]

    if key in ("brier", "loss"):
        return Statistic(name, cases, _averaged([whole([p]) for p in cases]))
    if key == "ece" or any(len(p.probs) > 2 for p in cases):
        return Statistic(name, cases, _repeated(cases, whole))
    known = [Known(p.probs[-1:], np.array([p.y]) == 1) for p in cases]
    return Statistic(name, cases, _ranked(known, key) if key in _RANKED else _counted(known, key, cut))


def _of_instances(name: str, key: str, cases: list[Prediction], settings: Settings) -> Statistic:
    if key in AT_A_THRESHOLD and settings.threshold is None:
        raise ConfigError(f"{name}: no threshold given; choose one on validation cases (best_f1_threshold)")
    pairs = [(p, known_instances(p, settings.column)) for p in bags_of_pool(cases, settings.pool)]
    single = key == "pointing_game" or settings.pool == "per_bag"
    pairs = [(p, k) for p, k in pairs if (k.both_classes if single else len(k.truth))]
    cases, known = [p for p, _ in pairs], [k for _, k in pairs]
    if key == "pointing_game":
        return Statistic(name, cases, _averaged([pointing(k) for k in known]))
    if settings.pool == "per_bag":
        rows = [instance_metrics([p], settings.threshold, "per_bag", settings.column)[key] for p in cases]
        return Statistic(name, cases, _averaged(rows))
    if key in _RANKED:
        return Statistic(name, cases, _ranked(known, key))
    return Statistic(name, cases, _counted(known, key, settings.threshold or 0.0))


def _of_lesions(cases: list[Prediction], settings: Settings) -> Statistic:
    check_choice(settings.pool, ("all", "positive_bags"), "pool of froc (it counts alarms per bag already)")
    cases = [p for p in bags_of_pool(cases, settings.pool) if usable(p)]
    curve = FrocCurve([m for m in marked_cases(cases, settings.column) if m is not None])
    return Statistic("froc", cases, lambda weights: float(np.mean(curve.at(RATES, weights))))


def _ranked(known: Sequence[Known], key: str) -> Callable[[np.ndarray], float]:
    """A metric of all rows together that needs no threshold: sorted once, counted with weights."""
    if key == "auroc" and len(known) <= _FEW_CASES:
        return _from_pairs_of_cases(known)
    rows = gather(known)
    order = ranking.Ranking(rows.scores, rows.truth, ~rows.truth)
    case = case_of_row([len(k.truth) for k in known])[order.order]
    return lambda weights: _RANKED[key](order.points(weights[case]))


def _from_pairs_of_cases(known: Sequence[Known]) -> Callable[[np.ndarray], float]:
    """AUROC from a table of how often the positives of one case beat the negatives of another: fast for large cases."""
    positive = [k.scores[k.truth] for k in known]
    scores, case = np.concatenate([np.zeros(0), *positive]), case_of_row([len(p) for p in positive])
    wins = np.zeros((len(known), len(known)))
    for column, k in enumerate(known):
        beaten = ranking.count_below(scores, k.scores[~k.truth])
        wins[:, column] = np.bincount(case, weights=beaten, minlength=len(known))
    size = np.array([len(p) for p in positive])
    rest = np.array([len(k.truth) for k in known]) - size

    def value(weights: np.ndarray) -> float:
        return ranking.ratio(float(weights @ wins @ weights), float(weights @ size) * float(weights @ rest))

    return value


def _counted(known: Sequence[Known], key: str, threshold: float) -> Callable[[np.ndarray], float]:
    """A metric of the answers at a threshold: counted once per case, summed with weights."""
    table = np.array([ranking.count(k.scores >= threshold, k.truth) for k in known], dtype=np.int64).reshape(-1, 4)
    return lambda weights: float(_COUNTED[key](ranking.Counts(*(weights @ table).tolist())))


def _averaged(values: Sequence[float]) -> Callable[[np.ndarray], float]:
    """A mean over the cases where the metric is defined."""
    numbers = np.array(values, dtype=np.float64)
    there = ~np.isnan(numbers)

    def value(weights: np.ndarray) -> float:
        total = weights[there].sum()
        return float(weights[there] @ numbers[there] / total) if total else float("nan")

    return value


def _repeated(
    cases: list[Prediction], metric: Callable[[Sequence[Prediction]], float]
) -> Callable[[np.ndarray], float]:
    """Any function of predictions, called with each case repeated as often as it counts."""
    return lambda weights: float(metric([p for p, times in zip(cases, weights, strict=True) for _ in range(times)]))
