"""FROC: how many lesions are found at how many false alarms per case."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate.average import exact_mean
from smmil.evaluate.cases import score_kind
from smmil.evaluate.instances import bags_of_pool, case_of_row
from smmil.evaluate.lesions import Marks, marks
from smmil.evaluate.ranking import TOLERANCE, OperatingPoints, Ranking
from smmil.prediction import Prediction

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
