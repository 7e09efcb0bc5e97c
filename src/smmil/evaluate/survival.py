"""Times until an event against predicted risks: Kaplan–Meier, log-rank, C-index, AUROC and Brier score over time.

Every case was followed until its time, when the event occurred (1) or the case was censored (0). At equal times events
come first, so that a case censored at t is known to have had no event until t. Weights say how often each case counts.
Censored cases are made up for by the others: an observed one counts 1 / G, where G is the probability of not having
been censored before (inverse probability of censoring weights; Uno 2007, 2011, Graf 1999).
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from smmil.evaluate.ranking import _ratio


class _SurvivalCurve(NamedTuple):
    """A step function: the share without event just after each time, and how many were followed until then."""

    times: np.ndarray
    at_risk: np.ndarray
    events: np.ndarray
    survival: np.ndarray

    def after(self, time: float) -> float:
        """Share that lives on beyond a time."""
        return float(np.append(1.0, self.survival)[np.searchsorted(self.times, time, "right")])

    def followed(self, time: float) -> float:
        """How many were followed at least until a time."""
        return float(np.append(self.at_risk, 0)[np.searchsorted(self.times, time, "left")])


class _FollowUp:
    """Times (n,) and events (n,) of cases, sorted once."""

    def __init__(self, time: np.ndarray, event: np.ndarray):
        self.time, self.event = np.asarray(time, np.float64), np.asarray(event).astype(bool)
        self.distinct, self._place = np.unique(self.time, return_inverse=True)

    def __len__(self) -> int:
        return len(self.time)

    def _counts(self, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Followed until each distinct time, events at it, censored at it."""
        w, size = np.ones(len(self)) if weights is None else weights, len(self.distinct)
        events = np.bincount(self._place, w * self.event, size)
        censored = np.bincount(self._place, w * ~self.event, size)
        return np.cumsum((events + censored)[::-1])[::-1], events, censored

    def curve(self, weights: np.ndarray | None = None) -> _SurvivalCurve:
        """Share of cases without event over time (Kaplan and Meier 1958)."""
        at_risk, events, _ = self._counts(weights)
        steps = 1 - events / np.maximum(at_risk, 1)
        return _SurvivalCurve(self.distinct, at_risk, events, np.cumprod(steps))

    def uncensored(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Probability of not being censored before each distinct time, and, last, before any later one."""
        at_risk, events, censored = self._counts(weights)
        left = at_risk - events
        steps = 1 - np.divide(censored, left, out=np.zeros(len(left)), where=left > 0)
        return np.append(1.0, np.cumprod(steps))

    def chance_observed(self, weights: np.ndarray | None = None) -> np.ndarray:
        """(n,) probability that each case was not censored before its own time; positive for cases that count."""
        return self.uncensored(weights)[self._place]

    def had_event(self, time: float) -> np.ndarray:
        """Which cases are known to have had the event until a time."""
        return np.asarray(self.event & (self.time <= time))

    def had_none(self, time: float) -> np.ndarray:
        """Which cases are known to have had no event until a time."""
        return np.asarray((self.time > time) | ((self.time == time) & ~self.event))


class _Concordance:
    """How often the case with the earlier event has the higher risk, among pairs whose order in time is known.

    That is where the earlier time is that of an event; of two events at the same time none is earlier. Equal risks
    count half. n x n numbers are kept, so that resamples are quick.
    """

    def __init__(self, follow_up: _FollowUp, risk: np.ndarray):
        self.follow_up, self._first = follow_up, np.flatnonzero(follow_up.event)
        time, event = follow_up.time, follow_up.event
        own = time[self._first, None]
        self._known = ((own < time) | ((own == time) & ~event)).astype(np.float64)
        higher = risk[self._first, None]
        self._right = self._known * ((higher > risk) + 0.5 * (higher == risk))

    def harrell(self, weights: np.ndarray) -> float:
        """Every pair counts alike (Harrell 1982); depends on who was censored."""
        return self._share(weights[self._first].astype(np.float64), weights)

    def uno(self, weights: np.ndarray) -> float:
        """Pairs count 1 / G², so that the value does not depend on who was censored (Uno 2011); not cut at any time."""
        first = weights[self._first].astype(np.float64)
        chance = self.follow_up.chance_observed(weights)[self._first]
        return self._share(np.divide(first, chance**2, out=np.zeros(len(first)), where=first > 0), weights)

    def _share(self, first: np.ndarray, second: np.ndarray) -> float:
        return _ratio(float(first @ (self._right @ second)), float(first @ (self._known @ second)))


class _OverTime:
    """Predicted probabilities of an event (n, J) until each of J times, against what is known then."""

    def __init__(self, follow_up: _FollowUp, probs: np.ndarray, times: np.ndarray):
        self.follow_up, self.probs, self.times = follow_up, probs, times
        self._had = [follow_up.had_event(t) for t in times]
        self._none = [follow_up.had_none(t) for t in times]

    @cached_property
    def _places(self) -> list[np.ndarray]:
        return [np.unique(column, return_inverse=True)[1] for column in self.probs.T]

    def auroc(self, weights: np.ndarray) -> np.ndarray:
        """(J,) chance that a case with an event until the time has a higher probability than one without (cumulative /
        dynamic; ties half, cases with an event count 1 / G); nan where either kind is missing."""
        chance = self.follow_up.chance_observed(weights)
        found = []
        for place, had, none in zip(self._places, self._had, self._none, strict=True):
            cases = np.bincount(place[had], weights[had] / np.maximum(chance[had], _TINY), place.max(initial=0) + 1)
            controls = np.bincount(place[none], weights[none], len(cases))
            below = np.cumsum(controls) - controls / 2
            found.append(_ratio(float(cases @ below), float(cases.sum() * controls.sum())))
        return np.array(found)

    def brier(self, weights: np.ndarray) -> np.ndarray:
        """(J,) mean squared error of the probabilities; nan at times until which nobody was followed."""
        chance, before = self.follow_up.chance_observed(weights), self.follow_up.uncensored(weights)
        total, found = float(weights.sum()), []
        for column, time, had, none in zip(self.probs.T, self.times, self._had, self._none, strict=True):
            reached = before[np.searchsorted(self.follow_up.distinct, time, "left")]
            events = weights[had] @ ((1 - column[had]) ** 2 / np.maximum(chance[had], _TINY))
            followed = reached > _TINY and weights @ (self.follow_up.time >= time) > 0
            others = weights[none] @ column[none] ** 2 / reached if followed else np.nan
            found.append(float(events + others) / total if total else np.nan)
        return np.array(found)

    def integrated_brier(self, weights: np.ndarray) -> float:
        """Mean Brier score between the first and the last of the times at which it is defined, on straight lines."""
        found = self.brier(weights)
        there = ~np.isnan(found)
        times, values = self.times[there], found[there]
        if len(values) < 2:
            return float(values[0]) if len(values) else float("nan")
        return float(np.sum(np.diff(times) * (values[1:] + values[:-1]) / 2) / (times[-1] - times[0]))


_TINY = 1e-12


class _LogRank(NamedTuple):
    """Test of equal survival in all groups: chi-squared, its degrees of freedom and p."""

    statistic: float
    freedom: int
    p: float


def _log_rank(follow_up: _FollowUp, groups: np.ndarray) -> _LogRank:
    """Compare the survival of groups (n,) of cases, numbered from 0 (Mantel 1966); nan where nothing can be compared.

    At each time with events the number expected in a group is its share of those followed until then.
    """
    from scipy.stats import chi2

    kinds = np.unique(groups)
    events_of, risk_of = np.zeros((2, len(kinds), len(follow_up.distinct)))
    for row, kind in enumerate(kinds):
        risk_of[row], events_of[row], _ = follow_up._counts((groups == kind).astype(np.float64))
    events, at_risk = events_of.sum(0), risk_of.sum(0)
    share = risk_of / at_risk
    spread = np.where(at_risk > 1, events * (at_risk - events) / np.maximum(at_risk - 1, 1), 0.0)
    gap = (events_of - share * events).sum(1)[1:]
    covariance = (np.diag((share * spread).sum(1)) - (share * spread) @ share.T)[1:, 1:]
    if len(kinds) < 2 or np.linalg.matrix_rank(covariance) < len(gap):
        return _LogRank(float("nan"), max(len(kinds) - 1, 0), float("nan"))
    statistic = float(gap @ np.linalg.solve(covariance, gap))
    return _LogRank(statistic, len(gap), float(chi2.sf(statistic, len(gap))))
