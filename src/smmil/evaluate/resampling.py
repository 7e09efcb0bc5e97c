"""Resampling of patients: draws, bootstrap intervals (BCa and percentile) and their p values."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from smmil.errors import ConfigError, check_choice
from smmil.evaluate.bags import UNITS, need_target, patient_of, units_of
from smmil.prediction import Prediction

_METHODS = ("bca", "percentile")
RESAMPLES = 2000  # unless another number is asked for: the same interval has the same digits wherever it is printed
LEAST = 10  # patients of every kind a metric needs; with fewer, intervals and p values do not keep what they say
ALONE = 1  # a patient that is the only one of a kind in its part is drawn every time and seems to vary by nothing
_ROUNDING = 1e-12  # smaller differences come from the order of additions
_POLE = 1e-300  # beyond the pole of the correction, six deviations out or more, the limit at the pole counts


class Carriers(NamedTuple):
    """How many patients (or cases) carry a metric, of each kind it needs: {"patients": 20, "positive patients": 7}.

    strata: parts within which they are drawn, such as folds; each costs a degree of freedom
    parts: the same counts in each of these parts that the metric takes a value from, by its name ("fold 0")
    """

    counts: dict[str, int]
    strata: int = 1
    parts: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    @property
    def fewest(self) -> int:
        return min(self.counts.values())

    @property
    def shortage(self) -> str:
        """What there is too little of for an interval: "7 positive patients", "1 positive patient in fold 0"; or ""."""
        if self.fewest < LEAST:
            return next(_counted(n, kind) for kind, n in self.counts.items() if n == self.fewest)
        found = ((part, kind, n) for part, counts in self.parts.items() for kind, n in counts.items())
        return next((f"{_counted(n, kind)} in {part}" for part, kind, n in found if n == ALONE), "")

    @property
    def needed(self) -> str:
        """How many there should be."""
        return f"at least {LEAST} are needed" if self.fewest < LEAST else f"at least {ALONE + 1} are needed in each"


def _counted(n: int, kind: str) -> str:
    """So many of a kind, in the singular where there is one: "1 patient with an event"."""
    word = re.sub(r"\b(patient|case)s\b", r"\1", kind) if n == 1 else kind
    return f"{n} {word}"


class _Interval(NamedTuple):
    """An interval, the method that was really used, remarks, and the p value that belongs to it."""

    low: float
    high: float
    method: str
    notes: list[str]
    p: float = float("nan")  # of a difference: two-sided, of 0: below 1 - level exactly where the interval excludes 0
    shortage: str = ""  # too few patients for an interval: how many


class _TailCorrection(NamedTuple):
    """Which share of the draws lies outside the end of an interval that is to leave out a given share.

    Few patients: draws spread by (n - 1) / n too little and their deviation is itself an estimate, so that the ends are
    those of Student's t with n - 1 degrees of freedom (Hesterberg 2015). BCa (Efron 1987): bias and acceleration.
    """

    units: int
    bias: float = 0.0
    acceleration: float = 0.0
    strata: int = 1  # drawn within so many parts, draws spread by (n - strata) / n too little

    @property
    def _freedom(self) -> int:
        return max(self.units - self.strata, 1)

    @property
    def _spread(self) -> float:
        return math.sqrt(self.units / self._freedom)

    def adjusted(self, share: float) -> float:
        """The share of the draws below the end of an interval that is to leave out `share` on this side."""
        from scipy.special import ndtr, stdtrit

        z = self.bias + self._spread * stdtrit(self._freedom, share)
        return float(ndtr(self.bias + z / max(1 - self.acceleration * z, _POLE)))

    def inverted(self, share: float) -> float:
        """The inverse: what an interval leaves out on the side of an end that has this share of the draws below it."""
        from scipy.special import ndtri

        if share in (0, 1):
            return share
        w = ndtri(share) - self.bias
        return self.left_out(w / max(1 + self.acceleration * w, _POLE) - self.bias)

    def reach(self, share: float) -> float:
        """How many deviations of the draws an end of Student's t that leaves out `share` lies from the estimate."""
        from scipy.special import stdtrit

        return -self._spread * float(stdtrit(self._freedom, share))

    def left_out(self, deviations: float) -> float:
        """What an interval leaves out on the side of an end so many deviations of the draws from the estimate."""
        from scipy.special import stdtr

        return float(stdtr(self._freedom, deviations / self._spread))


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
    drawn: np.ndarray,
    estimate: float,
    carriers: Carriers,
    left_out: Callable[[], list[np.ndarray]],
    method: str,
    level: float,
    *,
    difference: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> _Interval:
    """The interval of an estimate from its values on resamples (nan where undefined); left_out only called for bca.

    None where too few patients carry the estimate, or where all resamples give the same value. That of a difference has
    a p value, also where all resamples are the same (1 for equal models); its percentile ends lie no nearer than those
    of Student's t with the deviation of the draws, and its p is no smaller.
    bounds  lowest and highest value of the metric: no end lies outside, none of a difference further off than they are
    """
    values = np.sort(drawn[~np.isnan(drawn)])
    missing = (
        f"{len(drawn) - len(values)} of {len(drawn)} resamples are undefined (such as one class only) and left out"
    )
    notes = [missing] if len(values) < len(drawn) else []
    correction = _TailCorrection(max(carriers.fewest, 2), strata=carriers.strata)
    few = "" if np.isnan(estimate) else carriers.shortage
    flat = len(values) > 0 and not subtract(values, values[0]).any()
    mostly_undefined = len(values) <= len(drawn) / 2
    if np.isnan(estimate) or few or flat or mostly_undefined:
        why = f"{'the metric itself is' if np.isnan(estimate) else 'most resamples are'} undefined"
        why = "all resamples give the same value, which says nothing about uncertainty" if flat else why
        notes.append(f"no interval: {few}, and {carriers.needed}" if few else f"no interval: {why}")
        told = flat and difference and not few and not mostly_undefined
        p = _p_value(values, estimate, correction) if told else math.nan
        return _Interval(math.nan, math.nan, "none", notes, p, shortage=few)
    notes = [f"{note}; the interval is too narrow if they are many; stratified draws avoid them" for note in notes]
    reason = ""
    if method == "bca":
        correction, reason = _bca_correction(values, estimate, left_out(), correction)
    if reason:
        method = "percentile"
        notes.append(f"percentile interval instead of BCa: {reason}")
    tail = (1 - level) / 2
    low, high = np.quantile(values, [correction.adjusted(tail), correction.adjusted(1 - tail)])
    lowest, highest = (bounds[0] - bounds[1], bounds[1] - bounds[0]) if difference else bounds
    if not difference:
        return _Interval(max(float(low), lowest), min(float(high), highest), method, notes)
    p, reach = _p_value(values, estimate, correction), correction.reach(tail) * float(values.std())
    if method == "percentile" and reach:  # draws of few patients have short tails: no nearer than Student's t says
        low, high = min(low, estimate - reach), max(high, estimate + reach)
        p = min(1.0, max(p, 2 * correction.left_out(-abs(estimate) / float(values.std()))))
    return _Interval(max(float(low), lowest), min(float(high), highest), method, notes, p)


def missing_text(shortage: str = "") -> str:
    """What stands in place of an interval or a p value that there is not: "– (3 patients)", or a dash."""
    return f"– ({shortage})" if shortage else "–"


def p_text(p: float, shortage: str = "") -> str:
    """A p value with three digits, or why there is none."""
    if p != p:
        return missing_text(shortage)
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(low: float, high: float, shortage: str = "", form: str = ".3f", between: str = " to ") -> str:
    """Both ends of an interval, or why there is none."""
    return missing_text(shortage) if low != low or high != high else f"{low:{form}}{between}{high:{form}}"


def _p_value(values: np.ndarray, difference: float, correction: _TailCorrection) -> float:
    """Two-sided p value of 0, the inversion of the interval with its interpolation; draws of 0 count on both sides.

    Where all draws lie on one side they do not tell how far away 0 is: there it is that of Student's t with their
    deviation. No p is below that of all patients agreeing by chance, 2 / 2^n.
    """
    from scipy.special import ndtri

    above, below = correction.inverted(_share(values, "right")), 1 - correction.inverted(_share(values, "left"))
    p = 2 * min(above, below)
    if p == 0:
        outermost, spread = -float(ndtri(1 / (len(values) + 1))), float(values.std())
        far = abs(difference) / spread if spread else math.inf
        p = 2 * correction.left_out(-max(far, outermost))
    return min(1.0, max(p, 2.0 ** (1 - correction.units)))


def _share(values: np.ndarray, side: Literal["left", "right"]) -> float:
    """The least (left) or greatest (right) share whose quantile of the sorted values is 0; 0 or 1 beyond them all."""
    count = int(np.searchsorted(values, 0.0, side))
    if count in (0, len(values)):
        return float(count > 0)
    before, after = values[count - 1], values[count]
    return float((count - 1 - before / (after - before)) / (len(values) - 1))


def _bca_correction(
    values: np.ndarray, estimate: float, left_out: list[np.ndarray], plain: _TailCorrection
) -> tuple[_TailCorrection, str]:
    """With bias and acceleration of these draws, or as it is, and why. Draws at the estimate count half."""
    from scipy.special import ndtri

    from_estimate = subtract(values, estimate)
    below = ((from_estimate < 0).mean() + (from_estimate <= 0).mean()) / 2
    if below in (0, 1):
        return plain, "all resamples lie on one side of the estimate"
    acceleration = _acceleration(left_out)
    if np.isnan(acceleration):
        return plain, "leaving out single patients does not change the value"
    return plain._replace(bias=float(ndtri(below)), acceleration=acceleration), ""


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


def _resampling_plan(cases: Sequence[Prediction], unit: str, stratified: bool) -> tuple[Resampling, list[str]]:
    """The units of these cases, ready to be drawn, and remarks on missing patients."""
    units, notes = units_of(cases, unit)
    classes = np.full(units.max(initial=-1) + 1, -1)  # highest known label of a unit's cases
    if stratified:
        need_target(cases, "stratified resampling", ("class", "multilabel", "ordinal", "survival", "cox"))
    np.maximum.at(classes, units, [_stratum(p) for p in cases])
    return Resampling(units, classes if stratified else None), notes


def _stratum(prediction: Prediction) -> int:
    """Class of a case; of survival whether it had an event; -1: not known."""
    if prediction.target_kind in ("survival", "cox") and prediction.target is not None:
        return int(prediction.target[1])
    return -1 if prediction.y is None else prediction.y


def carriers_of(cases: Sequence[Prediction], kinds: Mapping[str, np.ndarray], unit: str = "patient") -> Carriers:
    """How many units there are of these cases, and how many have a case of each kind; kinds: which cases are of it.

    Patients are counted where they are known, also where single cases are drawn (unit "bag"): many slides of three
    patients say as little about a fourth as three slides do.
    """
    check_choice(unit, UNITS, "unit")
    units, _ = units_of(cases)
    named = any(patient_of(p) is not None for p in cases)
    word = "patients" if named and (unit == "patient" or len(np.unique(units)) < len(cases)) else "cases"
    counts = {kind.format(units=word): len(np.unique(units[is_it])) for kind, is_it in kinds.items()}
    return Carriers({word: len(np.unique(units)), **counts})


def _resampled(
    cases: Sequence[Prediction],
    kinds: Mapping[str, np.ndarray],
    value: Callable[[np.ndarray], float],
    estimate: float,
    difference: bool,
    unit: str,
    method: str,
    n: int,
    seed: int,
    level: float,
    stratified: bool,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[_Interval, dict[str, Any], list[str]]:
    """The interval when units are drawn n times, how many of what took part, and remarks."""
    check_choice(method, _METHODS, "method")
    if n < 2:
        raise ConfigError(f"n: got {n} resamples, expected at least 2; {RESAMPLES} are usual")
    if not 0 < level < 1:
        raise ConfigError(f"level: got {level}, expected a share between 0 and 1 such as 0.95")
    plan, notes = _resampling_plan(cases, unit, stratified)
    drawn = np.array([value(weights) for weights in plan.draws(n, seed)])
    carriers = carriers_of(cases, kinds, unit)
    left_out = partial(plan.without_each, value)
    found = interval(drawn, estimate, carriers, left_out, method, level, difference=difference, bounds=bounds)
    values = drawn[~np.isnan(drawn)]
    facts = {
        "std": float(values.std(ddof=1)) if len(values) > 1 else float("nan"),
        "n_units": plan.n_units,
        "n_cases": len(cases),
        "n_resamples": n,
        "n_undefined": n - len(values),
        "shortage": found.shortage,
    }
    return found, facts, [*notes, *found.notes]


def mean_interval(cases: Sequence[Prediction], values: Sequence[float], n: int, seed: int = 0) -> _Interval:
    """The 95 % interval (BCa) of the mean of a value of each case, when patients are drawn n times."""
    order = sorted(range(len(cases)), key=lambda i: cases[i].id)
    numbers = np.array(values, dtype=np.float64)[order]

    def mean(weights: np.ndarray) -> float:
        return float(weights @ numbers / weights.sum())

    chosen = [cases[i] for i in order]
    return _resampled(chosen, {}, mean, float(numbers.mean()), False, "patient", "bca", n, seed, 0.95, False)[0]
