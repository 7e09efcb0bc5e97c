"""Lesion detection: connected lesions, peaks of a map, and FROC."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate.bags import score_kind
from smmil.evaluate.instances import bags_of_pool, case_of_row, instance_score
from smmil.evaluate.ranking import TOLERANCE, OperatingPoints, Ranking, exact_mean
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


RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def froc(
    predictions: Sequence[Prediction],
    rates: Sequence[float] = RATES,
    pool: str = "all",
    column: int | None = None,
    interpolate: bool = False,
) -> dict[str, Any]:
    """Share of lesions found at each number of false alarms per bag, and their mean under the key `froc`.

    A lesion is a connected piece of positive instances, a mark is a local maximum of the scores on the same edges. A
    mark finds the lesion it lies in and is a false alarm outside; marks on instances of unknown label are neither. At
    each rate stands the highest share of lesions that some threshold reaches with at most that many alarms per bag.
    interpolate=True draws straight lines between thresholds instead, as the script of the CAMELYON16 challenge does.

    pool  "all" bags, or "positive_bags" only; bags without edges or without any instance label are left out
    Keys: froc, rates, sensitivities, curve {threshold, false_alarms_per_bag, sensitivity}, n_lesions, n_bags, notes, …
    """
    check_choice(pool, ("all", "positive_bags"), "pool of froc (it counts alarms per bag already)")
    if not len(rates) or min(rates) < 0:
        raise ConfigError(f"rates: got {list(rates)}, expected false alarms per bag such as {list(RATES)}")
    bags = bags_of_pool(predictions, pool)
    cases = marked_cases(bags, column)
    kind, notes = score_kind(predictions)
    curve = FrocCurve([m for m in cases if m is not None])
    sensitivities = curve.at(rates, interpolate=interpolate)
    return {
        "froc": exact_mean(sensitivities),
        "rates": [float(r) for r in rates],
        "sensitivities": sensitivities,
        "curve": curve.lists(),
        "n_lesions": int(curve.n_lesions.sum()),
        "n_bags": len(curve.n_lesions),
        "n_marks": curve.n_peaks,
        "interpolated": interpolate,
        "pool": pool,
        "score_kind": kind,
        "notes": _remarks(bags, curve) + notes,
    }


def marked_cases(predictions: Sequence[Prediction], column: int | None = None) -> list[Marks | None]:
    """The marks of each case; None where edges or instance labels are missing."""
    return [marks(p, column) if usable(p) else None for p in predictions]


def usable(prediction: Prediction) -> bool:
    """Whether a case has the edges and at least one of the instance labels that FROC needs."""
    return prediction.edges is not None and prediction.y_inst is not None and bool((prediction.y_inst >= 0).any())


class FrocCurve:
    """Marks of several cases, sorted once; weights count cases several times."""

    def __init__(self, cases: Sequence[Marks]):
        none = np.zeros(0)
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

    def at(self, rates: Sequence[float], weights: np.ndarray | None = None, interpolate: bool = False) -> list[float]:
        """Share of the lesions found at each number of false alarms per bag; nan without lesions."""
        lesions = self.n_lesions.sum() if weights is None else weights @ self.n_lesions
        if not lesions:
            return [float("nan")] * len(rates)
        _, alarms, share = self.rates(weights)
        if interpolate:
            return _between(np.append(0.0, alarms), np.append(0.0, share), rates)
        return [float(share[alarms <= rate + TOLERANCE].max(initial=0.0)) for rate in rates]

    def lists(self) -> dict[str, list[float]]:
        """The whole curve as plain lists."""
        points, alarms, share = self.rates()
        return {
            "threshold": points.threshold.tolist(),
            "false_alarms_per_bag": alarms.tolist(),
            "sensitivity": share.tolist(),
        }


def _between(alarms: np.ndarray, share: np.ndarray, rates: Sequence[float]) -> list[float]:
    """Straight lines through the points; where the curve climbs upright, its top counts."""
    top = np.append(np.diff(alarms) > 0, True)
    return np.interp(rates, alarms[top], share[top]).tolist()


def _remarks(bags: Sequence[Prediction], curve: FrocCurve) -> list[str]:
    notes = []
    if len(curve.n_lesions) < len(bags):
        missing = len(bags) - len(curve.n_lesions)
        notes.append(f"{missing} of {len(bags)} bags have no edges or no known instance label and are left out")
    if not curve.n_lesions.sum():
        notes.append("no lesion is known: froc is undefined")
    return notes
