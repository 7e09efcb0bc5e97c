"""How well whole cases are classified."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate import decision
from smmil.evaluate.ranking import auprc, auroc
from smmil.prediction import Prediction

_CLIP = 1e-7
_UNDEFINED = ("auroc", "auprc", "f1", "accuracy", "balanced_accuracy", "loss")


def bag_metrics(predictions: Sequence[Prediction], threshold: float = 0.5) -> dict[str, Any]:
    """Metrics over all labelled cases at once: auroc, auprc, f1, accuracy, balanced_accuracy, loss (cross-entropy).

    A case is called positive when its probability is at least `threshold`. With more than two classes auroc, auprc and
    f1 are macro averages (one class against the rest), the answer is the most probable class and `threshold` is unused.
    What is undefined is nan, and `notes` says why.
    """
    predictions = list(predictions)
    labelled = [p for p in predictions if p.y is not None]
    y = np.array([p.y for p in labelled], dtype=np.int64)
    probs = _probability_table(labelled)
    many = probs.shape[1] > 2
    found = {"n": len(y), "n_positive": int((y > 0).sum()), "n_unlabelled": len(predictions) - len(labelled)}
    if len(y) == 0:
        values, notes = dict.fromkeys(_UNDEFINED, float("nan")), ["no case has a label; nothing can be measured"]
    else:
        values, notes = _many_classes(probs, y) if many else _two_classes(probs, y, threshold)
        values["loss"] = _cross_entropy(probs[np.arange(len(y)), y])
    if found["n_unlabelled"] and len(y):
        notes.append(f"{found['n_unlabelled']} cases without a label are left out")
    return {**found, **values, "threshold": None if many else float(threshold), "notes": notes}


def _probability_table(predictions: Sequence[Prediction]) -> np.ndarray:
    """(b, C) with C >= 2: a single probability p becomes (1 - p, p)."""
    widths = {len(p.probs): p.id for p in predictions}
    if len(widths) > 1:
        listed = ", ".join(f"{case}: {width}" for width, case in sorted(widths.items()))
        raise DataError(f"predictions of different numbers of classes cannot be evaluated together ({listed})")
    if not predictions:
        return np.zeros((0, 2))
    table = np.stack([p.probs for p in predictions])
    return table if table.shape[1] > 1 else np.hstack([1 - table, table])


def _two_classes(probs: np.ndarray, y: np.ndarray, threshold: float) -> tuple[dict[str, Any], list[str]]:
    positive, truth = probs[:, 1], y > 0
    c = decision.count(positive >= threshold, truth)
    values = {
        "auroc": auroc(positive, truth),
        "auprc": auprc(positive, truth),
        "f1": decision.f1(c),
        "accuracy": (c.tp + c.tn) / len(y),
        "balanced_accuracy": (decision.recall(c) + decision.specificity(c)) / 2,
    }
    return values, _reasons(values, truth)


def _reasons(values: dict[str, Any], truth: np.ndarray) -> list[str]:
    notes = []
    if truth.all() or not truth.any():
        kind = "positive" if truth.all() else "negative"
        notes.append(f"all {len(truth)} labelled cases are {kind}: auroc, auprc and balanced accuracy are undefined")
    if np.isnan(values["f1"]):
        notes.append("no case is positive and none was called positive: f1 is undefined")
    return notes


def _many_classes(probs: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], list[str]]:
    called = probs.argmax(1)
    classes = range(probs.shape[1])
    split = [c for c in classes if 0 < (y == c).sum() < len(y)]
    counts = [decision.count(called == c, y == c) for c in classes]
    values = {
        "auroc": _mean([auroc(probs[:, c], y == c) for c in split]),
        "auprc": _mean([auprc(probs[:, c], y == c) for c in split]),
        "f1": _mean([f for c in counts if not np.isnan(f := decision.f1(c))]),
        "accuracy": float((called == y).mean()),
        "balanced_accuracy": _mean([decision.recall(counts[c]) for c in split]),
    }
    left_out = [c for c in classes if c not in split]
    if not split:
        return values, [f"all {len(y)} labelled cases are of class {y[0]}: auroc, auprc, balanced accuracy undefined"]
    return values, [f"classes without cases are left out of the macro averages: {left_out}"] if left_out else []


def _cross_entropy(probability_of_the_truth: np.ndarray) -> float:
    """Mean of -log p, p clipped; summed exactly, so the order of the cases does not matter."""
    return math.fsum(-np.log(np.clip(probability_of_the_truth, _CLIP, 1 - _CLIP))) / len(probability_of_the_truth)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
