"""Bag-level metrics and calibration."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate import ranking
from smmil.evaluate.ranking import average_precision, defined, exact_mean, operating_points, roc_area, sensitivity_at
from smmil.prediction import Prediction

UNITS = ("patient", "bag")
_PATIENT_KEYS = ("patient", "group")


def labelled_table(predictions: Sequence[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (b, C) with C >= 2 and labels (b,) of the labelled cases; a single probability p is (1 - p, p)."""
    labelled = [p for p in predictions if p.y is not None]
    return probability_table(labelled), np.array([p.y for p in labelled], dtype=np.int64)


def probability_table(predictions: Sequence[Prediction]) -> np.ndarray:
    """(b, C) with C >= 2: a single probability p becomes (1 - p, p)."""
    widths = {len(p.probs): p.id for p in predictions}
    if len(widths) > 1:
        listed = ", ".join(f"{case}: {width}" for width, case in sorted(widths.items()))
        raise DataError(f"predictions of different numbers of classes cannot be evaluated together ({listed})")
    if not predictions:
        return np.zeros((0, 2))
    table = np.stack([p.probs for p in predictions])
    return table if table.shape[1] > 1 else np.hstack([1 - table, table])


def patient_of(prediction: Prediction) -> str | None:
    """The patient a case belongs to, as meta["patient"] or meta["group"] says; None when neither does."""
    named = (prediction.meta.get(key) for key in _PATIENT_KEYS)
    return next((str(name) for name in named if name not in (None, "")), None)


def units_of(predictions: Sequence[Prediction], unit: str = "patient") -> tuple[np.ndarray, list[str]]:
    """Number of the independent unit of each case, counted in order of the units' names, and remarks about it.

    A case without a patient stands for itself, and a remark says so.
    """
    check_choice(unit, UNITS, "unit")
    patients = [patient_of(p) if unit == "patient" else None for p in predictions]
    names = [("case", p.id) if who is None else ("patient", who) for p, who in zip(predictions, patients, strict=True)]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    remarks = [] if unit == "bag" else _remarks(predictions, patients)
    return np.array([number[name] for name in names], dtype=np.int64), remarks


def resampled_in_words(predictions: Sequence[Prediction]) -> str:
    """What is drawn from these cases: "12 patients resampled", or "10 cases resampled, patients unknown"."""
    count, missing = len(set(units_of(predictions)[0].tolist())), sum(patient_of(p) is None for p in predictions)
    if missing == len(predictions):
        return f"{count} cases resampled, patients unknown"
    if _own_ids_only(predictions):
        return f"{count} cases resampled, patients unknown or of one case each"
    return f"{count} patients resampled" + (f", counting {missing} cases without one" if missing else "")


def _own_ids_only(predictions: Sequence[Prediction]) -> bool:
    """Whether each case gives its own id as its patient: all that older files of cases without a patient say."""
    return all(patient_of(p) == p.id for p in predictions)


def score_kind(predictions: Sequence[Prediction]) -> tuple[str, list[str]]:
    """What the scores are, as the predictions say, and a remark when they disagree."""
    kinds = sorted({str(p.meta.get("score_kind", "unknown")) for p in predictions})
    if len(kinds) < 2:
        return (kinds or ["unknown"])[0], []
    return " + ".join(kinds), ["scores of different kinds are mixed; they are not comparable between bags"]


def _remarks(predictions: Sequence[Prediction], patients: Sequence[str | None]) -> list[str]:
    missing, alone = sum(who is None for who in patients), "every case counts as a patient of its own"
    if predictions and missing == len(patients):
        return [f"no prediction names its patient (meta: patient or group): {alone}"]
    if predictions and _own_ids_only(predictions):
        return [f"each prediction gives its own id as its patient: patients are unknown or have one case each; {alone}"]
    each = "each counts as a patient of its own"
    return [f"{missing} of {len(patients)} predictions name no patient; {each}"] if missing else []


BINS = 10


def reliability_curve(predictions: Sequence[Prediction], bins: int = BINS) -> dict[str, Any]:
    """How often what was said with a probability came true, in bins of equal width: the reliability curve and its ECE.

    Two classes: P(positive) against the share of positive cases. More: probability of the most probable class against
    the share of cases in which it was right. Lists of equal length: `low`, `high` (a bin is (low, high], the first one
    holds 0 too), `n`, `mean_probability`, `observed`; nan in empty bins. `ece` is the mean gap weighted by n,
    `largest_gap` the largest one.
    """
    if bins < 1:
        raise ConfigError(f"bins: got {bins}, expected at least 1")
    edges = np.linspace(0, 1, bins + 1)
    counts, mean, observed = _binned(*_claims(*labelled_table(predictions)), edges)
    return {
        "low": edges[:-1].tolist(),
        "high": edges[1:].tolist(),
        "n": counts,
        "mean_probability": mean,
        "observed": observed,
        "ece": _mean_gap(counts, mean, observed),
        "largest_gap": max(defined(abs(m - o) for m, o in zip(mean, observed, strict=True)), default=float("nan")),
    }


def ece(probs: np.ndarray, y: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error of a (b, C) table of probabilities."""
    return _mean_gap(*_binned(*_claims(probs, y), np.linspace(0, 1, bins + 1)))


def brier(probs: np.ndarray, y: np.ndarray) -> float:
    """Mean squared error of the probabilities: (p - y)^2 for two classes in [0, 1], summed over classes in [0, 2]."""
    if probs.shape[1] == 2:
        return exact_mean(np.square(probs[:, 1] - (y > 0)))
    return exact_mean(np.square(probs - np.eye(probs.shape[1])[y]).sum(1))


def _claims(probs: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What was said with which probability, and whether it came true."""
    if probs.shape[1] == 2:
        return probs[:, 1], (y > 0).astype(np.float64)
    return probs.max(1), (probs.argmax(1) == y).astype(np.float64)


def _binned(said: np.ndarray, right: np.ndarray, edges: np.ndarray) -> tuple[list[int], list[float], list[float]]:
    """Per bin: number of cases, mean probability, share that came true."""
    place = np.searchsorted(edges[1:-1], said)
    members = [place == b for b in range(len(edges) - 1)]
    mean, observed = ([exact_mean(values[m]) for m in members] for values in (said, right))
    return [int(m.sum()) for m in members], mean, observed


def _mean_gap(counts: list[int], mean: list[float], observed: list[float]) -> float:
    """Mean over the cases of |mean probability - observed share| of their bin; nan without cases."""
    gaps = [n * abs(m - o) for n, m, o in zip(counts, mean, observed, strict=True) if n]
    return math.fsum(gaps) / sum(counts) if gaps else float("nan")


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
    c = ranking.count(positive >= threshold, truth)
    values = {
        **_ranking(positive, truth),
        "f1": ranking.f1(c),
        "accuracy": ranking.accuracy(c),
        "balanced_accuracy": ranking.balanced_accuracy(c),
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
    counts = [ranking.count(called == c, y == c) for c in classes]
    rows = [_ranking(probs[:, c], y == c) for c in split]
    values = {
        **{name: exact_mean([row[name] for row in rows]) for name in ("auroc", "auprc", *SPECIFICITIES)},
        "f1": exact_mean(defined(ranking.f1(c) for c in counts)),
        "accuracy": float((called == y).mean()),
        "balanced_accuracy": exact_mean([ranking.recall(counts[c]) for c in split]),
    }
    one_only = [f"all {len(y)} labelled cases are of class {y[0]}: auroc, auprc, balanced accuracy undefined"]
    return values, ([] if split else one_only) + _without_cases(counts)


def _without_cases(counts: Sequence[ranking.Counts]) -> list[str]:
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
