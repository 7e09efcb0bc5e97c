"""Bootstrap intervals of metrics: each metric as a function of how often every case counts."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate import instances, ranking
from smmil.evaluate.bags import is_labelled, labelled_table, shared_target, whole_bags, whole_patients
from smmil.evaluate.instances import POOLS, KnownInstances, bags_of_pool, instance_score
from smmil.evaluate.metrics import (
    METRICS,
    USUAL,
    Metric,
    PooledMetric,
    _bag_values,
    _full_name,
    _refuse_other_target,
    _ScoredLabels,
    _values_of_cases,
    registered,
    usual_measures,
)
from smmil.evaluate.resampling import RESAMPLES, _resampled, carriers_of
from smmil.evaluate.targets import TargetTable, _judged_labels, of_label
from smmil.prediction import TARGETS, Prediction

_FEW_CASES = 500  # up to here a table of all pairs of cases is small
MetricOrFunction = str | Callable[[Sequence[Prediction]], float]
Models = Mapping[str, Sequence[Prediction]]
Results = dict[str, dict[str, Any]]
Weighted = Callable[[np.ndarray], float]
Kinds = dict[str, np.ndarray]  # of cases that a metric needs, such as "positive {units}": which cases are of it
Judged = tuple[list[Prediction], Weighted, Kinds]


class Statistic(NamedTuple):
    """A metric of fixed cases as a function of how often each case counts."""

    name: str  # its full name
    cases: list[Prediction]  # those that take part, sorted by id
    value: Weighted  # whole numbers, one per case -> number; all ones give the metric itself
    kinds: Kinds  # a mean over cases needs none
    bounds: tuple[float, float] = (-math.inf, math.inf)  # lowest and highest value there can be

    @property
    def estimate(self) -> float:
        """The metric of the cases as they are."""
        return self.value(np.ones(len(self.cases), dtype=np.int64))


class Settings(NamedTuple):
    """Threshold of a metric (of bags 0.5 when None), pool and score column of instance metrics."""

    threshold: float | None = None
    pool: str = "all"
    column: int | None = None


def statistic(
    predictions: Sequence[Prediction], metric: MetricOrFunction, settings: Settings = Settings()
) -> Statistic:
    """The metric, a name or a function of predictions (nan where undefined), of the cases with labels for it."""
    check_choice(settings.pool, POOLS, "pool")
    if not isinstance(metric, str):
        cases = sorted(whole_bags(predictions), key=lambda p: p.id)
        return Statistic(getattr(metric, "__name__", "metric"), cases, _repeated(cases, metric), {})
    name, _, label = _full_name(metric).partition(":")
    found, whose = METRICS[name], f" of {label}" if label else ""
    cases = sorted((whole_patients if found.level == "bag" else whole_bags)(predictions), key=lambda p: p.id)
    cases = of_label(cases, label) if label else cases
    by_level = {"bag": _of_bags, "instance": _of_instances, "energy": _of_energies, "lesion": _of_lesions}
    used, value, kinds = by_level[found.level](found, cases, settings)
    named = {f"{kind}{whose}": is_it for kind, is_it in kinds.items()}
    return Statistic(_full_name(metric), used, value, named, _bounds(found, used))


def _bounds(metric: Metric, cases: Sequence[Prediction]) -> tuple[float, float]:
    """Lowest and highest value that a metric of these cases can have."""
    many = metric.level == "bag" and any(len(p.probs) > 2 for p in cases)
    return metric.many_class_bounds if many and metric.many_class_bounds is not None else metric.bounds


def _classes(cases: list[Prediction]) -> Kinds:
    """Cases of every class."""
    labels = np.array([p.y for p in cases], dtype=np.int64)
    names = {0: "negative {units}", 1: "positive {units}"} if labels.max(initial=1) < 2 else {}
    return {names.get(c, f"{{units}} of class {c}"): labels == c for c in sorted({0, 1, *labels.tolist()})}


def _sides(known: Sequence[KnownInstances]) -> Kinds:
    """Cases with positive and with negative instances."""
    sides = {"positive": True, "negative": False}
    return {
        f"{{units}} with {name} instances": np.array([bool((k.truth == side).any()) for k in known], dtype=bool)
        for name, side in sides.items()
    }


def _of_bags(metric: Metric, cases: list[Prediction], settings: Settings) -> Judged:
    if cases:
        _refuse_other_target(metric, shared_target(cases))
    cases = [p for p in cases if is_labelled(p)]
    cut = 0.5 if settings.threshold is None else settings.threshold
    if metric.basis == "target" or (metric.basis == "predictions" and shared_target(cases) != "class"):
        table, repeated = TargetTable(cases), _repeated(cases, metric.function)
        weighted = repeated if metric.basis == "predictions" else partial(metric.function, table)
        return cases, lambda weights: float(weighted(weights)), table.kinds
    if shared_target(cases) == "multilabel":
        return _of_labels(metric, cases, settings)
    if metric.basis == "predictions":
        return cases, _repeated(cases, metric.function), _classes(cases)
    probs, y = labelled_table(cases)

    def value(rows: np.ndarray) -> float:
        return _bag_values([metric], probs[rows], y[rows], cut)[metric.key]

    order = np.arange(len(cases))
    if metric.per_case:
        return cases, _averaged(_values_of_cases(metric, probs, y)), {}
    if metric.basis == "arrays" or probs.shape[1] > 2:
        return cases, lambda weights: value(np.repeat(order, weights)), _classes(cases)
    known = [KnownInstances(p.probs[-1:], np.array([p.y]) == 1) for p in cases]
    weighted = _ranked(known, metric) if metric.basis == "points" else _counted(known, metric, cut)
    return cases, weighted, _classes(cases)


def _of_labels(metric: Metric, cases: list[Prediction], settings: Settings) -> Judged:
    """The mean over the labels with both classes; every one of them has to be carried by enough patients."""
    parts: list[tuple[np.ndarray, Weighted]] = []
    kinds: Kinds = {}
    for name in _judged_labels(cases):
        alone, (_, value, sides) = of_label(cases, name), _of_bags(metric, of_label(cases, name), settings)
        known = np.array([p.y is not None for p in alone], dtype=bool)
        parts.append((known, value))
        for side, is_it in sides.items():
            kinds[f"{side} of {name}"] = np.zeros(len(cases), dtype=bool)
            kinds[f"{side} of {name}"][known] = is_it

    def mean(weights: np.ndarray) -> float:
        return ranking.exact_mean(ranking._defined(value(weights[known]) for known, value in parts))

    return cases, mean, kinds


def _of_instances(metric: Metric, cases: list[Prediction], settings: Settings) -> Judged:
    cut = settings.threshold
    if metric.needs_threshold and cut is None:
        raise ConfigError(f"{metric.name}: no threshold given; choose one on validation cases (best_f1_threshold)")
    pairs = [(p, KnownInstances.of(p, settings.column)) for p in bags_of_pool(cases, settings.pool)]
    single = metric.per_case or settings.pool == "per_bag"
    pairs = [(p, k) for p, k in pairs if (k.both_classes if single else len(k.truth))]
    if metric.rows is not None:
        rows = ((p, metric.rows(p, k, cut, settings.column)) for p, k in pairs)
        pairs = [(p, own) for p, own in rows if own is not None]
    cases, known = [p for p, _ in pairs], [k for _, k in pairs]
    if metric.basis == "predictions":
        each = _averaged([metric.function([p]) for p in cases]) if single else _repeated(cases, metric.function)
        return cases, each, {} if single else _sides(known)
    if single:
        return cases, _averaged([_ScoredLabels(k.scores, k.truth, cut).value(metric) for k in known]), {}
    if metric.basis == "arrays":
        return cases, _concatenated(known, metric), _sides(known)
    weighted = _ranked(known, metric) if metric.basis == "points" else _counted(known, metric, cut or 0.0)
    return cases, weighted, _sides(known)


def _of_energies(metric: Metric, cases: list[Prediction], settings: Settings) -> Judged:
    graphs = [(p, p.edges, instance_score(p, settings.column)) for p in cases if p.edges is not None]
    values = [metric.function(f, instances._undirected_pairs(edges, len(f))) for _, edges, f in graphs]
    return [p for p, _, _ in graphs], _averaged(values), {}


def _of_lesions(metric: Metric, cases: list[Prediction], settings: Settings) -> Judged:
    check_choice(settings.pool, ("all", "positive_bags"), "pool of froc (it counts alarms per bag already)")
    cases = [p for p in bags_of_pool(cases, settings.pool) if instances.has_lesion_labels(p)]
    curve = instances._FrocCurve(cases, settings.column)
    positive = np.array([bool((p.y_inst > 0).any()) for p in cases if p.y_inst is not None], dtype=bool)
    return cases, lambda weights: curve.value(metric.function, weights), {"{units} with lesions": positive}


def _concatenated(known: Sequence[KnownInstances], metric: Metric) -> Weighted:
    """A function of all rows together, called with the rows of each case repeated as often as it counts."""

    def value(weights: np.ndarray) -> float:
        rows = KnownInstances.together([k for k, times in zip(known, weights, strict=True) for _ in range(times)])
        return metric.function(*rows) if len(rows.truth) else float("nan")

    return value


def _ranked(known: Sequence[KnownInstances], metric: Metric) -> Weighted:
    """A metric of the operating points of all rows together: sorted once, counted with weights."""
    if metric.function is ranking.OperatingPoints.roc_area and len(known) <= _FEW_CASES:
        return _from_pairs_of_cases(known)
    rows = KnownInstances.together(known)
    order = ranking._SortedScores(rows.scores, rows.truth, ~rows.truth)
    case = instances._case_of_row([len(k.truth) for k in known])[order.order]
    return lambda weights: metric.function(order.points(weights[case]))


def _from_pairs_of_cases(known: Sequence[KnownInstances]) -> Weighted:
    """AUROC from a table of how often the positives of one case beat the negatives of another: fast for large cases."""
    positive = [k.scores[k.truth] for k in known]
    scores, case = np.concatenate([np.zeros(0), *positive]), instances._case_of_row([len(p) for p in positive])
    order = np.argsort(scores)  # sorted values are looked up several times faster
    scores, case = scores[order], case[order]
    wins = np.zeros((len(known), len(known)))
    for column, k in enumerate(known):
        beaten = ranking._count_below(scores, k.scores[~k.truth])
        wins[:, column] = np.bincount(case, weights=beaten, minlength=len(known))
    size = np.array([len(p) for p in positive])
    rest = np.array([len(k.truth) for k in known]) - size

    def value(weights: np.ndarray) -> float:
        return ranking._ratio(float(weights @ wins @ weights), float(weights @ size) * float(weights @ rest))

    return value


def _counted(known: Sequence[KnownInstances], metric: Metric, threshold: float) -> Weighted:
    """A metric of the counts at a threshold: counted once per case, summed with weights."""
    table = np.array([ranking.Counts.of(k.scores >= threshold, k.truth) for k in known], dtype=np.int64).reshape(-1, 4)
    return lambda weights: float(metric.function(ranking.Counts(*(weights @ table).tolist())))


def _averaged(values: Sequence[float]) -> Weighted:
    """A mean over the cases where the metric is defined."""
    numbers = np.array(values, dtype=np.float64)
    there = ~np.isnan(numbers)

    def value(weights: np.ndarray) -> float:
        total = weights[there].sum()
        return float(weights[there] @ numbers[there] / total) if total else float("nan")

    return value


def _repeated(cases: list[Prediction], metric: Callable[[Sequence[Prediction]], float]) -> Weighted:
    """Any function of predictions, called with each case repeated as often as it counts."""
    return lambda weights: float(metric([p for p, times in zip(cases, weights, strict=True) for _ in range(times)]))


def bootstrap_ci(
    predictions: Sequence[Prediction],
    metric: MetricOrFunction = "bag_auroc",
    unit: str = "patient",
    method: str = "bca",
    n: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    *,
    stratified: bool = False,
    threshold: float | None = None,
    pool: str = "all",
    column: int | None = None,
) -> dict[str, Any]:
    """A metric with its confidence interval: patients are drawn with replacement n times, all their cases together.

    metric      a name such as "bag_auroc", "inst_auroc", "inst_f1", "froc" (see METRIC_NAMES), or a function of a list
                of predictions; threshold, pool and column are those of the metric
    unit        "patient" (meta["patient"] or meta["group"], else the case itself, with a note) or "bag"
    method      "bca" (bias-corrected and accelerated) or "percentile"
    stratified  draw patients within their class (highest label of a patient's cases), so no draw lacks a class

    There is no interval (low and high are nan) where fewer than 10 patients carry the metric, or where all resamples
    are equal; `shortage` says how many there are ("7 positive patients").

    Keys: value, low, high, shortage, std (of the resamples), n_units, n_cases, n_resamples, n_undefined, method, …
    """
    settings = Settings(threshold, pool, column)
    measured = statistic(predictions, metric, settings)
    value = measured.estimate
    found, facts, notes = _resampled(
        measured.cases,
        measured.kinds,
        measured.value,
        value,
        False,
        unit,
        method,
        n,
        seed,
        level,
        stratified,
        measured.bounds,
    )
    kind, kind_notes = instances._score_kind(measured.cases)
    return {
        "metric": measured.name,
        "value": value,
        "low": found.low,
        "high": found.high,
        **facts,
        "method": found.method,
        "level": level,
        "unit": unit,
        "stratified": stratified,
        "seed": seed,
        **settings._asdict(),
        "score_kind": kind,
        "notes": notes + kind_notes,
    }


def shortage_of(
    predictions: Sequence[Prediction], measure: PooledMetric, threshold: float | None = None, column: int | None = None
) -> str:
    """What there is too little of for an interval of a metric ("3 positive patients"); empty where there is enough."""
    measured = statistic(predictions, measure.metric, Settings(threshold, measure.pool, column))
    return carriers_of(measured.cases, measured.kinds).shortage


def add_intervals(results: Results, models: Models, measures: Sequence[str] = USUAL, **options: Any) -> None:
    """Under "ci" of each model: {measure: bootstrap_ci}, instance metrics at the threshold of its summary."""
    for name, found in results.items():
        found["ci"] = {}
        for measure in _possible_measures(measures, [found]):
            if word := _withheld(measure, found):
                found.setdefault("notes", []).append(f"{measure.label}: no interval, {word}")
                continue
            settings = {**options, "pool": measure.pool, "threshold": threshold_for(measure, found)}
            found["ci"][measure.label] = bootstrap_ci(models[name], measure.metric, **settings)


def _withheld(measure: PooledMetric, found: dict[str, Any]) -> str:
    """Why a number of whole cases is not shown although it could be computed, in few words; empty: it is shown."""
    metric = registered(measure.metric)
    return str(found["bag"].get("withheld", {}).get(metric.key, "")) if metric.level == "bag" else ""


def _possible_measures(measures: Sequence[str], summaries: Sequence[dict[str, Any]]) -> list[PooledMetric]:
    """Measures asked for; of the usual ones F1 is left out without a threshold, and a note says so."""
    asked = [PooledMetric.parse(text) for text in measures]
    usual = tuple(measures) in {usual_measures(kind) for kind in TARGETS}
    asked += [PooledMetric(f"bag_auroc:{name}") for name in summaries[0]["bag"].get("labels", {}) if usual]
    if not usual or all(found["threshold"]["value"] is not None for found in summaries):
        return asked
    notes = summaries[0].setdefault("notes", [])
    note = "inst_f1 has no interval and no comparison: a model has no threshold (give validation predictions)"
    notes += [note] if note not in notes else []
    return [m for m in asked if not m.needs_threshold]


def threshold_for(measure: PooledMetric, found: dict[str, Any]) -> float | None:
    """Threshold of a measure: the model's own for instance metrics, None (the usual one) for others."""
    return found["threshold"]["value"] if registered(measure.metric).level == "instance" else None
