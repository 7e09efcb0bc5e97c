"""Instances of cases: which score counts, which labels are known, pools, pointing game and energies of maps."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from smmil.errors import ConfigError
from smmil.prediction import Prediction

POOLS = ("all", "per_bag", "positive_bags")


class Known(NamedTuple):
    """Scores of the instances whose label is known, and whether each is positive."""

    scores: np.ndarray
    truth: np.ndarray

    @property
    def both_classes(self) -> bool:
        return bool(self.truth.any() and not self.truth.all())


def instance_score(prediction: Prediction, column: int | None = None) -> np.ndarray:
    """One score per instance, float64: the only column, the second of two, or the column asked for."""
    k = prediction.scores.shape[1]
    if column is None and k > 2:
        raise ConfigError(f"{prediction.id}: scores have {k} columns, one per class; choose one (--column)")
    chosen = k - 1 if column is None else column
    if not 0 <= chosen < k:
        raise ConfigError(f"{prediction.id}: column {chosen} does not exist; scores have columns 0..{k - 1}")
    return prediction.scores[:, chosen].astype(np.float64)


def score_kind(predictions: Sequence[Prediction]) -> tuple[str, list[str]]:
    """Kind of the scores as stored in meta["score_kind"], and a note when the predictions disagree."""
    kinds = sorted({str(p.meta.get("score_kind", "unknown")) for p in predictions})
    if len(kinds) < 2:
        return (kinds or ["unknown"])[0], []
    return " + ".join(kinds), ["scores of different kinds are mixed; they are not comparable between bags"]


def known_instances(prediction: Prediction, column: int | None = None) -> Known:
    """Score and truth (label > 0) of the instances of one bag whose label is known; empty without labels."""
    scores = instance_score(prediction, column)
    if prediction.y_inst is None:
        return Known(scores[:0], np.zeros(0, dtype=bool))
    known = prediction.y_inst >= 0
    return Known(scores[known], prediction.y_inst[known] > 0)


def gather(parts: Sequence[Known]) -> Known:
    """The known instances of several bags as one set."""
    if not parts:
        return Known(np.zeros(0), np.zeros(0, dtype=bool))
    return Known(np.concatenate([k.scores for k in parts]), np.concatenate([k.truth for k in parts]))


def case_of_row(lengths: Sequence[int]) -> np.ndarray:
    """Index of the case each row belongs to when the rows of cases of these lengths are concatenated."""
    return np.repeat(np.arange(len(lengths)), np.array(lengths, dtype=np.int64))


def bags_of_pool(predictions: Sequence[Prediction], pool: str) -> list[Prediction]:
    """The bags a pool uses: those labelled positive for "positive_bags", else all."""
    return [p for p in predictions if pool != "positive_bags" or (p.y is not None and p.y > 0)]


def pointing(scores: np.ndarray, truth: np.ndarray) -> float:
    """1 when the hottest instance of a bag is positive, 0 when not; of equally hot ones the share of positives.

    nan unless both classes are present: where everything is lesion, or nothing, pointing proves nothing.
    """
    if truth.all() or not truth.any():
        return float("nan")
    return float(truth[scores == scores.max()].mean())


def undirected_pairs(edges: np.ndarray, n: int) -> np.ndarray:
    """(2, e): each undirected edge once, smaller instance first, without self-loops."""
    low, high = edges.min(0), edges.max(0)
    keys = np.unique((low * n + high)[low != high])
    return np.stack([keys // n, keys % n])


def laplacian_form(f: np.ndarray, pairs: np.ndarray) -> float:
    """f'L~f with the symmetrically normalised Laplacian of undirected pairs; isolated instances have L~_ii = 0."""
    a, b = pairs
    degree = np.bincount(pairs.ravel(), minlength=len(f))
    scaled = f / np.sqrt(np.maximum(degree, 1))
    return float(np.square(scaled[a] - scaled[b]).sum())


def rayleigh_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """f'L~f / f'f in [0, 2]; nan for f = 0."""
    size = float(f @ f)
    return laplacian_form(f, pairs) / size if size else float("nan")


def mean_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """f'L~f / N."""
    return laplacian_form(f, pairs) / len(f)


def minmax_energy(f: np.ndarray, pairs: np.ndarray) -> float:
    """E_L(f scaled to [0, 1]) / sum(A) with the plain Laplacian; nan for constant f or without edges."""
    a, b = pairs
    span, steps = float(f.max() - f.min()), float(np.square(f[a] - f[b]).sum())
    return steps / span**2 / (2 * len(a)) if span and len(a) else float("nan")
