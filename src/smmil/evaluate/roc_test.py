"""DeLong's test: whether two AUROCs of the same cases differ by more than chance."""

from typing import NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.ranking import auroc, count_below


class DeLong(NamedTuple):
    """Difference of two AUROCs (first minus second) with its standard error, z, two-sided p and interval."""

    auroc_a: float
    auroc_b: float
    difference: float
    std_error: float
    z: float
    p: float
    low: float
    high: float


def delong(scores_a: np.ndarray, scores_b: np.ndarray, truth: np.ndarray, level: float = 0.95) -> DeLong:
    """Compare two scores of the same independent cases (DeLong, DeLong, Clarke-Pearson 1988).

    Without difference and without variance (such as two perfect scores) p is 1; with fewer than two cases of a class
    everything but the AUROCs is nan.
    """
    from scipy.special import ndtr, ndtri

    truth = np.asarray(truth).astype(bool)
    pair = np.stack([np.asarray(scores_a, dtype=np.float64), np.asarray(scores_b, dtype=np.float64)])
    if not np.isfinite(pair).all():
        raise DataError("DeLong's test needs finite scores; at least one is not a number or infinite")
    first, second = (auroc(row, truth) for row in pair)
    covariance = auroc_covariance(pair, truth)
    error = float(np.sqrt(max(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1], 0.0)))
    gap = first - second
    z = gap / error if error else (0.0 if gap == 0 else float("nan"))
    z = float("nan") if np.isnan(covariance).any() else z
    reach = float(ndtri((1 + level) / 2)) * (error if not np.isnan(z) else float("nan"))
    return DeLong(first, second, gap, error, z, float(2 * ndtr(-abs(z))), gap - reach, gap + reach)


def auroc_covariance(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Covariance (m, m) of the AUROCs of m scores (m, n) of the same n cases; nan with fewer than two of a class.

    Each positive case gets the share of negatives it beats, each negative the share of positives that beat it, ties
    half; the sample covariances of these shares over their numbers add up. O(m n log n), by ranks.
    """
    positive, negative = int(truth.sum()), int((~truth).sum())
    if min(positive, negative) < 2:
        return np.full((len(scores), len(scores)), np.nan)
    beaten = np.stack([count_below(row[truth], row[~truth]) / negative for row in scores])
    beating = np.stack([1 - count_below(row[~truth], row[truth]) / positive for row in scores])
    return np.atleast_2d(np.cov(beaten)) / positive + np.atleast_2d(np.cov(beating)) / negative
