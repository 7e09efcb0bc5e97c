"""Lesions and what a map points at: connected pieces of the instance graph."""

from typing import NamedTuple

import numpy as np

from smmil.evaluate.instances import instance_score
from smmil.prediction import Prediction


class Marks(NamedTuple):
    """What the peaks of one case's map find, as rows (score, share of a lesion found, share of a false alarm)."""

    scores: np.ndarray
    hits: np.ndarray
    alarms: np.ndarray
    n_lesions: int
    n_peaks: int


def components(edges: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Number of the connected piece of each member, -1 outside; only edges between two members connect."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n, inside = len(member), edges[:, member[edges].all(0)]
    links = coo_matrix((np.ones(inside.shape[1]), tuple(inside)), shape=(n, n))
    piece = connected_components(links, directed=False)[1]
    found = np.full(n, -1)
    found[member] = np.unique(piece[member], return_inverse=True)[1]
    return found


def lesions(prediction: Prediction) -> np.ndarray:
    """Number of the lesion each instance belongs to, -1 outside: connected pieces of instances labelled positive."""
    assert prediction.edges is not None
    assert prediction.y_inst is not None
    return components(prediction.edges, prediction.y_inst > 0)


def peaks(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Number of the peak each instance belongs to, -1 elsewhere.

    A peak is a connected piece of equal scores with no neighbour that scores higher; mostly a single instance.
    """
    n, equal = len(scores), edges[:, scores[edges[0]] == scores[edges[1]]]
    plateau = components(equal, np.ones(n, dtype=bool))
    beaten = np.zeros(plateau.max() + 1, dtype=bool)
    for here, there in (edges, edges[::-1]):
        beaten[plateau[here[scores[there] > scores[here]]]] = True
    return components(equal, ~beaten[plateau])


def marks(prediction: Prediction, column: int | None = None) -> Marks:
    """Every peak as a mark that a reader would check: the lesion it finds, or the false alarm it is.

    A peak of several equally hot instances points at each of them with equal chance, so its shares are expectations:
    it finds a lesion with the share of its instances inside, is a false alarm with the share known to be negative, and
    neither with the share of unknown label. A lesion found twice counts once.
    """
    assert prediction.edges is not None
    assert prediction.y_inst is not None
    scores, lesion = instance_score(prediction, column), lesions(prediction)
    peak = peaks(scores, prediction.edges)
    rows = np.flatnonzero(peak >= 0)
    size = np.bincount(peak[rows])
    height = np.zeros(len(size))
    height[peak[rows]] = scores[rows]
    false_share = np.bincount(peak[rows], weights=prediction.y_inst[rows] == 0, minlength=len(size)) / size
    gain = _first_finds(peak[rows], lesion[rows], size, height)
    wrong = np.flatnonzero(false_share)
    return Marks(
        np.concatenate([gain[:, 0], height[wrong]]),
        np.concatenate([gain[:, 1], np.zeros(len(wrong))]),
        np.concatenate([np.zeros(len(gain)), false_share[wrong]]),
        int(lesion.max(initial=-1)) + 1,
        len(size),
    )


def _first_finds(peak: np.ndarray, lesion: np.ndarray, size: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Rows (score, chance that some lesion is found here for the first time), hottest peak first."""
    inside = lesion >= 0
    pairs, count = np.unique(np.stack([lesion[inside], peak[inside]]), axis=1, return_counts=True)
    missed: dict[int, float] = {}
    found = []
    for i in np.argsort(-height[pairs[1]], kind="stable"):
        which, where = pairs[:, i]
        share, before = count[i] / size[where], missed.get(which, 1.0)
        found.append((height[where], before * share))
        missed[which] = before * (1 - share)
    return np.array(found).reshape(-1, 2)
