"""How well scores put positives above negatives, at every threshold at once."""

from typing import NamedTuple

import numpy as np


class OperatingPoints(NamedTuple):
    """Counts when everything with score >= threshold is called positive, from the strictest threshold down."""

    threshold: np.ndarray
    true_positives: np.ndarray
    false_positives: np.ndarray


def operating_points(scores: np.ndarray, truth: np.ndarray) -> OperatingPoints:
    """One row per distinct score, so tied scores are always called together. O(n log n)."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], truth[order].astype(bool)
    last_of_tie = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)[: len(ranked)]
    found = np.cumsum(hits)[last_of_tie]
    return OperatingPoints(ranked[last_of_tie], found, last_of_tie + 1 - found)


def auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Probability that a random positive scores above a random negative, ties counting half; nan with one class."""
    points = operating_points(scores, truth)
    hits, alarms = np.append(0, points.true_positives), np.append(0, points.false_positives)
    pairs = float(hits[-1]) * float(alarms[-1])
    area = float(np.sum(np.diff(alarms) * (hits[1:] + hits[:-1]) / 2))
    return area / pairs if pairs else float("nan")


def auprc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Average precision: precision at each threshold weighted by the recall gained there; nan with one class."""
    points = operating_points(scores, truth)
    hits = points.true_positives
    if len(hits) == 0 or hits[-1] == 0 or points.false_positives[-1] == 0:
        return float("nan")
    precision = hits / (hits + points.false_positives)
    return float(np.sum(np.diff(hits, prepend=0) * precision) / hits[-1])
