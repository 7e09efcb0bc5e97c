"""The drift alarm of a folder: are its cases together unlike those of training, and what does that withdraw?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.bags import units_of
from smmil.evaluate.conformal import AppliedCalibration, CalibratedCase, applied_calibration, calibrated_case
from smmil.prediction import Prediction

# The p-value of a case is its rank among the held-out patients of a drift summary. Those of many cases are compared
# with the same held-out patients, so they are not independent, but their joint distribution is known: n + m
# exchangeable patients, n of them held out. The test of a folder draws such orders and asks how often the mean p-value
# of patients is as far from its usual value, or the number of alarms as large. Cases of one patient count as one: their
# p-values are averaged, and the drawn patient has a single one, which varies more.
_DRAWS = 4000
_MOST_NUMBERS = 20_000_000  # in memory; more patients are drawn less often
_UNLIKE = "unlike those that the model learned from, so more may be missed than was promised."


class FolderDrift(NamedTuple):
    """Whether the cases of a folder together are unlike the held-out patients.

    p        of the two-sample test             alarm    whether it is at most the level
    cases, alarmed, patients  how many cases were compared, raised the alarm, and of how many patients they are
    held_out  patients of the drift summary that they were compared with
    """

    p: float
    alarm: bool
    cases: int
    alarmed: int
    patients: int
    level: float
    unlike: tuple[str, ...]
    held_out: int

    @property
    def text(self) -> str:
        """One or two sentences; never empty."""
        verb = "looks" if self.alarmed == 1 else "look"
        first = f"{self.alarmed:,} of {self.cases:,} cases {verb} unlike the cases that the model learned from"
        usual = f"by chance it would be about {100 * self.level:.2g} %"
        here = f"{self.cases:,} case{'s' * (self.cases != 1)} of {self.patients:,} patient{'s' * (self.patients != 1)}"
        who = f"{here} against {self.held_out:,} patients, p = {self.p:.2g}"
        if not self.alarm:
            return f"{first} ({usual}). As a whole no difference was shown ({who})."
        return (
            f"{first} ({usual}), and as a whole they differ from them ({who}). No promise holds here, and "
            "no probability or map should be relied on before the cause is known: another scanner, staining, "
            "protocol, population or preparation."
        )

    @property
    def withdrawal(self) -> str:
        """What becomes of a promise when the folder raises the alarm."""
        return f"The promise is withdrawn: as a whole these cases look {_UNLIKE}"


def folder_drift(predictions: Sequence[Prediction]) -> FolderDrift | None:
    """The test of all cases with a drift summary; None when none has one, or they were compared with several."""
    found = [(p, one) for p in predictions if (one := applied_drift(p)) is not None]
    if not found or len({(one.digest, one.patients, one.level) for _, one in found}) > 1:
        return None
    first = found[0][1]
    units = units_of([p for p, _ in found])[0]
    means = np.bincount(units, [one.p for _, one in found]) / np.bincount(units)
    p = _two_sample_p(means, first.patients, first.level)
    unlike = tuple(case.id for case, one in found if one.alarm)
    return FolderDrift(p, p <= first.level, len(found), len(unlike), len(means), first.level, unlike, first.patients)


def drift_facts(prediction: Prediction) -> Prediction:
    """What `folder_drift` needs of a case, without its scores: of many cases they would fill the memory."""
    facts = {key: value for key, value in prediction.meta.items() if key in ("drift", "group", "patient")}
    return Prediction(prediction.id, np.zeros(1), np.zeros(1), meta=facts)


def promise_of_case(prediction: Prediction, folder: FolderDrift | None) -> AppliedCalibration | None:
    """The calibration of a case among the others of its folder; no promise where it or they raised the drift alarm."""
    stated, own = applied_calibration(prediction), applied_drift(prediction)
    if stated is None or folder is None or not folder.alarm or (own is not None and own.alarm):
        return stated
    sentence = f"No promise for this case: as a whole the cases beside which it was predicted look {_UNLIKE}"
    return stated._replace(promise=False, sentence=sentence, conditions="")


def warning_of_case(prediction: Prediction, folder: FolderDrift | None) -> str:
    """What the drift alarm says of a case, else of its folder; empty where neither raised it."""
    own = applied_drift(prediction)
    if own is not None and own.alarm:
        return own.text
    return folder.text if folder is not None and folder.alarm else ""


def _two_sample_p(values: np.ndarray, held_out: int, level: float) -> float:
    """p-value of the hypothesis that these patients and the held-out ones are exchangeable, by drawing ranks.

    Two statistics, each with its share of draws that are as extreme: distance of the mean from that of the draws, and
    number of values at the level. The smaller share counts, compared with that of the draws themselves.
    """
    rng, m = np.random.default_rng(0), len(values)
    drawn = _drawn_p_values(rng, m, held_out)
    rows = np.vstack([values, drawn])
    mean = rows.mean(1)
    away = np.abs(mean - drawn.mean())
    alarms = (rows <= level + 1e-9).sum(1)
    share = np.minimum(*(_share_at_least(np.round(s, 9)) for s in (away, alarms)))
    return float((share <= share[0] + 1e-12).mean())


def _drawn_p_values(rng: np.random.Generator, m: int, held_out: int) -> np.ndarray:
    """(draws, m) conformal p-values of m patients against `held_out` others: all orders are equally likely."""
    draws = max(500, min(_DRAWS, _MOST_NUMBERS // (m + held_out)))
    new = rng.permuted(np.tile(np.arange(m + held_out) < m, (draws, 1)), axis=1)  # from the strangest on
    as_strange = np.cumsum(~new, axis=1)[new].reshape(draws, m)
    return np.asarray((1 + as_strange) / (held_out + 1))


def _share_at_least(values: np.ndarray) -> np.ndarray:
    """For each value the share of all values that are at least as large."""
    order = np.sort(values)
    return (len(values) - np.searchsorted(order, values, side="left")) / len(values)


def promise_of_cases(sentence: str, drift: FolderDrift | None, cases: int) -> str:
    """A promise in words for so many cases: none where all lost it, else with the number of those that did."""
    if drift is not None and drift.alarm:
        return f"No promise: as a whole these cases look {_UNLIKE}"
    if drift is None or not drift.alarmed:
        return sentence
    if drift.alarmed == cases:
        return f"No promise: {'this case looks' if cases == 1 else 'all of these cases look'} {_UNLIKE}"
    verb = "it looks" if drift.alarmed == 1 else "they look"
    lost = f"{drift.alarmed:,} of these {cases:,} cases"
    return f"{sentence} The promise does not hold for {lost}: {verb} {_UNLIKE}"


def class_sets_in_words(predictions: Sequence[Prediction], drift: FolderDrift | None) -> str:
    """How many cases a calibration decides, and how many labelled ones lost their true class; empty without sets."""
    said = [(p, one) for p in predictions if (one := calibrated_case(p, promise_of_case(p, drift))) is not None]
    said = [(p, one) for p, one in said if one.classes is not None]
    if not said or len({(one.n_classes, one.target) for _, one in said}) > 1:
        return ""
    first = said[0][1]
    sizes = [len(one.classes or ()) for _, one in said]
    kinds = [((c,), f"can only be {first.named([c])}") for c in range(first.n_classes)]
    alone = [(sum(one.classes == kind for _, one in said), words) for kind, words in kinds]
    several = [(sum(size > 1 for size in sizes), "undecided"), (sizes.count(0), "of no class")]
    counts = ", ".join(f"{count:,} {words}" for count, words in [*alone, *several] if count)
    lost = sum(not one.promise for _, one in said)
    limit = f"at most {100 * first.target:.4g} % of the cases of each class lose their class, on average"
    limit += f"; not promised for {lost:,} of them" if lost else ""
    limit = limit if lost < len(said) else "without a promise"
    return f"Of {len(said):,} cases {counts} ({limit}).{_lost_classes(said)}"


def _lost_classes(said: Sequence[tuple[Prediction, CalibratedCase]]) -> str:
    """What was measured of it on labelled cases that the calibration did not see; empty without such cases."""
    parts = []
    for c in range(said[0][1].n_classes):
        of_class = [one for p, one in said if p.y == c and not one.own_case]
        if of_class:
            lost = sum(c not in (one.classes or ()) for one in of_class)
            parts.append(f"{lost:,} of {len(of_class):,} {said[0][1].named([c])} cases")
    return f" Measured here: {', '.join(parts)} lost their true class." if parts else ""
