"""Metrics of each level from predictions: whole cases, instances, energies of maps, lesions, and the threshold."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate import instances
from smmil.evaluate.bags import labelled_table
from smmil.evaluate.conformal import area_notes
from smmil.evaluate.instances import POOLS, RATES, KnownInstances, bags_of_pool, instance_score
from smmil.evaluate.metrics import _ANY, Metric, _bag_values, _class_counts, _ScoredLabels, metrics_of
from smmil.evaluate.ranking import OperatingPoints, _defined, exact_mean
from smmil.prediction import Prediction


def bag_metrics(predictions: Sequence[Prediction], threshold: float = 0.5) -> dict[str, Any]:
    """Metrics over all labelled cases at once, by key: auroc, auprc, f1, … and what else is registered.

    A case is called positive when its probability is at least `threshold`. With more than two classes the ranking
    metrics and f1 are macro averages (one class against the rest), the answer is the most probable class and
    `threshold` is unused; a class without cases is left out, except that f1 counts 0 for it if it was answered. What
    is undefined is nan, and `notes` says why.
    """
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
        notes += area_notes(labelled)
    return {
        "n": len(y),
        "n_positive": int((y > 0).sum()),
        "n_unlabelled": left_out,
        **values,
        "threshold": None if many else float(threshold),
        "notes": notes,
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
    bags = bags_of_pool(predictions, pool)
    parts = [(p, known) for p in bags if len((known := KnownInstances.of(p, column)).truth)]
    used = [(p, known) for p, known in parts if known.both_classes] if pool == "per_bag" else parts
    n_instances, n_positive = sum(len(k.truth) for _, k in used), sum(int(k.truth.sum()) for _, k in used)
    if pool == "per_bag":
        values, notes = _averaged(used, threshold)
    else:
        values = _instance_values(used, threshold)
        notes = _instance_notes(n_instances, n_positive, values)
    notes += _pool_notes(len(bags), len(parts), len(used), pool)
    if threshold is None:
        *first, last = [metric.key for metric in metrics_of("instance") if metric.needs_threshold]
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
        "notes": notes + kind_notes,
    }


_Parts = Sequence[tuple[Prediction, KnownInstances]]


def _instance_values(parts: _Parts, threshold: float | None) -> dict[str, float]:
    """Values by key of the instances of several bags together; without threshold only those that need none."""
    known = KnownInstances.together([known for _, known in parts])
    pooled = _ScoredLabels(known.scores, known.truth, threshold)

    def value(metric: Metric) -> float:
        if metric.per_case:
            return exact_mean(_defined(metric.function(*known) for _, known in parts if known.both_classes))
        if metric.basis == "predictions":
            return metric.function([p for p, _ in parts]) if parts else float("nan")
        return pooled.value(metric) if len(known.truth) else float("nan")

    return {m.key: value(m) for m in metrics_of("instance") if threshold is not None or not m.needs_threshold}


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


def _averaged(parts: _Parts, threshold: float | None) -> tuple[dict[str, float], list[str]]:
    rows = [_instance_values([part], threshold) for part in parts]
    if not rows:
        return _instance_values([], threshold), ["no bag has known instances of both classes"]
    values, notes = {}, []
    for name in rows[0]:
        numbers = _defined(row[name] for row in rows)
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
    bags = bags_of_pool(predictions, pool)
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
