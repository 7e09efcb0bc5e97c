"""Metrics of whole cases whose target is no class: registered ones, rows of labels and times, and notes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smmil.evaluate.bags import SURVIVAL, labelled_table
from smmil.evaluate.metrics import NOT_NEGATIVE, SHARE, Metric, _bag_values, metrics_of, register_metric
from smmil.evaluate.ranking import Counts, OperatingPoints, _defined, _ratio, exact_mean
from smmil.evaluate.resampling import Carriers, carriers_of
from smmil.evaluate.survival import _Concordance, _OverTime
from smmil.evaluate.targets import TargetTable, _judged_labels, of_label
from smmil.prediction import Prediction

_SIDES = ("points", "counts")  # what metrics of a single label are computed from


def _target_metrics(predictions: Sequence[Prediction], threshold: float = 0.5) -> dict[str, Any]:
    """Metrics of whole cases of a target that is no class, by key, with numbers of cases and notes.

    Several labels: means over the labels with both classes, and "labels" with a row for each. Survival: "times" with a
    row for each time of the target. What is undefined is nan, and `notes` says why.
    """
    table = TargetTable(sorted(predictions, key=lambda p: p.id))
    kind, left_out = table.kind, len(predictions) - len(table)
    ones, values = np.ones(len(table), dtype=np.int64), dict[str, float]()
    for metric in metrics_of("bag", kind):
        values[metric.key] = _value(metric, table, ones, threshold) if len(table) else math.nan
    extra: dict[str, Any] = {}
    if kind == "multilabel":
        extra["labels"] = _label_rows(table, threshold)
    elif kind in SURVIVAL:
        extra["times"] = _time_rows(table, ones)
    notes = [f"{left_out} cases without a label are left out"] if left_out and len(table) else []
    return {
        "target": kind,
        "n": len(table),
        "n_positive": _n_positive(table),
        "n_unlabelled": left_out,
        **values,
        **extra,
        "threshold": float(threshold) if kind == "multilabel" else None,
        "notes": [*_target_notes(table), *notes],
    }


def _value(metric: Metric, table: TargetTable, weights: np.ndarray, threshold: float) -> float:
    if metric.basis == "target":
        return float(metric.function(table, weights))
    if metric.basis == "predictions":
        return float(metric.function(table.cases))
    if table.kind == "multilabel":
        return exact_mean(_defined(_of_labels(metric, table.cases, threshold)))
    return _bag_values([metric], *labelled_table(table.cases), threshold)[metric.key]


def _of_labels(metric: Metric, cases: Sequence[Prediction], threshold: float) -> list[float]:
    return [_of_one_label(metric, of_label(cases, name), threshold) for name in _judged_labels(cases)]


def _of_one_label(metric: Metric, cases: Sequence[Prediction], threshold: float) -> float:
    probs, y = labelled_table(cases)
    if metric.basis == "points":
        return float(metric.function(OperatingPoints.of(probs[:, 1], y > 0)))
    return float(metric.function(Counts.of(probs[:, 1] >= threshold, y > 0)))


def _label_rows(table: TargetTable, threshold: float) -> dict[str, dict[str, Any]]:
    """By name: how many cases are known and positive, and the metrics; nan with one class only."""
    rows = {}
    for name in table.names:
        cases = of_label(table.cases, name)
        known = [p.y for p in cases if p.y is not None]
        both = {0, 1} <= set(known)
        metrics = metrics_of("bag", "multilabel")
        values = {m.key: _of_one_label(m, cases, threshold) if both else math.nan for m in metrics if m.basis in _SIDES}
        rows[name] = {"n": len(known), "n_positive": sum(known), **values}
    return rows


def _time_rows(table: TargetTable, weights: np.ndarray) -> dict[str, dict[str, Any]]:
    """By time: AUROC and Brier score, mean predicted and observed share with an event, who was followed, and whether
    these are too few for AUROC and Brier score to say much.
    """
    curve, over = table.follow_up.curve(), table.over_time
    auroc, brier = over.auroc(weights), over.brier(weights)
    return {
        f"{time:.10g}": {
            "time": float(time),
            "auroc": float(auroc[k]),
            "brier": float(brier[k]),
            "predicted": float(over.probs[:, k].mean()),
            "observed": 1 - curve.after(time) if not math.isnan(brier[k]) else math.nan,
            "n_events": int(table.follow_up.had_event(time).sum()),
            "n_without": int(table.follow_up.had_none(time).sum()),
            "shortage": _carriers_until(table, time).shortage,
        }
        for k, time in enumerate(table.times if len(table) else ())
    }


def _carriers_until(table: TargetTable, time: float) -> Carriers:
    """How many patients had an event until a time, and how many were followed longer without one."""
    sides = {"with an event": table.follow_up.had_event(time), "without an event": table.follow_up.had_none(time)}
    return carriers_of(table.cases, {f"{{units}} {words} until {time:.4g}": is_it for words, is_it in sides.items()})


def _n_positive(table: TargetTable) -> int:
    """Cases with an event, with any label, or above the lowest level; of a number none is."""
    if not len(table) or table.kind == "regression":
        return 0
    column = table.target[:, 1:] if table.kind in SURVIVAL else table.target
    return int((np.nan_to_num(column) > 0).any(1).sum())


def _target_notes(table: TargetTable) -> list[str]:
    if not len(table):
        return ["no case has a label; nothing can be measured"]
    if table.kind == "multilabel":
        absent = [name for name in table.names if name not in _judged_labels(table.cases)]
        listed = ", ".join(absent)
        return [f"labels without both classes are left out of the means over labels: {listed}"] if absent else []
    if table.kind not in SURVIVAL:
        same = len(np.unique(table.target)) == 1
        return [f"all {len(table)} labelled cases are alike: {table.target[0, 0]:g}"] if same else []
    events = int(table.target[:, 1].sum())
    notes = [] if events else [f"none of the {len(table)} cases had an event: C-index and AUROC are undefined"]
    if not len(table.times):
        return [*notes, "the cases state different times: AUROC over time and Brier score are undefined"]
    lost = [f"{t:g}" for t, value in zip(table.times, table.over_time.brier(np.ones(len(table))), strict=True)
            if math.isnan(value)]  # fmt: skip
    return [*notes, *([f"nobody was followed until {', '.join(lost)}: no Brier score there"] if lost else [])]


def _mean_error(table: TargetTable, weights: np.ndarray) -> float:
    gaps = np.abs(table.value - table.target[:, 0])
    return _ratio(float(weights @ gaps), float(weights.sum()))


def _root_mean_square(table: TargetTable, weights: np.ndarray) -> float:
    return math.sqrt(_ratio(float(weights @ np.square(table.value - table.target[:, 0])), float(weights.sum())))


def _explained_share(table: TargetTable, weights: np.ndarray) -> float:
    """R² = 1 - squared error / squared distance from the mean; nan where all are alike."""
    truth = table.target[:, 0]
    middle = _ratio(float(weights @ truth), float(weights.sum()))
    spread = float(weights @ np.square(truth - middle))
    return 1 - float(weights @ np.square(truth - table.value)) / spread if spread > 0 else math.nan


def _spearman(table: TargetTable, weights: np.ndarray) -> float:
    """Correlation of the ranks, equal numbers sharing theirs; nan where one side has no two different numbers."""
    from scipy.stats import rankdata

    rows = np.repeat(np.arange(len(table)), weights)
    a, b = (rankdata(side[rows]) for side in (table.value, table.target[:, 0]))
    a, b = a - a.mean() if len(rows) else a, b - b.mean() if len(rows) else b
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def _quadratic_kappa(table: TargetTable, weights: np.ndarray) -> float:
    """1 - squared distance of answered and true levels / that of unrelated ones; nan where that is 0."""
    answered, true = table.levels, table.target[:, 0]
    total = float(weights.sum())
    observed = _ratio(float(weights @ np.square(answered - true)), total)
    means = [_ratio(float(weights @ side), total) for side in (answered, true)]
    spreads = [np.square(answered - means[0]), np.square(true - means[1])]
    expected = sum(_ratio(float(weights @ s), total) for s in spreads) + (means[0] - means[1]) ** 2
    return 1 - observed / expected if expected > 0 else math.nan


def _mean_auroc(table: TargetTable, weights: np.ndarray) -> float:
    return exact_mean(_defined(table.over_time.auroc(weights)))


def _of(method: Callable[[Any, np.ndarray], float], part: str) -> Callable[[TargetTable, np.ndarray], float]:
    """A method of a part of the table, as a function of the table."""
    return lambda table, weights: method(getattr(table, part), weights)


for _metric in (
    Metric("bag_c_index", "bag", "C-index (Harrell)", 1,
           "chance that of two cases the one with the earlier event has the higher risk",
           _of(_Concordance.harrell, "concordance"), "target", interval=True, targets=SURVIVAL,
           hub=("c_index", "C-index of cases (Harrell)"), bounds=SHARE, chance=0.5),
    Metric("bag_c_index_uno", "bag", "C-index (Uno)", 1,
           "the same, weighted so that it does not depend on who was censored",
           _of(_Concordance.uno, "concordance"), "target", interval=True, targets=SURVIVAL,
           hub=("c_index_uno", "C-index of cases (Uno)"), bounds=SHARE, chance=0.5),
    Metric("bag_time_auroc", "bag", "AUROC over time", 1,
           "chance that a case with an event until a time has a higher probability than one without; mean over the "
           "times of the target",
           _mean_auroc, "target", interval=True, targets=SURVIVAL,
           hub=("time_auroc", "AUROC over time, mean"), bounds=SHARE, chance=0.5),
    Metric("bag_integrated_brier", "bag", "integrated Brier score", -1,
           "squared error of the probability of an event, averaged from the first to the last time of the target",
           _of(_OverTime.integrated_brier, "over_time"), "target", title="Integrated Brier score", interval=True,
           targets=SURVIVAL, hub=("integrated_brier", "integrated Brier score (lower is better)"), bounds=NOT_NEGATIVE),
    Metric("bag_kappa", "bag", "quadratic kappa", 1,
           "agreement of answered and true levels beyond chance, mistakes weighted by their squared distance",
           _quadratic_kappa, "target", title="Quadratic weighted kappa", interval=True, targets=("ordinal",),
           hub=("cohen_kappa", "quadratic weighted kappa of cases"), bounds=(-1.0, 1.0), chance=0.0),
    Metric("bag_level_mae", "bag", "level MAE", -1, "mean distance of answered and true levels",
           _mean_error, "target", title="Mean distance of levels", interval=True, targets=("ordinal",),
           hub=("mae", "mean distance of levels (lower is better)"), bounds=NOT_NEGATIVE),
    Metric("bag_mae", "bag", "MAE", -1, "mean distance of predicted and true numbers",
           _mean_error, "target", title="Mean absolute error", interval=True, targets=("regression",),
           hub=("mae", "mean absolute error (lower is better)"), bounds=NOT_NEGATIVE),
    Metric("bag_rmse", "bag", "RMSE", -1, "root of the mean squared distance of predicted and true numbers",
           _root_mean_square, "target", title="Root mean squared error", interval=True, targets=("regression",),
           hub=("rmse", "root mean squared error (lower is better)"), bounds=NOT_NEGATIVE),
    Metric("bag_r2", "bag", "R²", 1,
           "share of the spread of the true numbers that is explained; 0 is what their mean reaches",
           _explained_share, "target", interval=True, targets=("regression",), hub=("r_squared", "R² of cases"),
           bounds=(-math.inf, 1.0)),
    Metric("bag_spearman", "bag", "Spearman", 1, "correlation of the ranks of predicted and true numbers",
           _spearman, "target", title="Spearman's correlation", interval=True, targets=("regression",),
           hub=("spearmanr", "Spearman's correlation of cases"), bounds=(-1.0, 1.0), chance=0.0),
):  # fmt: skip
    register_metric(_metric)
