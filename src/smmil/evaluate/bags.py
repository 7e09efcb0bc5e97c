"""How well whole cases are classified."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.evaluate import decision
from smmil.evaluate.average import defined, exact_mean
from smmil.evaluate.calibration import brier, ece
from smmil.evaluate.cases import labelled_table
from smmil.evaluate.ranking import average_precision, operating_points, roc_area, sensitivity_at
from smmil.prediction import Prediction

SPECIFICITIES = {"sensitivity_at_90": 0.90, "sensitivity_at_95": 0.95}
BAG_METRICS = ("auroc", "auprc", "f1", "accuracy", "balanced_accuracy", *SPECIFICITIES, "brier", "ece", "loss")
_CLIP = 1e-7


def bag_metrics(predictions: Sequence[Prediction], threshold: float = 0.5) -> dict[str, Any]:
    """Metrics over all labelled cases at once.

    auroc, auprc, f1, accuracy, balanced_accuracy, sensitivity_at_90 and _95 (at that specificity, in percent), brier,
    ece (ten bins of equal width) and loss (cross-entropy). A case is called positive when its probability is at least
    `threshold`. With more than two classes the ranking metrics and f1 are macro averages (one class against the rest),
    the answer is the most probable class and `threshold` is unused; a class without cases is left out, except that f1
    counts 0 for it if it was answered. What is undefined is nan, and `notes` says why.
    """
    predictions = list(predictions)
    probs, y = labelled_table(predictions)
    many = probs.shape[1] > 2
    found = {"n": len(y), "n_positive": int((y > 0).sum()), "n_unlabelled": len(predictions) - len(y)}
    if len(y) == 0:
        values, notes = dict.fromkeys(BAG_METRICS, float("nan")), ["no case has a label; nothing can be measured"]
    else:
        values, notes = _many_classes(probs, y) if many else _two_classes(probs, y, threshold)
        values |= {"brier": brier(probs, y), "ece": ece(probs, y), "loss": _cross_entropy(probs, y)}
    if found["n_unlabelled"] and len(y):
        notes.append(f"{found['n_unlabelled']} cases without a label are left out")
    return {**found, **values, "threshold": None if many else float(threshold), "notes": notes}


def _two_classes(probs: np.ndarray, y: np.ndarray, threshold: float) -> tuple[dict[str, Any], list[str]]:
    positive, truth = probs[:, 1], y > 0
    c = decision.count(positive >= threshold, truth)
    values = {
        **_ranking(positive, truth),
        "f1": decision.f1(c),
        "accuracy": decision.accuracy(c),
        "balanced_accuracy": decision.balanced_accuracy(c),
    }
    return values, _reasons(values, truth)


def _ranking(scores: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """The metrics that need no threshold."""
    points = operating_points(scores, truth)
    found = {"auroc": roc_area(points), "auprc": average_precision(points)}
    return found | {name: sensitivity_at(points, level) for name, level in SPECIFICITIES.items()}


def _reasons(values: dict[str, Any], truth: np.ndarray) -> list[str]:
    notes = []
    if truth.all() or not truth.any():
        kind = "positive" if truth.all() else "negative"
        notes.append(
            f"all {len(truth)} labelled cases are {kind}: auroc, auprc, balanced accuracy and "
            "sensitivity at a specificity are undefined"
        )
    if np.isnan(values["f1"]):
        notes.append("no case is positive and none was called positive: f1 is undefined")
    return notes


def _many_classes(probs: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], list[str]]:
    called = probs.argmax(1)
    classes = range(probs.shape[1])
    split = [c for c in classes if 0 < (y == c).sum() < len(y)]
    counts = [decision.count(called == c, y == c) for c in classes]
    rows = [_ranking(probs[:, c], y == c) for c in split]
    values = {
        **{name: exact_mean([row[name] for row in rows]) for name in ("auroc", "auprc", *SPECIFICITIES)},
        "f1": exact_mean(defined(decision.f1(c) for c in counts)),
        "accuracy": float((called == y).mean()),
        "balanced_accuracy": exact_mean([decision.recall(counts[c]) for c in split]),
    }
    one_only = [f"all {len(y)} labelled cases are of class {y[0]}: auroc, auprc, balanced accuracy undefined"]
    return values, ([] if split else one_only) + _without_cases(counts)


def _without_cases(counts: Sequence[decision.Counts]) -> list[str]:
    """Which classes have no case, and which of them were answered all the same: wrongly, so their f1 is 0."""
    absent = [c for c, found in enumerate(counts) if found.tp + found.fn == 0]
    wrong = [c for c in absent if counts[c].fp]
    if not absent:
        return []
    but = f"; f1 counts 0 for those that were answered all the same: {wrong}" if wrong else ""
    return [f"classes without cases are left out of the macro averages: {absent}{but}"]


def _cross_entropy(probs: np.ndarray, y: np.ndarray) -> float:
    """Mean of -log P(true class), clipped; summed exactly, so the order of the cases does not matter."""
    of_the_truth = probs[np.arange(len(y)), y]
    return exact_mean(-np.log(np.clip(of_the_truth, _CLIP, 1 - _CLIP)))
