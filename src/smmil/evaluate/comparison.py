"""Which of two models is better, and whether the difference is real."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.bootstrap import classes_of_units, facts
from smmil.evaluate.cases import score_kind, units_of
from smmil.evaluate.pairs import paired
from smmil.evaluate.resampling import Resampling, check_plan, few_units, gap, interval
from smmil.evaluate.roc_test import delong
from smmil.evaluate.statistic import Metric, Settings, Statistic, statistic
from smmil.prediction import Prediction

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
