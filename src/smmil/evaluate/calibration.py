"""Whether probabilities mean what they say."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import ConfigError
from smmil.evaluate.average import defined, exact_mean
from smmil.evaluate.cases import labelled_table
from smmil.prediction import Prediction

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
