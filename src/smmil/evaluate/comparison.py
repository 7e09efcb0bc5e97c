"""Paired comparison of models: bootstrap differences, DeLong's test, Holm's correction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError, suggest
from smmil.evaluate.bags import patient_of, score_kind, units_of
from smmil.evaluate.bootstrap import Resampling, check_plan, classes_of_units, facts, few_units, gap, interval
from smmil.evaluate.ranking import auroc, count_below
from smmil.evaluate.statistic import Metric, Settings, Statistic, statistic
from smmil.prediction import Prediction


class PairedCases(NamedTuple):
    """Cases that both models predicted, in the same order, and how many only one did."""

    a: list[Prediction]
    b: list[Prediction]
    only_in_a: int
    only_in_b: int


def paired(a: Sequence[Prediction], b: Sequence[Prediction]) -> tuple[PairedCases, list[str]]:
    """The common cases of two models by id, and remarks; refused when a label or patient of a case differs."""
    first, second = _by_id(a, "first"), _by_id(b, "second")
    common = sorted(first.keys() & second.keys())
    if not common:
        raise DataError(
            f"compare: the two models have no case in common ({_some(first)} / {_some(second)}); predict the same cases"
        )
    for case in common:
        _refuse_different(first[case], second[case])
    found = PairedCases(
        [_with_patient(first[case], second[case]) for case in common],
        [second[case] for case in common],
        len(first) - len(common),
        len(second) - len(common),
    )
    if found.only_in_a or found.only_in_b:
        counts = f"{found.only_in_a} cases only of the first model and {found.only_in_b} only of the second"
        return found, [f"{counts} are left out"]
    return found, []


def _by_id(predictions: Sequence[Prediction], which: str) -> dict[str, Prediction]:
    found = {p.id: p for p in predictions}
    if len(found) < len(predictions):
        raise DataError(
            f"compare: the {which} model has {len(predictions)} predictions of {len(found)} cases; keep one each"
        )
    return found


def _refuse_different(a: Prediction, b: Prediction) -> None:
    if a.y != b.y:
        raise DataError(
            f"{a.id}: label {a.y} in the first model's file but {b.y} in the second's; predict one of them again"
        )
    same = a.y_inst is b.y_inst if a.y_inst is None or b.y_inst is None else np.array_equal(a.y_inst, b.y_inst)
    if not same:
        raise DataError(f"{a.id}: instance labels differ between the two models; predict both from the same bag files")
    people = {patient_of(p) for p in (a, b)} - {None}
    if len(people) > 1:
        raise DataError(f"{a.id}: belongs to patient {' and '.join(sorted(map(str, people)))}; mend the manifest")


def _with_patient(a: Prediction, b: Prediction) -> Prediction:
    """The first one, with the patient that perhaps only the second names."""
    who = patient_of(b)
    return a if who is None or patient_of(a) is not None else replace(a, meta={**a.meta, "patient": who})


def _some(cases: dict[str, Prediction]) -> str:
    return ", ".join(sorted(cases)[:2]) or "none"


class DeLong(NamedTuple):
    """Difference of two AUROCs (first minus second) with its standard error, z, two-sided p and interval."""

    auroc_a: float
    auroc_b: float
    difference: float
    std_error: float
    z: float
    p: float
    low: float
    high: float


def delong(scores_a: np.ndarray, scores_b: np.ndarray, truth: np.ndarray, level: float = 0.95) -> DeLong:
    """Compare two scores of the same independent cases (DeLong, DeLong, Clarke-Pearson 1988).

    Without difference and without variance (such as two perfect scores) p is 1; with fewer than two cases of a class
    everything but the AUROCs is nan.
    """
    from scipy.special import ndtr, ndtri

    truth = np.asarray(truth).astype(bool)
    pair = np.stack([np.asarray(scores_a, dtype=np.float64), np.asarray(scores_b, dtype=np.float64)])
    if not np.isfinite(pair).all():
        raise DataError("DeLong's test needs finite scores; at least one is not a number or infinite")
    first, second = (auroc(row, truth) for row in pair)
    covariance = auroc_covariance(pair, truth)
    error = float(np.sqrt(max(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1], 0.0)))
    gap = first - second
    z = gap / error if error else (0.0 if gap == 0 else float("nan"))
    z = float("nan") if np.isnan(covariance).any() else z
    reach = float(ndtri((1 + level) / 2)) * (error if not np.isnan(z) else float("nan"))
    return DeLong(first, second, gap, error, z, float(2 * ndtr(-abs(z))), gap - reach, gap + reach)


def auroc_covariance(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Covariance (m, m) of the AUROCs of m scores (m, n) of the same n cases; nan with fewer than two of a class.

    Each positive case gets the share of negatives it beats, each negative the share of positives that beat it, ties
    half; the sample covariances of these shares over their numbers add up. O(m n log n), by ranks.
    """
    positive, negative = int(truth.sum()), int((~truth).sum())
    if min(positive, negative) < 2:
        return np.full((len(scores), len(scores)), np.nan)
    beaten = np.stack([count_below(row[truth], row[~truth]) / negative for row in scores])
    beating = np.stack([1 - count_below(row[~truth], row[truth]) / positive for row in scores])
    return np.atleast_2d(np.cov(beaten)) / positive + np.atleast_2d(np.cov(beating)) / negative


Thresholds = float | tuple[float | None, float | None] | None


def compare(
    a: Sequence[Prediction],
    b: Sequence[Prediction],
    metric: Metric = "bag_auroc",
    unit: str = "patient",
    method: str = "percentile",
    n: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    *,
    stratified: bool = False,
    threshold: Thresholds = None,
    pool: str = "all",
    column: int | None = None,
) -> dict[str, Any]:
    """The difference a - b of a metric on the same cases, with interval and p value; options as for bootstrap_ci.

    Cases are paired by id; those that only one model predicted are left out and counted. Each resample of patients
    judges both models. p is two-sided and read off the interval: below 1 - level exactly where it excludes 0. The
    interval is a percentile one unless asked otherwise: with twenty cases and no true difference BCa ones exclude 0
    about twice as often as they say. threshold may be a pair, one for each model. For "bag_auroc" with two classes
    `delong` holds DeLong's test too, else None.

    Keys: a, b, difference, low, high, p, delong, n_units, n_cases, only_in_a, only_in_b, notes, …
    """
    check_plan(method, n, level)
    pairs, notes = paired(a, b)
    cuts = threshold if isinstance(threshold, tuple) else (threshold, threshold)
    first, second = (
        statistic(side, metric, Settings(cut, pool, column)) for side, cut in zip((pairs.a, pairs.b), cuts, strict=True)
    )
    if [p.id for p in first.cases] != [p.id for p in second.cases]:
        raise DataError(f"{first.name}: not the same cases can be judged for both models; predict both in the same way")
    units, unit_notes = units_of(first.cases, unit)
    plan = Resampling(units, classes_of_units(first.cases, units) if stratified else None)

    def between(weights: np.ndarray) -> float:
        return float(gap(first.value(weights), second.value(weights)))

    drawn = np.array([between(weights) for weights in plan.draws(n, seed)])
    difference = float(gap(first.estimate, second.estimate))
    found = interval(drawn, difference, lambda: plan.without_each(between), method, level)
    test, test_notes = _delong(first, second, plan, level)
    return {
        "metric": first.name,
        "a": first.estimate,
        "b": second.estimate,
        "difference": difference,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "delong": test,
        **facts(drawn, plan, first.cases),
        "only_in_a": pairs.only_in_a,
        "only_in_b": pairs.only_in_b,
        "method": found.method,
        "level": level,
        "unit": unit,
        "stratified": stratified,
        "seed": seed,
        "threshold": list(cuts),
        "pool": pool,
        "column": column,
        "score_kind": [score_kind(side.cases)[0] for side in (first, second)],
        "notes": [*notes, *unit_notes, *few_units(plan.n_units, unit), *found.notes, *test_notes],
    }


def _delong(a: Statistic, b: Statistic, plan: Resampling, level: float) -> tuple[dict[str, float] | None, list[str]]:
    if a.name != "bag_auroc" or any(len(p.probs) > 2 for p in (*a.cases, *b.cases)):
        return None, []
    scores = [np.array([p.positive_prob for p in side.cases]) for side in (a, b)]
    test = delong(scores[0], scores[1], np.array([p.y == 1 for p in a.cases], dtype=bool), level)
    notes = []
    if plan.n_units < len(a.cases):
        notes.append(
            f"DeLong takes the {len(a.cases)} cases of {plan.n_units} patients as independent; trust the bootstrap more"
        )
    return test._asdict(), notes


def compare_models(
    models: Mapping[str, Sequence[Prediction]],
    metric: Metric = "bag_auroc",
    reference: str | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Every pair of models, or every model against `reference`; `p_holm` is corrected for the number of comparisons.

    Each row is that of `compare` with `model` and `other`; options as there. Thresholds may be a mapping by model.
    """
    if reference is not None and reference not in models:
        raise ConfigError(f"reference: unknown model {reference!r}; {suggest(reference, models)}")
    others = [(name, reference) for name in models if name != reference]
    pairs = list(combinations(models, 2)) if reference is None else others
    cuts = options.pop("threshold", None)
    rows = []
    for name, other in pairs:
        both = (cuts.get(name), cuts.get(other)) if isinstance(cuts, Mapping) else cuts
        found = compare(models[name], models[str(other)], metric, threshold=both, **options)
        rows.append({"model": name, "other": other, **found})
    _correct(rows, "p_holm", [row["p"] for row in rows])
    if all(row["delong"] for row in rows):
        _correct(rows, "p_holm_delong", [row["delong"]["p"] for row in rows])
    return rows


def holm(pvalues: Any) -> Any:
    """p values corrected for the number of tests (Holm 1979): a mapping gives a dict, a sequence a list.

    The smallest is multiplied by m, the next by m - 1 and so on, never falling below the one before, at most 1.
    Undefined ones (nan) stay so and are not counted as tests.
    """
    if isinstance(pvalues, Mapping):
        return dict(zip(pvalues, holm(list(pvalues.values())), strict=True))
    p = np.array(pvalues, dtype=np.float64)
    if ((p < 0) | (p > 1)).any():
        raise ConfigError(f"holm: p values lie between 0 and 1, got {p[(p < 0) | (p > 1)][0]:g}")
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]
    steps = p[order] * np.arange(len(order), 0, -1)
    result = np.full(len(p), np.nan)
    result[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return result.tolist()


def _correct(rows: list[dict[str, Any]], key: str, pvalues: list[float]) -> None:
    for row, corrected in zip(rows, holm(pvalues), strict=True):
        row[key] = corrected
