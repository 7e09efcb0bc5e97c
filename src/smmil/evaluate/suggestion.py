"""Which regions an expert should mark next: uncertain ones and likely lesions, large and unlike each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError
from smmil.evaluate.bags import need_target
from smmil.evaluate.conformal import shared_calibration
from smmil.evaluate.instances import instance_score
from smmil.evaluate.probability import calibrated_probability
from smmil.prediction import Prediction


class Region(NamedTuple):
    """Neighbouring instances of one case that are worth marking together.

    doubt   mean over the instances of how close the model is to a coin toss, from 0 (sure) to 1
    gain    what the greedy choice valued it at when it was its turn: doubt or rank, size, and how new it is
    why     UNCERTAIN or LIKELY: what it was chosen for
    lesions  how many of the instances the model takes for lesions: by calibrated probabilities, else by the threshold
    """

    id: str
    instances: np.ndarray
    doubt: float
    gain: float
    why: str
    lesions: float


UNCERTAIN, LIKELY = "uncertain", "likely lesion"
_HOT = 0.05  # share of a case whose instances are likely lesions: the one in the middle of it counts two thirds


def _middle_threshold(scores: np.ndarray) -> float:
    """The cut that parts scores into the two groups of least spread (Otsu); of equal scores, that score."""
    ordered = np.sort(scores.astype(np.float64))
    n, total = len(ordered), ordered.sum()
    low = np.arange(1, n)
    sums = ordered.cumsum()[:-1]
    between = low * (n - low) * np.square(sums / low - (total - sums) / (n - low)) if n > 1 else np.zeros(0)
    best = int(between.argmax()) if n > 1 else 0
    return float((ordered[best] + ordered[min(best + 1, n - 1)]) / 2)


def _doubts(predictions: Sequence[Prediction], threshold: float, column: int | None = None) -> list[np.ndarray]:
    """(n,) per case, from 0 to 1: how near each score is to the threshold, in units of its own uncertainty.

    With uncertainty in all predictions: twice the probability that a normal score with this deviation lies on the other
    side of the threshold. Else the deviation of all scores stands for it, one number for all.
    """
    from scipy.special import ndtr

    scores = [instance_score(p, column) for p in predictions]
    spread = float(np.concatenate(scores).std()) or 1.0
    stated = all(p.uncertainty is not None for p in predictions)
    found = []
    for p, s in zip(predictions, scores, strict=True):
        size = np.maximum(p.uncertainty, 1e-9 * spread) if stated and p.uncertainty is not None else spread
        found.append(np.asarray(2 * ndtr(-np.abs(s - threshold) / size)))
    return found


def _likely(predictions: Sequence[Prediction], region: int, column: int | None) -> list[np.ndarray]:
    """(n,) per case: 1 for its hottest instance, falling with the rank, to a half after a region or 5 % of the case.

    Ranks within cases, because attention has no common level; and a positive case has a lesion, whatever its level.
    """
    found = []
    for p in predictions:
        rank = np.argsort(np.argsort(-instance_score(p, column), kind="stable"), kind="stable")
        found.append(1 / (1 + rank / max(region, _HOT * p.n)))
    return found


def _chances(predictions: Sequence[Prediction], threshold: float, column: int | None) -> list[np.ndarray]:
    """(n,) per case: calibrated probability of a lesion, else 1 from the threshold on and 0 below it."""
    found = [calibrated_probability(p, column) for p in predictions]
    cut = [(instance_score(p, column) >= threshold).astype(np.float64) for p in predictions]
    return [one if one is not None else rough for one, rough in zip(found, cut, strict=True)]


def suggest_regions(
    predictions: Sequence[Prediction],
    *,
    patches: int = 50,
    region: int = 4,
    threshold: float | None = None,
    column: int | None = None,
    marked: Mapping[str, np.ndarray] | None = None,
    features: Mapping[str, np.ndarray] | None = None,
) -> list[Region]:
    """Regions worth marking, best first, with at most `patches` instances together; the same input, the same regions.

    Until lesions and others are marked, half of the instances are the most uncertain ones and half the most likely
    lesions: where a model is undecided about healthy tissue only, marks of the first half alone would be of one kind.
    From then on all are uncertain: the threshold between the marks of both kinds says where that is.
    region     most instances of one region
    threshold  score that parts lesion from not; else the calibrated one, else the middle between marked lesions and
               marked others, else, before any marks, that between high and low scores
    marked     {id: (n,) labels}: instances that are not -1 are marked already and not proposed again
    features   {id: (n, d)}: what instances look like; else place and score stand for it

    Cases labelled negative are left out: none of their instances is a lesion, so nobody needs to look.
    """
    if patches < 1 or region < 1:
        raise ConfigError(f"suggest: patches={patches}, region={region}; expected at least 1")
    need_target(predictions, "suggest", ("class", "multilabel"))
    cases = sorted((p for p in predictions if p.y != 0), key=lambda p: p.id)
    if not cases:
        raise DataError("suggest: all cases are labelled negative, so nothing in them can be a lesion; give others")
    known = marked or {}
    cut = _threshold(cases, known, column) if threshold is None else threshold
    free = [np.ones(p.n, bool) if p.id not in known else known[p.id] < 0 for p in cases]
    looks = _looks(cases, features, column)
    values = {UNCERTAIN: _doubts(cases, cut, column), LIKELY: _likely(cases, region, column)}
    pool = _Pool(cases, values, _chances(cases, cut, column), free, looks)
    for number, p in enumerate(cases):
        if p.id in known:
            pool.seen(number, np.flatnonzero(~free[number]))
    found: list[Region] = []
    both = {0, 1} <= {int(label) for labels in known.values() for label in np.unique(labels)}
    spent = {UNCERTAIN: 0, LIKELY: 0}
    while (left := patches - sum(spent.values())) > 0:
        why = UNCERTAIN if both or spent[UNCERTAIN] <= spent[LIKELY] else LIKELY
        best = pool.best(min(region, left), why)
        if best is None:
            break
        found.append(best)
        spent[why] += len(best.instances)
    return found


def _threshold(cases: Sequence[Prediction], marked: Mapping[str, np.ndarray], column: int | None) -> float:
    """The score at which the model is taken to be undecided; see `suggest_regions`."""
    if (stated := shared_calibration(cases, column)) is not None:
        return stated.threshold
    scores = np.concatenate([instance_score(p, column) for p in cases])
    labels = np.concatenate([marked.get(p.id, np.full(p.n, -1)) for p in cases])
    if (labels == 1).any() and (labels == 0).any():
        return float(scores[labels == 1].mean() + scores[labels == 0].mean()) / 2
    return _middle_threshold(scores)


def _looks(
    cases: Sequence[Prediction], features: Mapping[str, np.ndarray] | None, column: int | None
) -> list[np.ndarray]:
    """(n, d) of every case: its features of length 1, else its score and relative place, and which case it is."""
    if features is not None:
        rows = [features[p.id].astype(np.float32) for p in cases]
        middle = np.concatenate(rows).mean(0)
        return [(r - middle) / np.maximum(np.linalg.norm(r - middle, axis=1, keepdims=True), 1e-12) for r in rows]
    spread = float(np.concatenate([instance_score(p, column) for p in cases]).std()) or 1.0
    found = []
    for number, p in enumerate(cases):
        places = np.zeros((p.n, 0)) if p.coords is None else p.coords.astype(np.float64)
        size = np.maximum(np.ptp(places, axis=0), 1e-9) if p.n else 1.0
        # another case is as far as its whole width: two alike places of two cases are still two
        where = np.full((p.n, 1), float(number % 2)), (places - places.min(0)) / size if places.size else places
        found.append(np.hstack([instance_score(p, column)[:, None] / spread, *where]).astype(np.float32))
    return found


class _Pool:
    """What may still be chosen, and how far every instance is from all that was."""

    def __init__(
        self,
        cases: Sequence[Prediction],
        values: Mapping[str, list[np.ndarray]],
        chances: list[np.ndarray],
        free: list[np.ndarray],
        looks: list[np.ndarray],
    ):
        self.cases, self.free, self.looks = cases, free, looks
        self.values, self.chances, self.far = values, chances, [np.full(p.n, np.inf) for p in cases]
        self.neighbours = [_neighbours(p) for p in cases]
        sample = np.concatenate(looks)
        step = max(1, len(sample) // 500)
        apart = np.linalg.norm(sample[::step][:, None] - sample[::step][None], axis=2)
        self.usual = float(np.median(apart)) or 1.0

    def seen(self, case: int, instances: np.ndarray) -> None:
        """Everything that looks like these instances is now less new."""
        self.free[case][instances] = False
        for look in self.looks[case][instances]:
            for number, rows in enumerate(self.looks):
                np.minimum(self.far[number], np.linalg.norm(rows - look, axis=1), out=self.far[number])

    def best(self, most: int, why: str) -> Region | None:
        """The region around the instance of highest gain: its value times how new it is."""
        gains = [
            np.where(free, value * np.minimum(far / self.usual, 1.0), -1.0)
            for free, value, far in zip(self.free, self.values[why], self.far, strict=True)
        ]
        peaks = [int(gain.argmax()) for gain in gains]
        case = int(np.argmax([gain[peak] for gain, peak in zip(gains, peaks, strict=True)]))
        if gains[case][peaks[case]] < 0:
            return None
        chosen = self._grown(case, peaks[case], gains[case], most)
        doubt, gain = float(self.values[UNCERTAIN][case][chosen].mean()), float(gains[case][chosen].sum())
        self.seen(case, chosen)
        return Region(self.cases[case].id, chosen, doubt, gain, why, float(self.chances[case][chosen].sum()))

    def _grown(self, case: int, start: int, gain: np.ndarray, most: int) -> np.ndarray:
        """The start and the neighbours of highest gain, one by one, that are at least half as good."""
        chosen, border = [start], {start}
        while len(chosen) < most:
            border |= {int(b) for b in self.neighbours[case](chosen[-1])}
            open_ = sorted(b for b in border if self.free[case][b] and b not in chosen and gain[b] >= gain[start] / 2)
            if not open_:
                break
            chosen.append(max(open_, key=lambda b: (gain[b], -b)))
        return np.array(sorted(chosen))


def _neighbours(p: Prediction) -> Callable[[int], np.ndarray]:
    """The instances next to one, by its number."""
    edges = np.zeros((2, 0), int) if p.edges is None else np.hstack([p.edges, p.edges[::-1]])
    order = np.argsort(edges[0], kind="stable")
    ends, cuts = edges[1][order], np.searchsorted(edges[0][order], np.arange(p.n + 1))
    return lambda i: ends[cuts[i] : cuts[i + 1]]
