"""Ranking and decision metrics of scores against labels: ROC, precision-recall, F1, thresholds."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Spread(NamedTuple):
    """Mean of n values with both conventions of the standard deviation; nan where undefined."""

    mean: float
    sample_std: float
    population_std: float
    n: int


def exact_mean(values: Sequence[float]) -> float:
    """Mean of the values, summed without rounding; nan when there are none."""
    return math.fsum(values) / len(values) if len(values) else float("nan")


def defined(values: Iterable[float]) -> list[float]:
    """Values that are not nan."""
    return [float(v) for v in values if not math.isnan(v)]


def spread(values: Iterable[float]) -> Spread:
    """Mean and deviations of the values of repeated runs: divided by n - 1 (sample) and by n (population).

    The two differ by sqrt(n / (n - 1)): 12 % for five runs. A table should say which one it shows.
    """
    values = [float(v) for v in values]
    mean, n = exact_mean(values), len(values)
    squares = math.fsum((v - mean) ** 2 for v in values)
    sample = math.sqrt(squares / (n - 1)) if n > 1 else float("nan")
    return Spread(mean, sample, math.sqrt(squares / n) if n else float("nan"), n)


# Shares such as 0.1 of 10 negatives are not exact in binary; this much is forgiven when they are compared.
TOLERANCE = 1e-9


class OperatingPoints(NamedTuple):
    """Counts when everything with score >= threshold is called positive, from the strictest threshold down."""

    threshold: np.ndarray
    true_positives: np.ndarray
    false_positives: np.ndarray


class Ranking:
    """Scores sorted once and counted with any weights, as the bootstrap does.

    hits, alarms  how much of a true and of a false positive each score is: 1 and 0 for a positive instance
    """

    def __init__(self, scores: np.ndarray, hits: np.ndarray, alarms: np.ndarray):
        # shares of a hit are summed in an order of their own, so that the order of the cases leaves no rounding behind
        whole = hits.dtype.kind in "bi"
        self.order = np.argsort(-scores, kind="stable") if whole else np.lexsort((hits, alarms, -scores))
        ranked = scores[self.order]
        self.last_of_tie = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)[: len(ranked)]
        self.threshold = ranked[self.last_of_tie]
        kind = np.int64 if whole else np.float64
        self.hits, self.alarms = hits[self.order].astype(kind), alarms[self.order].astype(kind)

    def points(self, weights: np.ndarray | None = None) -> OperatingPoints:
        """One row per distinct score, so tied scores are always called together.

        weights  how often each row counts, in the order of `order`, best first
        """
        hits, alarms = self.hits, self.alarms
        if weights is not None:
            hits, alarms = hits * weights, alarms * weights
        found, wrong = (np.cumsum(kind)[self.last_of_tie] for kind in (hits, alarms))
        return OperatingPoints(self.threshold, found, wrong)


def operating_points(scores: np.ndarray, truth: np.ndarray) -> OperatingPoints:
    """One row per distinct score, so tied scores are always called together. O(n log n)."""
    truth = np.asarray(truth).astype(bool)
    return Ranking(np.asarray(scores), truth, ~truth).points()


def auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Probability that a random positive scores above a random negative, ties counting half; nan with one class."""
    return roc_area(operating_points(scores, truth))


def _auprc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Average precision: precision at each threshold weighted by the recall gained there; nan with one class."""
    return average_precision(operating_points(scores, truth))


def roc_area(points: OperatingPoints) -> float:
    """Area under the curve of true against false positives, both scaled to 1."""
    hits, alarms = np.append(0, points.true_positives), np.append(0, points.false_positives)
    pairs = float(hits[-1]) * float(alarms[-1])
    area = float(np.sum(np.diff(alarms) * (hits[1:] + hits[:-1]) / 2))
    return area / pairs if pairs else float("nan")


def average_precision(points: OperatingPoints) -> float:
    """Precision averaged over the true positives in the order in which they are found."""
    hits = points.true_positives
    if not _both_classes(points):
        return float("nan")
    called = np.maximum(hits + points.false_positives, 1)
    return float(np.sum(np.diff(hits, prepend=0) * (hits / called)) / hits[-1])


def sensitivity_at(points: OperatingPoints, specificity: float) -> float:
    """The highest sensitivity of a threshold that leaves at least this specificity; nan with one class."""
    if not _both_classes(points):
        return float("nan")
    allowed = (1 - specificity) * points.false_positives[-1] + TOLERANCE
    within = points.true_positives[points.false_positives <= allowed]
    return float(within.max(initial=0) / points.true_positives[-1])


def count_below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each value the number of others below it, ties counting half. O(n log n)."""
    ranked = np.sort(others)
    return (np.searchsorted(ranked, values, "left") + np.searchsorted(ranked, values, "right")) / 2


def _both_classes(points: OperatingPoints) -> bool:
    return bool(len(points.threshold) and points.true_positives[-1] > 0 and points.false_positives[-1] > 0)


class Counts(NamedTuple):
    """Confusion counts: true and false positives, false and true negatives."""

    tp: int
    fp: int
    fn: int
    tn: int


def count(called: np.ndarray, truth: np.ndarray) -> Counts:
    """Confusion counts of boolean calls against the boolean truth."""
    tp, positive_calls, positives = int((called & truth).sum()), int(called.sum()), int(truth.sum())
    fp, fn = positive_calls - tp, positives - tp
    return Counts(tp, fp, fn, len(truth) - tp - fp - fn)


def ratio(part: float, whole: float) -> float:
    """part / whole; nan when there is nothing to divide by."""
    return part / whole if whole else float("nan")


def f1(c: Counts) -> float:
    """2 TP / (2 TP + FP + FN); nan when nothing is positive and nothing was called."""
    return ratio(2 * c.tp, 2 * c.tp + c.fp + c.fn)


def precision(c: Counts) -> float:
    return ratio(c.tp, c.tp + c.fp)


def recall(c: Counts) -> float:
    return ratio(c.tp, c.tp + c.fn)


def _specificity(c: Counts) -> float:
    return ratio(c.tn, c.tn + c.fp)


def iou(c: Counts) -> float:
    """TP / (TP + FP + FN): overlap of the called and the true area over their union."""
    return ratio(c.tp, c.tp + c.fp + c.fn)


def accuracy(c: Counts) -> float:
    return ratio(c.tp + c.tn, sum(c))


def balanced_accuracy(c: Counts) -> float:
    """Mean of sensitivity and specificity; nan with one class."""
    return (recall(c) + _specificity(c)) / 2
