"""How certain a metric is: confidence intervals from resampled patients."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.evaluate.cases import score_kind, units_of
from smmil.evaluate.resampling import Resampling, check_plan, few_units, interval
from smmil.evaluate.statistic import Metric, Settings, statistic
from smmil.prediction import Prediction


def bootstrap_ci(
    predictions: Sequence[Prediction],
    metric: Metric = "bag_auroc",
    unit: str = "patient",
    method: str = "bca",
    n: int = 2000,
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

    Keys: value, low, high, std (of the resamples), n_units, n_cases, n_resamples, n_undefined, method, notes, …
    """
    check_plan(method, n, level)
    settings = Settings(threshold, pool, column)
    measured = statistic(predictions, metric, settings)
    units, notes = units_of(measured.cases, unit)
    plan = Resampling(units, classes_of_units(measured.cases, units) if stratified else None)
    drawn = np.array([measured.value(weights) for weights in plan.draws(n, seed)])
    value = measured.estimate
    found = interval(drawn, value, lambda: plan.without_each(measured.value), method, level)
    kind, kind_notes = score_kind(measured.cases)
    return {
        "metric": measured.name,
        "value": value,
        "low": found.low,
        "high": found.high,
        **facts(drawn, plan, measured.cases),
        "method": found.method,
        "level": level,
        "unit": unit,
        "stratified": stratified,
        "seed": seed,
        **settings._asdict(),
        "score_kind": kind,
        "notes": [*notes, *few_units(plan.n_units, unit), *found.notes, *kind_notes],
    }


def facts(drawn: np.ndarray, plan: Resampling, cases: Sequence[Prediction]) -> dict[str, Any]:
    """Spread of the resamples and how many of what took part."""
    values = drawn[~np.isnan(drawn)]
    return {
        "std": float(values.std(ddof=1)) if len(values) > 1 else float("nan"),
        "n_units": plan.n_units,
        "n_cases": len(cases),
        "n_resamples": len(drawn),
        "n_undefined": len(drawn) - len(values),
    }


def classes_of_units(cases: Sequence[Prediction], units: np.ndarray) -> np.ndarray:
    """The class of each unit: the highest label of its cases, -1 when none is known."""
    found = np.full(units.max(initial=-1) + 1, -1)
    np.maximum.at(found, units, [-1 if p.y is None else p.y for p in cases])
    return found
