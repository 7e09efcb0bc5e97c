"""Resampling of patients: draws, bootstrap intervals (BCa and percentile) and their p values."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate.bags import units_of
from smmil.prediction import Prediction

_METHODS = ("bca", "percentile")
FEW = 10
_ROUNDING = 1e-12  # smaller differences come from the order of additions
_POLE = 1e-300  # beyond the pole of the correction, six deviations out or more, the limit at the pole counts


class _Interval(NamedTuple):
    """An interval, the method that was really used, remarks, and the p value that belongs to it."""

    low: float
    high: float
    method: str
    notes: list[str]
    p: float  # two-sided, of 0: below 1 - level exactly where the interval excludes 0; at least `p_least`
    p_least: float = float("nan")  # 2 / (draws + 1): what p is when all draws lie on one side; more could only lower it


class _BcaCorrection(NamedTuple):
    """BCa correction (Efron 1987) of the share of draws at which an interval ends; zeros: none."""

    bias: float = 0.0
    acceleration: float = 0.0

    def adjusted(self, share: float) -> float:
        """The share of the draws below the end of an interval that is to leave out `share` on this side."""
        from scipy.special import ndtr, ndtri

        z = self.bias + ndtri(share)
        return float(ndtr(self.bias + z / max(1 - self.acceleration * z, _POLE)))

    def inverted(self, share: float) -> float:
        """The inverse: what an interval leaves out on the side of an end that has this share of the draws below it."""
        if share in (0, 1):
            return share
        from scipy.special import ndtr, ndtri

        w = ndtri(share) - self.bias
        return float(ndtr(w / max(1 + self.acceleration * w, _POLE) - self.bias))


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


def subtract(a: Any, b: Any) -> Any:
    """a - b, with 0 where nothing but rounding is left: equal models must not differ by how sums were rounded."""
    found = np.subtract(a, b)
    return np.where(np.abs(found) <= _ROUNDING * np.maximum(1.0, np.abs(b)), 0.0, found)[()]


def interval(
    drawn: np.ndarray, estimate: float, left_out: Callable[[], list[np.ndarray]], method: str, level: float
) -> _Interval:
    """The interval of an estimate from its values on resamples (nan where undefined); left_out only called for bca."""
    values = np.sort(drawn[~np.isnan(drawn)])
    notes = _remarks(drawn, values)
    if np.isnan(estimate) or len(values) <= len(drawn) / 2:
        reason = "the metric itself is undefined" if np.isnan(estimate) else "most resamples are undefined"
        return _Interval(float("nan"), float("nan"), "none", [*notes, f"no interval: {reason}"], float("nan"))
    correction, reason = _bca_correction(values, estimate, left_out()) if method == "bca" else (_BcaCorrection(), "")
    if correction is None:
        correction, method = _BcaCorrection(), "percentile"
        notes.append(f"percentile interval instead of BCa: {reason}")
    tail = (1 - level) / 2
    low, high = np.quantile(values, [correction.adjusted(tail), correction.adjusted(1 - tail)])
    least = 2 / (len(values) + 1)
    return _Interval(float(low), float(high), method, notes, _bootstrap_p_value(values, correction, least), least)


def p_text(p: float, bound: bool = False) -> str:
    """A p value with three digits; `bound`: it is only known to be lower, and is rounded up. A dash where undefined."""
    if p != p:
        return "–"
    return f"<{max(1, math.ceil(p * 1000 - 1e-9)) / 1000:.3f}" if bound or p < 0.001 else f"{p:.3f}"


def _bootstrap_p_value(values: np.ndarray, correction: _BcaCorrection, least: float) -> float:
    """Two-sided p value of 0, the inversion of the interval with its interpolation; draws of 0 count on both sides."""
    above, below = correction.inverted(_share(values, "right")), 1 - correction.inverted(_share(values, "left"))
    return min(1.0, max(least, 2 * min(above, below)))


def _share(values: np.ndarray, side: Literal["left", "right"]) -> float:
    """The least (left) or greatest (right) share whose quantile of the sorted values is 0; 0 or 1 beyond them all."""
    count = int(np.searchsorted(values, 0.0, side))
    if count in (0, len(values)):
        return float(count > 0)
    before, after = values[count - 1], values[count]
    return float((count - 1 - before / (after - before)) / (len(values) - 1))


def _bca_correction(
    values: np.ndarray, estimate: float, left_out: list[np.ndarray]
) -> tuple[_BcaCorrection | None, str]:
    """Bias and acceleration of these draws; None and why where they do not exist. Draws at the estimate count half."""
    from scipy.special import ndtri

    from_estimate = subtract(values, estimate)
    below = ((from_estimate < 0).mean() + (from_estimate <= 0).mean()) / 2
    if below in (0, 1):
        return None, "all resamples lie on one side of the estimate"
    acceleration = _acceleration(left_out)
    if np.isnan(acceleration):
        return None, "leaving out single patients does not change the value"
    return _BcaCorrection(float(ndtri(below)), acceleration), ""


def _acceleration(left_out: list[np.ndarray]) -> float:
    """Skewness of the influence of single units; those whose absence leaves the value undefined are not counted."""
    cubes = squares = 0.0
    for part in left_out:
        part = part[~np.isnan(part)]
        if len(part):
            influence = (len(part) - 1) * subtract(part.mean(), part)
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
    if len(values) and not subtract(values, values[0]).any():
        notes.append("all resamples give the same value: the interval has no width and says nothing about uncertainty")
    return notes


def _resampling_plan(cases: Sequence[Prediction], unit: str, stratified: bool) -> tuple[Resampling, list[str]]:
    """The units of these cases, ready to be drawn, and remarks on missing patients."""
    units, notes = units_of(cases, unit)
    classes = np.full(units.max(initial=-1) + 1, -1)  # highest known label of a unit's cases
    np.maximum.at(classes, units, [-1 if p.y is None else p.y for p in cases])
    return Resampling(units, classes if stratified else None), notes


def _resampled(
    cases: Sequence[Prediction],
    value: Callable[[np.ndarray], float],
    estimate: float,
    unit: str,
    method: str,
    n: int,
    seed: int,
    level: float,
    stratified: bool,
) -> tuple[_Interval, dict[str, Any], list[str]]:
    """The interval of an estimate when units are drawn n times, how many of what took part, and remarks."""
    check_choice(method, _METHODS, "method")
    if n < 2:
        raise ConfigError(f"n: got {n} resamples, expected at least 2; 2000 are usual")
    if not 0 < level < 1:
        raise ConfigError(f"level: got {level}, expected a share between 0 and 1 such as 0.95")
    plan, notes = _resampling_plan(cases, unit, stratified)
    drawn = np.array([value(weights) for weights in plan.draws(n, seed)])
    found = interval(drawn, estimate, lambda: plan.without_each(value), method, level)
    few = [f"only {plan.n_units} units ({unit}): an interval from so few is a guess"] if plan.n_units < FEW else []
    values = drawn[~np.isnan(drawn)]
    facts = {
        "std": float(values.std(ddof=1)) if len(values) > 1 else float("nan"),
        "n_units": plan.n_units,
        "n_cases": len(cases),
        "n_resamples": n,
        "n_undefined": n - len(values),
    }
    return found, facts, [*notes, *few, *found.notes]
