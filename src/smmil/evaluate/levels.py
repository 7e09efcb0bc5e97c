"""Metrics of each level from predictions: whole cases, instances, energies of maps, lesions, and the threshold."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate import instances
from smmil.evaluate.bags import SURVIVAL, labelled_table, patients_in_notes, shared_target, whole_bags, whole_patients
from smmil.evaluate.conformal import _area_notes, area_to_read
from smmil.evaluate.instances import POOLS, RATES, KnownInstances, bags_of_pool, instance_score
from smmil.evaluate.metrics import (
    _ANY,
    SHARE,
    Metric,
    _bag_values,
    _class_counts,
    _ScoredLabels,
    metrics_of,
    register_metric,
)
from smmil.evaluate.ranking import OperatingPoints, _defined, _ece, exact_mean
from smmil.evaluate.risk_groups import risk_groups
from smmil.evaluate.target_metrics import _target_metrics
from smmil.evaluate.uncertainty import _doubt_rows, _probability_rows, _two_columns
from smmil.prediction import Prediction, corrections_text


def bag_metrics(predictions: Sequence[Prediction], threshold: float = 0.5) -> dict[str, Any]:
    """Metrics over all labelled cases at once, by key: auroc, auprc, f1, … and what else is registered.

    A case is called positive when its probability is at least `threshold`. With more than two classes the ranking
    metrics and f1 are macro averages (one class against the rest), the answer is the most probable class and
    `threshold` is unused; a class without cases is left out, except that f1 counts 0 for it if it was answered. What
    is undefined is nan, and `notes` says why. Targets other than classes have metrics of their own (docs/targets.md).
    """
    counted = patients_in_notes(predictions)
    predictions = whole_patients(predictions)
    kind = shared_target(predictions)
    if kind != "class":
        groups = {"risk_groups": risk_groups(predictions).facts()} if kind in SURVIVAL else {}
        measured = _target_metrics(predictions, threshold)
        return measured | groups | {"notes": [*counted, *measured["notes"]]}
    labelled = [p for p in predictions if p.y is not None]
    probs, y = labelled_table(labelled)
    many, left_out = probs.shape[1] > 2, len(predictions) - len(labelled)
    metrics = sorted(metrics_of("bag"), key=lambda m: _ANY.index(m.basis))
    values = _bag_values([m for m in metrics if m.basis != "predictions"], probs, y, threshold)
    values |= {m.key: m.function(labelled) if labelled else float("nan") for m in metrics if m.basis == "predictions"}
    if len(y) == 0:
        notes = ["no case has a label; nothing can be measured"]
    else:
        notes = _many_class_notes(probs, y) if many else _two_class_notes(y > 0, values["f1"])
        notes += [f"{left_out} cases without a label are left out"] if left_out else []
        notes += _area_notes(labelled)
    return {
        "n": len(y),
        "n_positive": int((y > 0).sum()),
        "n_unlabelled": left_out,
        **values,
        "threshold": None if many else float(threshold),
        "notes": counted + notes,
    }


def _two_class_notes(truth: np.ndarray, f1: float) -> list[str]:
    notes = []
    if truth.all() or not truth.any():
        kind = "positive" if truth.all() else "negative"
        notes.append(
            f"all {len(truth)} labelled cases are {kind}: auroc, auprc, balanced accuracy and "
            "sensitivity at a specificity are undefined"
        )
    if np.isnan(f1):
        notes.append("no case is positive and none was called positive: f1 is undefined")
    return notes


def _many_class_notes(probs: np.ndarray, y: np.ndarray) -> list[str]:
    """Which classes have no case, and which of them were answered all the same: wrongly, so their f1 is 0."""
    counts, notes = _class_counts(probs, y), []
    if (y == y[0]).all():
        notes.append(f"all {len(y)} labelled cases are of class {y[0]}: auroc, auprc, balanced accuracy undefined")
    absent = [c for c, found in enumerate(counts) if found.tp + found.fn == 0]
    wrong = [c for c in absent if counts[c].fp]
    but = f"; f1 counts 0 for those that were answered all the same: {wrong}" if wrong else ""
    return [*notes, f"classes without cases are left out of the macro averages: {absent}{but}"] if absent else notes


def instance_metrics(
    predictions: Sequence[Prediction], threshold: float | None = None, pool: str = "all", column: int | None = None
) -> dict[str, Any]:
    """Localization metrics of the scores against instance labels; unknown labels (-1) never take part.

    pool="all" mixes the instances of all bags, "positive_bags" those of bags with y > 0, "per_bag" averages the metrics
    of single bags over those where both classes are present. An instance is called positive when its score is at least
    `threshold`; without one the metrics that need it (f1, dice, iou, …) are absent and `notes` says so. Dice of the
    thresholded map is the same number as f1 of the same instances. pointing_game is the share of the pool's bags with
    both classes whose hottest instance is positive. `column` picks the score of models with more than two per instance.
    """
    check_choice(pool, POOLS, "pool")
    predictions = whole_bags(predictions)
    bags = bags_of_pool(predictions, pool)
    parts = [(p, known) for p in bags if len((known := KnownInstances.of(p, column)).truth)]
    used = [(p, known) for p, known in parts if known.both_classes] if pool == "per_bag" else parts
    n_instances, n_positive = sum(len(k.truth) for _, k in used), sum(int(k.truth.sum()) for _, k in used)
    if pool == "per_bag":
        values, notes = _averaged(used, threshold, column)
    else:
        values = _instance_values(used, threshold, column)
        notes = _instance_notes(n_instances, n_positive, values)
    notes += _pool_notes(len(bags), len(parts), len(used), pool)
    if pool == "positive_bags" and (lost := _lost_truth(parts)) is not None:
        notes.insert(0, lost)
    if threshold is None:
        *first, last = [metric.key for metric in metrics_of("instance") if metric.basis == "counts"]
        notes.append(f"{', '.join(first)} and {last} are left out: no threshold was given (choose it on validation)")
    kind, kind_notes = instances._score_kind(predictions)
    return {
        **values,
        "threshold": None if threshold is None else float(threshold),
        "pool": pool,
        "score_kind": kind,
        "n_instances": n_instances,
        "n_positive": n_positive,
        "n_bags_used": len(used),
        "notes": notes + kind_notes + _correction_notes(predictions),
    }


_Parts = Sequence[tuple[Prediction, KnownInstances]]


def _instance_values(parts: _Parts, threshold: float | None, column: int | None) -> dict[str, float]:
    """Values by key of the instances of several bags together; without threshold only those that need none.

    Metrics with rows of their own, such as probabilities, are absent where no bag has such rows.
    """
    known = KnownInstances.together([known for _, known in parts])
    pooled = _ScoredLabels(known.scores, known.truth, threshold)

    def value(metric: Metric) -> float | None:
        if metric.rows is not None:
            rows = [own for p, k in parts if (own := metric.rows(p, k, threshold, column)) is not None]
            return _ScoredLabels(*KnownInstances.together(rows), threshold).value(metric) if rows else None
        if metric.per_case:
            return exact_mean(_defined(metric.function(*known) for _, known in parts if known.both_classes))
        if metric.basis == "predictions":
            return float(metric.function([p for p, _ in parts])) if parts else float("nan")
        return pooled.value(metric) if len(known.truth) else float("nan")

    possible = [m for m in metrics_of("instance") if threshold is not None or not m.needs_threshold]
    return {metric.key: found for metric in possible if (found := value(metric)) is not None}


def _correction_notes(predictions: Sequence[Prediction]) -> list[str]:
    """That the model saw instance labels in training, which others did not: to be known when they are compared."""
    found = dict.fromkeys(corrections_text(p.meta.get("corrections")) for p in predictions)
    return [f"the model also learned from {text}" for text in found if text is not None]


def _instance_notes(total: int, positive: int, values: dict[str, float]) -> list[str]:
    if total == 0:
        return ["no instance label is known: nothing can be measured"]
    notes = []
    if positive in (0, total):
        kind = "positive" if positive else "negative"
        notes.append(f"all {total:,} known instances are {kind}: auroc and auprc are undefined")
    if np.isnan(values.get("precision", 0)):
        notes.append("no instance reaches the threshold: precision is undefined")
    return notes


def _averaged(parts: _Parts, threshold: float | None, column: int | None) -> tuple[dict[str, float], list[str]]:
    rows = [_instance_values([part], threshold, column) for part in parts]
    if not rows:
        return _instance_values([], threshold, column), ["no bag has known instances of both classes"]
    values, notes = {}, []
    for name in dict.fromkeys(name for row in rows for name in row):
        numbers = _defined(row[name] for row in rows if name in row)
        values[name] = exact_mean(numbers)
        if len(numbers) < len(rows):
            notes.append(f"{name} is averaged over the {len(numbers)} of {len(rows)} bags where it is defined")
    return values, notes


def _pool_notes(bags: int, labelled: int, used: int, pool: str) -> list[str]:
    notes = (
        (0 < labelled < bags, f"{bags - labelled} of {bags} bags have no known instance label and are left out"),
        (0 < used < labelled, f"{labelled - used} bags with known instances of one class only are left out"),
        (pool == "positive_bags" and not bags, "no bag is labelled positive"),
    )
    return [text for holds, text in notes if holds]


def _lost_truth(parts: _Parts) -> str | None:
    """How many of these positive bags hold no positive instance, and the coverage that the annotations propose."""
    from smmil.annotations.labels import lost_truth  # brings pandas, which exports do without

    lost = sum(not known.truth.any() for _, known in parts)
    facts = [found for p, _ in parts if isinstance(found := p.meta.get("annotation"), dict)]
    pairs = [(fact.get("coverage"), fact.get("largest_share")) for fact in facts]
    known = [(float(c), float(s)) for c, s in pairs if isinstance(c, float | int) and isinstance(s, float | int)]
    if len(known) < len(parts) or len({coverage for coverage, _ in known}) > 1:
        return lost_truth(len(parts), lost)
    return lost_truth(len(parts), lost, [share for _, share in known], known[0][0] if known else None)


class _Threshold(NamedTuple):
    """A cut (score >= value is positive) and where it came from; value None: there is none, for that reason."""

    value: float | None
    source: str


def _choose_threshold(predictions: Sequence[Prediction], column: int | None = None) -> _Threshold:
    """The observed score that maximises pooled instance F1; among equals the highest, which calls fewest instances."""
    known = KnownInstances.together([KnownInstances.of(p, column) for p in predictions])
    if len(known.truth) == 0:
        return _Threshold(None, "validation has no instance labels")
    positives = int(known.truth.sum())
    if positives == 0:
        return _Threshold(None, "validation has no positive instance")
    points = OperatingPoints.of(known.scores, known.truth)
    f1 = 2 * points.true_positives / (points.true_positives + points.false_positives + positives)
    best = int(np.argmax(f1))
    return _Threshold(float(points.threshold[best]), f"best instance F1 on validation ({f1[best]:.3f})")


def best_f1_threshold(predictions: Sequence[Prediction], column: int | None = None) -> float | None:
    """The value of `choose_threshold`; None when validation has no positive or no labelled instance."""
    return _choose_threshold(predictions, column).value


def energies(predictions: Sequence[Prediction], column: int | None = None) -> dict[str, Any]:
    """Each energy averaged over the bags where it is defined, with their number: n_rayleigh, n_mean, n_minmax, …

    Bags without edges are left out, counted in n_without_edges and mentioned in `notes`.
    """
    predictions = whole_bags(predictions)
    rows = [_bag_energies(p, column) for p in predictions if p.edges is not None]
    result: dict[str, Any] = {}
    for metric in metrics_of("energy"):
        numbers = _defined(row[metric.key] for row in rows)
        result[metric.key] = exact_mean(numbers)
        result[f"n_{metric.key}"] = len(numbers)
    missing = len(predictions) - len(rows)
    notes = [f"{missing} of {len(predictions)} bags have no edges stored and no energy"] if missing else []
    return {**result, "n_bags": len(rows), "n_without_edges": missing, "notes": notes}


def _bag_energies(prediction: Prediction, column: int | None = None) -> dict[str, float]:
    """Roughness of one bag on its graph by key; pairs count once, self-loops never; nan where undefined."""
    if prediction.edges is None:
        raise DataError(f"{prediction.id}: energies need edges, which this prediction does not store; predict it again")
    f = instance_score(prediction, column)
    pairs = instances._undirected_pairs(prediction.edges, len(f))
    return {metric.key: metric.function(f, pairs) for metric in metrics_of("energy")}


def froc(
    predictions: Sequence[Prediction],
    rates: Sequence[float] = RATES,
    pool: str = "all",
    column: int | None = None,
    interpolate: bool = False,
) -> dict[str, Any]:
    """Share of lesions found at each number of false alarms per bag, and their mean under the key `froc`.

    A lesion is a connected piece of positive instances, a mark is a local maximum of the scores on the same edges. A
    mark finds the lesion it lies in and is a false alarm outside; marks on instances of unknown label are neither. At
    each rate stands the highest share of lesions that some threshold reaches with at most that many alarms per bag.
    interpolate=True draws straight lines between thresholds instead, as the script of the CAMELYON16 challenge does.

    pool  "all" bags, or "positive_bags" only; bags without edges or without any instance label are left out
    Keys: froc, rates, sensitivities, curve {threshold, false_alarms_per_bag, sensitivity}, n_lesions, n_bags, notes, …
    """
    check_choice(pool, ("all", "positive_bags"), "pool of froc (it counts alarms per bag already)")
    if not len(rates) or min(rates) < 0:
        raise ConfigError(f"rates: got {list(rates)}, expected false alarms per bag such as {list(RATES)}")
    bags = bags_of_pool(whole_bags(predictions), pool)
    curve, (kind, notes) = instances._FrocCurve(bags, column), instances._score_kind(predictions)
    n_lesions, n_bags = int(curve.n_lesions.sum()), len(curve.n_lesions)
    without = f"{len(bags) - n_bags} of {len(bags)} bags have no edges or no known instance label and are left out"
    left_out = [without] if n_bags < len(bags) else []
    points, alarms, share = curve.rates()
    sensitivities = instances._share_at(alarms, share, rates, interpolate) if n_lesions else [float("nan")] * len(rates)
    return {
        **{metric.key: curve.value(metric.function) for metric in metrics_of("lesion")},
        "froc": exact_mean(sensitivities),
        "rates": [float(r) for r in rates],
        "sensitivities": sensitivities,
        "curve": {
            "threshold": points.threshold.tolist(),
            "false_alarms_per_bag": alarms.tolist(),
            "sensitivity": share.tolist(),
        },
        "n_lesions": n_lesions,
        "n_bags": n_bags,
        "n_marks": curve.n_peaks,
        "interpolated": interpolate,
        "pool": pool,
        "score_kind": kind,
        "notes": [*left_out, *([] if n_lesions else ["no lesion is known: froc is undefined"]), *notes],
    }


_AREA = (
    "share of the instances of {} bags flagged where at most 10 % of a patient's lesion instances are missed on "
    "average; threshold of the calibration, else for each patient that of the others (10 with lesions are needed)"
)
for _class in ("positive", "negative"):
    register_metric(
        Metric(
            f"bag_area_to_read_{_class}",
            "bag",
            f"area to read at 90 %, {_class} bags",
            -1,
            _AREA.format(_class),
            partial(area_to_read, positive=_class == "positive"),
            listed="instance",
            bounds=SHARE,
            title=f"Area to read at guaranteed 90 % sensitivity, {_class} cases",
        )
    )


_NEAR = partial(_doubt_rows, own=False)
_NEARNESS = "nearness of the score to the threshold in place of the uncertainty: what every map has"
for _metric in (
    Metric("inst_brier", "instance", "instance Brier score", -1,
           "mean squared error of instance probabilities, calibrated ones where there are; attention has none",
           lambda probs, truth: exact_mean(np.square(probs - truth)), "arrays", rows=_probability_rows,
           title="Brier score of probabilities", bounds=SHARE),
    Metric("inst_ece", "instance", "instance ECE", -1,
           "expected calibration error of instance probabilities: mean gap between said probability and observed share",
           lambda probs, truth: _ece(_two_columns(probs), truth.astype(int)), "arrays", rows=_probability_rows,
           title="Calibration error (ECE) of probabilities", bounds=SHARE),
    Metric("inst_error_auroc", "instance", "error AUROC of uncertainty", 1,
           "chance that a wrong call is less certain than a right one; 0.5 is chance, below it ranks backwards",
           OperatingPoints.roc_area, "points", rows=_doubt_rows, of_calls=True,
           title="Wrong calls told by uncertainty (AUROC)", bounds=SHARE, chance=0.5),
    Metric("inst_error_auroc_distance", "instance", "error AUROC of distance", 1, f"the same with {_NEARNESS}",
           OperatingPoints.roc_area, "points", rows=_NEAR, of_calls=True,
           title="Wrong calls told by the distance from the threshold (AUROC)", bounds=SHARE, chance=0.5),
    Metric("inst_risk_coverage", "instance", "risk-coverage area", -1,
           "mean share of wrong calls among the k most certain ones, over all k",
           OperatingPoints.risk_coverage_area, "points", rows=_doubt_rows, of_calls=True,
           title="Risk-coverage area of uncertainty", bounds=SHARE),
    Metric("inst_risk_coverage_distance", "instance", "risk-coverage area of distance", -1,
           f"the same with {_NEARNESS}", OperatingPoints.risk_coverage_area, "points", rows=_NEAR, of_calls=True,
           title="Risk-coverage area of the distance from the threshold", bounds=SHARE),
):  # fmt: skip
    register_metric(_metric)
