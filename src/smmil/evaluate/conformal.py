"""Thresholds with a guarantee (conformal risk control, learn-then-test), and the area that they leave to read.

Every risk here is of one form. A patient i has values v_i1 … v_im, and the loss at a threshold t is the share of them
below it, L_i(t) = #{j: v_ij < t} / m. It lies in [0, 1], never falls as t grows, and is continuous from the left, since
a value equal to t is kept. What the values are says what is missed:

instances  scores of the lesion instances of all cases of the patient: the missed share of them
lesions    highest score of each lesion (connected positive instances): the share of lesions without a flagged instance
patients   the lowest of these, one value: 1 when some lesion has no flagged instance, else 0
classes    probabilities of a class in the patient's cases of that class: the share whose set lacks the true class

Patients without such values (no lesion, no case of the class) take no part: the promise is about those that have some.

Conformal risk control (Angelopoulos, Bates, Fisch, Lei, Schuster, 2022): with n patients and one more, exchangeable,
let T(t) be the sum of all n + 1 losses. The threshold t' = max{t: T(t) <= a (n + 1)} does not depend on the order of
the patients, so the new one's expected loss at t' is the mean of T(t') / (n + 1) <= a. Ours, max{t: sum of the n losses
+ 1 <= a (n + 1)}, is never above t', since a loss is at most 1; so its expected loss is at most a too. Where nothing is
missed the sum is 0, so n >= 1/a - 1 patients are needed.

Learn-then-test (Angelopoulos, Bates, Candès, Jordan, Lei, 2021): thresholds are tested from the lowest upwards, each
with the hypothesis that its risk exceeds a, until one is not rejected at the level d. Risk grows with the threshold,
and so do the observed risk and its p-value: the procedure ends at the highest t with p(t) <= d, and errs only if it
passes the point where the risk begins to exceed a, for which it must reject a true hypothesis right above that point.
So thresholds need no grid chosen in advance, and one error of probability d is all there is.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import ConfigError, DataError, check_choice
from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.bags import units_of
from smmil.evaluate.instances import _components, instance_score
from smmil.prediction import Prediction

_LOSSES = ("instances", "lesions", "patients")
_ROUNDING = 1e-9  # sums of shares such as 1/3 + 2/3 are not exact


def _needed_patients(target: float, delta: float | None = None) -> int:
    """Smallest number of patients with which a target can be promised, if none of them is missed.

    On average (delta None) n >= 1 / target - 1; with confidence 1 - delta (1 - target)^n <= delta.
    """
    if delta is None:
        return max(1, math.ceil(1 / target - 1 - _ROUNDING))
    return max(1, math.ceil(math.log(delta) / math.log1p(-target) - _ROUNDING))


class _MissedShares:
    """Losses of patients as functions of the threshold: the share of each patient's values below it.

    times  how many patients each of them stands for, as when patients are resampled; None: one
    """

    def __init__(self, values: Sequence[np.ndarray], times: Sequence[int] | None = None):
        self.values = [np.sort(np.asarray(v, dtype=np.float64)) for v in values]
        self.times = [1] * len(self.values) if times is None else list(times)
        self.n = sum(self.times)
        pooled = np.concatenate([np.zeros(0), *self.values])
        shares = (np.full(len(v), w / len(v)) for v, w in zip(self.values, self.times, strict=True))
        weight = np.concatenate([np.zeros(0), *shares])
        order = np.argsort(pooled, kind="stable")
        # The sum is constant above one value up to and including the next, so its jumps are all that can be chosen.
        self.steps, first = np.unique(pooled[order], return_index=True)
        self.sums = np.concatenate([[0.0], np.cumsum(weight[order])])[first]

    def losses(self, threshold: float) -> np.ndarray:
        """(n,) loss of each patient."""
        return np.array([np.searchsorted(v, threshold) / len(v) for v in self.values])

    def controlled(self, target: float) -> float | None:
        """Highest threshold with an expected loss of at most `target` (conformal risk control); None: too few."""
        return self._highest(lambda k: self.sums[k] <= target * (self.n + 1) - 1 + _ROUNDING)

    def tested(self, target: float, delta: float, *, binary: bool = False) -> float | None:
        """Highest threshold whose risk is at most `target` with confidence 1 - delta (learn-then-test).

        binary  losses can only be 0 and 1, by what they mean: the binomial test is exact then
        """
        test = _binomial_p if binary else _hoeffding_bentkus_p
        return self._highest(lambda k: test(float(self.sums[k]), self.n, target) <= delta)

    def controlled_by_others(self, target: float) -> list[float | None]:
        """For each patient the threshold that the other patients give; none of its own copies is among them."""

        def allowed(own: np.ndarray, times: int, k: int) -> bool:
            others = self.sums[k] - times * np.searchsorted(own, self.steps[k]) / len(own)
            return bool(others <= target * (self.n - times + 1) - 1 + _ROUNDING)

        return [self._highest(partial(allowed, *one)) for one in zip(self.values, self.times, strict=True)]

    def _highest(self, allowed: Callable[[int], bool]) -> float | None:
        """The highest value at which a condition holds that holds up to some value and no further."""
        low, high = 0, len(self.steps)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if allowed(middle) else (low, middle)
        return float(self.steps[low - 1]) if low else None


def _binomial_p(total: float, n: int, target: float) -> float:
    """P(Binomial(n, target) <= total): p-value of a risk above `target` after so many losses of 1 among n."""
    from scipy.stats import binom

    return float(binom.cdf(math.floor(total + _ROUNDING), n, target))


def _hoeffding_bentkus_p(total: float, n: int, target: float) -> float:
    """The same for any losses in [0, 1] of this sum: the smaller of two bounds of the chance of so small a sum.

    Hoeffding: exp(-n KL(mean, target)); Bentkus: e P(Binomial(n, target) <= sum, rounded up).
    """
    from scipy.special import rel_entr
    from scipy.stats import binom

    mean = min(total / n, 1.0)
    divergence = float(rel_entr(mean, target) + rel_entr(1 - mean, 1 - target)) if mean < target else 0.0
    bentkus = math.e * float(binom.cdf(math.ceil(total - _ROUNDING), n, target))
    return min(1.0, math.exp(-n * divergence), bentkus)


def _lesion_values(prediction: Prediction, kind: str, column: int | None = None) -> np.ndarray:
    """What can be missed in one case (see the module): a score per lesion instance, or per lesion; empty without."""
    if prediction.y_inst is None:
        return np.zeros(0)
    scores, positive = instance_score(prediction, column), prediction.y_inst > 0
    if kind == "instances" or not positive.any():
        return scores[positive]
    if prediction.edges is None:
        raise DataError(
            f"{prediction.id}: lesions are connected positive instances, but this prediction stores no edges; "
            "predict it again from a bag with a graph, or promise instances (--kind instances)"
        )
    lesion = _components(prediction.edges, positive)
    highest = np.full(lesion.max() + 1, -np.inf)
    np.maximum.at(highest, lesion[positive], scores[positive])
    return highest


def _patient_values(
    predictions: Sequence[Prediction], kind: str = "instances", column: int | None = None
) -> dict[int, np.ndarray]:
    """{patient: values} of the patients with a lesion, all their cases together, numbered as `units_of` does."""
    check_choice(kind, _LOSSES, "kind")
    parts: dict[int, list[np.ndarray]] = {}
    for unit, prediction in zip(units_of(predictions)[0].tolist(), predictions, strict=True):
        if len(values := _lesion_values(prediction, kind, column)):
            parts.setdefault(unit, []).append(values)
    joined = {unit: np.concatenate(parts[unit]) for unit in sorted(parts)}
    return {unit: values.min(keepdims=True) for unit, values in joined.items()} if kind == "patients" else joined


class AppliedCalibration(NamedTuple):
    """What a prediction says about the calibration that was applied to it."""

    threshold: float
    kind: str
    target: float
    delta: float | None
    column: int | None
    promise: bool
    sentence: str
    conditions: str
    digest: str

    @property
    def texts(self) -> tuple[str, str]:
        """The sentence and its conditions, each as one printable line."""
        sentence, conditions = ("".join(c if c.isprintable() else " " for c in text)
                                for text in (self.sentence, self.conditions))  # fmt: skip
        return sentence, conditions

    @property
    def text(self) -> str:
        """The sentence with its conditions."""
        return " ".join(self.texts).strip()


def applied_calibration(prediction: Prediction) -> AppliedCalibration | None:
    """The calibration of a prediction, without its promise where the case raised the drift alarm; None: none."""
    stated, drift = _stated_calibration(prediction), applied_drift(prediction)
    if stated is None or drift is None or not drift.alarm:
        return stated
    return stated._replace(promise=False, sentence=drift.withdrawal, conditions="")


def _stated_calibration(prediction: Prediction) -> AppliedCalibration | None:
    """The content of meta["calibration"]; None when there is none, or it is not as `smmil predict` writes it."""
    stated = prediction.meta.get("calibration")
    if not isinstance(stated, dict) or not set(AppliedCalibration._fields) <= stated.keys():
        return None
    found = AppliedCalibration(**{name: stated[name] for name in AppliedCalibration._fields})
    texts = all(isinstance(text, str) for text in (found.kind, found.sentence, found.conditions, found.digest))
    numbers = all(isinstance(v, float) and math.isfinite(v) for v in (found.threshold, found.target))
    options = type(found.delta) in (float, type(None)) and type(found.column) in (int, type(None))
    return found if texts and numbers and options and isinstance(found.promise, bool) else None


def shared_calibration(predictions: Sequence[Prediction], column: int | None = None) -> AppliedCalibration | None:
    """The calibration that all predictions share and that is of this score column; None when they do not.

    It is that of cases without a drift alarm; `applied_calibration` says what holds for each.
    """
    found = {_stated_calibration(p) for p in predictions}
    one = found.pop() if len(found) == 1 else None
    return one if one is not None and one.column == column else None


class CalibratedCase(NamedTuple):
    """What a calibration says about a whole case.

    probability  of a positive case, fitted; None: not known      classes  that cannot be excluded; None: not known
    never        classes that the calibration had too few patients of to ever exclude them
    own_case     whether the calibration was made with this case     promise  whether the target is promised for it
    """

    probability: float | None
    classes: tuple[int, ...] | None
    never: tuple[int, ...]
    n_classes: int
    target: float
    own_case: bool
    promise: bool

    def named(self, classes: Sequence[int]) -> str:
        """Names of classes as a list in words: negative, positive, or their numbers where there are more than two."""
        names = [("negative", "positive")[c] if self.n_classes == 2 else f"class {c}" for c in classes]
        return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""

    @property
    def text(self) -> str:
        """One or two sentences for a reader who knows medicine, not statistics; empty when nothing is said."""
        said = [] if self.classes is None else [self._classes_text(self.classes)]
        if self.probability is not None:
            sure = "an estimate from held-out cases, not guaranteed"
            p = 100 * self.probability
            share = "below 1 %" if p < 0.5 else "above 99 %" if p > 99.5 else f"{p:.0f} %"
            said.insert(0, f"Calibrated probability of a positive case: {share} ({sure}).")
        return " ".join(said)

    def _classes_text(self, kept: Sequence[int]) -> str:
        out = [c for c in range(self.n_classes) if c not in kept]
        if not kept:
            return "No class fits: each would be excluded, which is unusual; look at the case."
        if not out:
            every = f"{self.named(kept)} are both possible" if self.n_classes == 2 else "no class can be excluded"
            why = f" ({self.named(self.never)} never can be: too few patients in the calibration)" if self.never else ""
            return f"Undecided: {every}{why}."
        share = f"happens to at most {100 * self.target:.4g} % of {self.named(out)} cases, on average"
        sure, verb = share if self.promise else "without a promise here", "remains" if len(kept) == 1 else "remain"
        return f"{self.named(out).capitalize()} can be excluded ({sure}); {self.named(kept)} {verb} possible."


def calibrated_case(prediction: Prediction, stated: AppliedCalibration | None) -> CalibratedCase | None:
    """What the calibration of a prediction says about the whole case; stated: that calibration, as far as it holds."""
    facts = prediction.meta.get("calibration")
    if stated is None or not isinstance(facts, dict):
        return None
    n = prediction.n_classes

    def classes(key: str) -> tuple[int, ...] | None:
        found = facts.get(key)
        known = isinstance(found, list) and all(type(c) is int and 0 <= c < n for c in found)
        return tuple(found or ()) if known else None

    p, own = facts.get("probability"), facts.get("own_case") is True
    probability = p if type(p) is float and 0 <= p <= 1 else None
    never = classes("never_excluded") or ()
    return CalibratedCase(probability, classes("set"), never, n, stated.target, own, stated.promise)


def realised(predictions: Sequence[Prediction], stated: AppliedCalibration) -> str:
    """What was missed at the promised threshold in cases with marked lesions, in words; empty without such cases.

    Cases that the threshold was set on are no check of it and take no part.
    """
    lesions = [p for p in predictions if p.y_inst is not None and bool((p.y_inst > 0).any())]
    others = [p for p in predictions if p.meta["calibration"].get("own_case") is not True]
    own = sum(p.meta["calibration"].get("own_case") is True for p in lesions)
    if lesions and own == len(lesions):
        return (
            "The lesions here are those that the threshold was set on: they are no check of what is missed in others."
        )
    left_out = f" {own} that the threshold was set on are left out." if own else ""
    predictions = others
    if stated.kind not in _LOSSES or (stated.kind != "instances" and any(p.edges is None for p in predictions)):
        return ""
    missed = _MissedShares(list(_patient_values(predictions, stated.kind, stated.column).values()))
    if not missed.n:
        return ""
    share, n = float(missed.losses(stated.threshold).mean()), missed.n
    who = f"{n:,} patients" if n > 1 else "one patient"
    return (
        f"Measured on the {who} with lesions here: {share:.1%} missed.".replace("the one", "one").replace("%", " %")
        + left_out
    )


_AREA_TARGET = 0.1


def area_to_read(predictions: Sequence[Prediction], *, positive: bool, target: float = _AREA_TARGET) -> float:
    """Share of the instances flagged where at most `target` of the lesion instances are missed, averaged over cases.

    The threshold is that of the calibration the predictions carry, if it promises this. Else each patient is read at
    the threshold that the other patients with lesions give by conformal risk control. A patient's own threshold never
    saw the patient, so the missed share has an expectation of at most `target` for each of them; one threshold from all
    of them, applied to themselves, would not have it. A patient whose cases are given several times, as resampling
    does, counts as often among the others. nan with fewer patients than that needs, and for scores of more than two
    columns.
    """
    cases = [i for i, p in enumerate(predictions) if p.y is not None and (p.y > 0) == positive]
    if not cases or any(p.scores.shape[1] > 2 for p in predictions):
        return math.nan
    stated = _promised(predictions, target)
    if stated is not None:
        cuts: list[float | None] = [stated.threshold] * len(cases)
    else:
        units, values = units_of(predictions)[0].tolist(), _patient_values(predictions)
        given = Counter(zip(units, (p.id for p in predictions), strict=True))
        times = {unit: count for (unit, _), count in given.items()}
        missed = _MissedShares(list(values.values()), [times[unit] for unit in values])
        own = dict(zip(values, missed.controlled_by_others(target), strict=True))
        everyone = missed.controlled(target)
        cuts = [own.get(units[i], everyone) for i in cases]
    if None in cuts:
        return math.nan
    shares = [np.mean(instance_score(predictions[i]) >= cut) for i, cut in zip(cases, cuts, strict=True)]
    return math.fsum(shares) / len(shares)


def _promised(predictions: Sequence[Prediction], target: float = _AREA_TARGET) -> AppliedCalibration | None:
    """The calibration that the predictions share, if it promises that at most `target` of the instances are missed."""
    stated = shared_calibration(predictions)
    fits = stated is not None and stated.promise and (stated.kind, stated.target) == ("instances", target)
    return stated if fits else None


def _area_notes(predictions: Sequence[Prediction]) -> list[str]:
    """Why the area to read is undefined (with one patient less than needed in positive cases only)."""
    marked = [p for p in predictions if p.y_inst is not None and bool((p.y_inst > 0).any())]
    n, needed = len(set(units_of(marked)[0].tolist())), _needed_patients(_AREA_TARGET) + 1
    few = f"area to read: {n} patients have marked lesions, {needed} are needed"
    return [few] if 0 < n < needed and shared_calibration(predictions) is None else []


def _check_level(value: float, name: str) -> float:
    """A share between 0 and 1, neither of them; anything else is refused."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} {value:g}: expected a share between 0 and 1, such as 0.1 for 10 %")
    return value


def _class_thresholds(
    probs: np.ndarray, y: np.ndarray, units: np.ndarray, target: float
) -> tuple[list[float | None], list[int]]:
    """For each class the lowest probability at which it stays in a case's set, and its number of patients.

    Of the cases of each class (not only on average over classes) at most `target` are expected to lack it. With one
    case per patient these are the Mondrian conformal sets of the score 1 - probability. None: too few patients, the
    class is in every set.
    """
    cuts: list[float | None] = []
    sizes = []
    for c in range(probs.shape[1]):
        missed = _MissedShares([probs[(units == u) & (y == c), c] for u in np.unique(units[y == c])])
        cuts.append(missed.controlled(target))
        sizes.append(missed.n)
    return cuts, sizes


def _label_set(table: np.ndarray, cuts: Sequence[Any]) -> list[int]:
    """Classes of one row of probabilities that cannot be excluded."""
    return [c for c, cut in enumerate(cuts) if cut is None or table[c] >= cut]
