"""Drawing patients again with replacement, and what an interval from such draws is."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice

METHODS = ("bca", "percentile")
FEW = 10


class Interval(NamedTuple):
    """An interval, the method that was really used, and remarks."""

    low: float
    high: float
    method: str
    notes: list[str]


class Resampling:
    """Independent units (patients) of cases, drawn whole: all cases of a patient come and go together.

    units   number of the unit of each case, 0, 1, 2, ...
    strata  class of each unit; units are drawn within their class, so that every draw has as many of each
    """

    def __init__(self, units: np.ndarray, strata: np.ndarray | None = None):
        self.units = units
        self.n_units = int(units.max(initial=-1)) + 1
        strata = np.zeros(self.n_units, dtype=np.int64) if strata is None else strata
        self.strata = [np.flatnonzero(strata == kind) for kind in np.unique(strata)]

    def draws(self, n: int, seed: int) -> Iterator[np.ndarray]:
        """n times: how often each case was drawn. The same seed gives the same draws of the same units."""
        rng = np.random.default_rng(seed)
        chosen = [members[rng.integers(0, len(members), (n, len(members)))] for members in self.strata]
        for row in range(n):
            drawn = np.concatenate([np.zeros(0, dtype=np.int64), *(part[row] for part in chosen)])
            yield np.bincount(drawn, minlength=self.n_units)[self.units]

    def without_each(self, value: Callable[[np.ndarray], float]) -> list[np.ndarray]:
        """The value with each unit left out in turn, stratum by stratum."""
        return [np.array([value((self.units != u).astype(np.int64)) for u in members]) for members in self.strata]


def check_plan(method: str, n: int, level: float) -> None:
    """Refuse a method, number of draws or level that cannot be meant."""
    check_choice(method, METHODS, "method")
    if n < 2:
        raise ConfigError(f"n: got {n} resamples, expected at least 2; 2000 are usual")
    if not 0 < level < 1:
        raise ConfigError(f"level: got {level}, expected a share between 0 and 1 such as 0.95")


def interval(
    drawn: np.ndarray, estimate: float, left_out: Callable[[], list[np.ndarray]], method: str, level: float
) -> Interval:
    """The interval of an estimate from its values on resamples (nan where undefined); left_out only called for bca."""
    values = drawn[~np.isnan(drawn)]
    notes = _remarks(drawn, values)
    if np.isnan(estimate) or len(values) <= len(drawn) / 2:
        reason = "the metric itself is undefined" if np.isnan(estimate) else "most resamples are undefined"
        return Interval(float("nan"), float("nan"), "none", [*notes, f"no interval: {reason}"])
    tail = (1 - level) / 2
    shares = np.array([tail, 1 - tail])
    if method == "bca":
        found, reason = _bca_shares(values, estimate, left_out(), shares)
        if found is None:
            method = "percentile"
            notes.append(f"percentile interval instead of BCa: {reason}")
        else:
            shares = found
    low, high = np.quantile(values, shares)
    return Interval(float(low), float(high), method, notes)


def _bca_shares(
    values: np.ndarray, estimate: float, left_out: list[np.ndarray], shares: np.ndarray
) -> tuple[np.ndarray | None, str]:
    """Efron's bias-corrected and accelerated quantiles (1987); None and why where they do not exist."""
    from scipy.special import ndtr, ndtri

    below = ((values < estimate).mean() + (values <= estimate).mean()) / 2
    if below in (0, 1):
        return None, "all resamples lie on one side of the estimate"
    acceleration = _acceleration(left_out)
    if np.isnan(acceleration):
        return None, "leaving out single patients does not change the value"
    bias = ndtri(below)
    z = bias + ndtri(shares)
    return ndtr(bias + z / (1 - acceleration * z)), ""


def _acceleration(left_out: list[np.ndarray]) -> float:
    """Skewness of the influence of single units; those whose absence leaves the value undefined are not counted."""
    cubes = squares = 0.0
    for part in left_out:
        part = part[~np.isnan(part)]
        if len(part):
            influence = (len(part) - 1) * (part.mean() - part)
            cubes += (influence**3).sum() / len(part) ** 3
            squares += (influence**2).sum() / len(part) ** 2
    return float(cubes / (6 * squares**1.5)) if squares else float("nan")


def _remarks(drawn: np.ndarray, values: np.ndarray) -> list[str]:
    notes, missing = [], len(drawn) - len(values)
    if missing:
        notes.append(
            f"{missing} of {len(drawn)} resamples are undefined (such as one class only) and left out; "
            "the interval is too narrow if they are many; stratified draws avoid them"
        )
    if len(values) and values.min() == values.max():
        notes.append("all resamples give the same value: the interval has no width and says nothing about uncertainty")
    return notes


def few_units(n_units: int, unit: str) -> list[str]:
    """A remark when there are too few independent units to trust an interval."""
    return [f"only {n_units} units ({unit}): an interval from so few is a guess"] if n_units < FEW else []
