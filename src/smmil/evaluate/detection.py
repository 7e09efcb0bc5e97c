"""Lesion detection: connected lesions, peaks of a map, and the FROC curve."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smmil.evaluate.instances import case_of_row, instance_score
from smmil.evaluate.ranking import TOLERANCE, OperatingPoints, Ranking, exact_mean
from smmil.prediction import Prediction

RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


class Marks(NamedTuple):
    """Peaks of one case's map as rows (score, share of a lesion found, share of a false alarm)."""

    scores: np.ndarray
    hits: np.ndarray
    alarms: np.ndarray
    n_lesions: int
    n_peaks: int


def components(edges: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Index of the connected component of each member, -1 outside; only edges between two members connect."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n, inside = len(member), edges[:, member[edges].all(0)]
    links = coo_matrix((np.ones(inside.shape[1]), tuple(inside)), shape=(n, n))
    piece = connected_components(links, directed=False)[1]
    found = np.full(n, -1)
    found[member] = np.unique(piece[member], return_inverse=True)[1]
    return found


def lesions(prediction: Prediction) -> np.ndarray:
    """Index of the lesion each instance belongs to, -1 outside: connected components of positive instances."""
    assert prediction.edges is not None
    assert prediction.y_inst is not None
    return components(prediction.edges, prediction.y_inst > 0)


def peaks(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Index of the peak each instance belongs to, -1 outside.

    A peak is a connected piece of equal scores with no neighbour that scores higher; mostly a single instance.
    """
    n, equal = len(scores), edges[:, scores[edges[0]] == scores[edges[1]]]
    plateau = components(equal, np.ones(n, dtype=bool))
    beaten = np.zeros(plateau.max() + 1, dtype=bool)
    for here, there in (edges, edges[::-1]):
        beaten[plateau[here[scores[there] > scores[here]]]] = True
    return components(equal, ~beaten[plateau])


def marks(prediction: Prediction, column: int | None = None) -> Marks:
    """Peaks of the map, each with the lesion it finds or the false alarm it is.

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


def usable(prediction: Prediction) -> bool:
    """Whether a case has the edges and at least one of the instance labels that FROC needs."""
    return prediction.edges is not None and prediction.y_inst is not None and bool((prediction.y_inst >= 0).any())


class FrocCurve:
    """Marks of the usable cases, sorted once; weights say how often each of them counts."""

    def __init__(self, predictions: Sequence[Prediction], column: int | None = None):
        cases, none = [marks(p, column) for p in predictions if usable(p)], np.zeros(0)
        scores, hits, alarms = (
            np.concatenate([none, *(getattr(m, name) for m in cases)]) for name in ("scores", "hits", "alarms")
        )
        self.n_lesions = np.array([m.n_lesions for m in cases], dtype=np.int64)
        self.n_peaks = sum(m.n_peaks for m in cases)
        self.ranking = Ranking(scores, hits, alarms)
        self.case_of_mark = case_of_row([len(m.scores) for m in cases])[self.ranking.order]

    def rates(self, weights: np.ndarray | None = None) -> tuple[OperatingPoints, np.ndarray, np.ndarray]:
        """Thresholds, false alarms per bag and share of the lesions found, strictest first; nan without lesions."""
        weights = np.ones(len(self.n_lesions), dtype=np.int64) if weights is None else weights
        points = self.ranking.points(weights[self.case_of_mark])
        total, bags = float(weights @ self.n_lesions), float(weights.sum())
        share = points.true_positives / total if total else np.full(len(points.threshold), np.nan)
        return points, points.false_positives / max(bags, 1.0), np.minimum(share, 1.0)

    def value(self, function: Callable[[np.ndarray, np.ndarray], float], weights: np.ndarray | None = None) -> float:
        """A function of (false alarms per bag, share of the lesions found); nan without lesions."""
        lesions = self.n_lesions.sum() if weights is None else weights @ self.n_lesions
        return function(*self.rates(weights)[1:]) if lesions else float("nan")

    def lists(self) -> dict[str, list[float]]:
        """The whole curve as plain lists."""
        points, alarms, share = self.rates()
        return {
            "threshold": points.threshold.tolist(),
            "false_alarms_per_bag": alarms.tolist(),
            "sensitivity": share.tolist(),
        }


def share_at(alarms: np.ndarray, share: np.ndarray, rates: Sequence[float], interpolate: bool = False) -> list[float]:
    """Highest share of the lesions found within each number of false alarms per bag.

    interpolate  on straight lines between thresholds; where the curve climbs upright, its top counts
    """
    if not interpolate:
        return [float(share[alarms <= rate + TOLERANCE].max(initial=0.0)) for rate in rates]
    alarms, share = np.append(0.0, alarms), np.append(0.0, share)
    top = np.append(np.diff(alarms) > 0, True)
    return [float(value) for value in np.interp(rates, alarms[top], share[top])]


def mean_share(alarms: np.ndarray, share: np.ndarray) -> float:
    """Mean share of the lesions found at the usual numbers of false alarms per bag."""
    return exact_mean(share_at(alarms, share, RATES))
