"""What predictions say about drift: the alarm of a case, a test of a whole folder, and both in words.

The p-value of a case is its rank among the held-out patients of the summary. The p-values of many cases are compared
with the same held-out patients, so they are not independent, but their joint distribution is known: n + m exchangeable
patients, of which n are held out. The test of a folder draws such patients and asks how often the mean p-value of the
patients is as far from its usual value, or the number of alarms as large. Cases of one patient count as one: their
p-values are averaged, and the drawn patient has a single one, which varies more.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from smmil.evaluate.bags import units_of
from smmil.prediction import Prediction

_DRAWS = 4000
_MOST_NUMBERS = 20_000_000  # in memory; more patients are drawn less often
_REASONS = {
    "look": "its colours and textures as a whole (staining, scanner, contrast or window, another tissue)",
    "lean": "all of it differs in one way that the training cases do not (focus, compression, processing)",
    "variety": "its parts differ more or less from each other than usual (blur, noise, artefacts, another tissue)",
    "strange": "many parts are unlike any of the training cases",
    "count": "the number of its parts",
    "size": "the size of its parts (magnification, pixel size)",
    "distance": "the distance between its parts or slices",
    "extent": "how large the imaged region is",
    "gap": "missing slices: there are gaps between them",
    "change": "how much neighbouring parts differ (missing, repeated or shuffled slices)",
}
_ADVICE = "Do not rely on its probability and map; look for the cause first."


class AppliedDrift(NamedTuple):
    """What a prediction says about its likeness to the training cases; see `smmil.evaluate.drift.CaseDrift`."""

    p: float
    alarm: bool
    share: float
    level: float
    patients: int
    why: tuple[str, ...]
    digest: str

    @property
    def text(self) -> str:
        """For a reader who knows medicine, not statistics; empty without an alarm."""
        if not self.alarm:
            return ""
        rank = math.floor(self.p * (self.patients + 1) - 1 + 1e-6)
        alike = "none" if rank == 0 else f"only {rank}"
        why = f" What stands out: {'; '.join(_REASONS[name] for name in self.why)}." if self.why else ""
        return (
            f"This case looks unlike the cases that the model learned from: of {self.patients} comparison patients "
            f"{alike} looked as unusual.{why} {_ADVICE}"
        )

    @property
    def withdrawal(self) -> str:
        """What becomes of a promise under the alarm."""
        return (
            "No promise for this case: it looks unlike the cases that the model learned from, so more may be missed "
            "than was promised."
        )


def applied_drift(prediction: Prediction) -> AppliedDrift | None:
    """The content of meta["drift"]; None when there is none, or it is not as `smmil predict` writes it."""
    stated = prediction.meta.get("drift")
    if not isinstance(stated, dict) or not set(AppliedDrift._fields) <= stated.keys():
        return None
    why = stated["why"]
    shares = all(type(stated[k]) is float and 0 <= stated[k] <= 1 for k in ("p", "share", "level"))
    known = isinstance(why, list) and all(isinstance(name, str) and name in _REASONS for name in why)
    whole = type(stated["patients"]) is int and stated["patients"] > 0
    if not (shares and known and whole and type(stated["alarm"]) is bool and type(stated["digest"]) is str):
        return None
    return AppliedDrift(**{name: stated[name] for name in AppliedDrift._fields} | {"why": tuple(why)})


class FolderDrift(NamedTuple):
    """Whether the cases of a folder together are unlike the held-out patients.

    p        of the two-sample test             alarm    whether it is at most the level
    cases, alarmed, patients  how many cases were compared, raised the alarm, and of how many patients they are
    """

    p: float
    alarm: bool
    cases: int
    alarmed: int
    patients: int
    level: float
    unlike: tuple[str, ...]

    @property
    def text(self) -> str:
        """One or two sentences; never empty."""
        verb = "looks" if self.alarmed == 1 else "look"
        first = f"{self.alarmed:,} of {self.cases:,} cases {verb} unlike the cases that the model learned from"
        usual = f"by chance it would be about {100 * self.level:.2g} %"
        if not self.alarm:
            return f"{first} ({usual}). As a whole they look like them (p = {self.p:.2g})."
        return (
            f"{first} ({usual}), and as a whole they differ from them (p = {self.p:.2g}). No promise holds here, and "
            "no probability or map should be relied on before the cause is known: another scanner, staining, "
            "protocol, population or preparation."
        )

    @property
    def withdrawal(self) -> str:
        """What becomes of a promise when the folder raises the alarm."""
        return (
            "The promise is withdrawn: as a whole these cases look unlike those that the model learned from, so more "
            "may be missed than was promised."
        )


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
    return FolderDrift(p, p <= first.level, len(found), len(unlike), len(means), first.level, unlike)


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
