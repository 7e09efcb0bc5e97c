"""Cases whose target is no class as arrays: several labels, an ordered level, a number, or survival."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from smmil.errors import DataError, check_choice
from smmil.evaluate.bags import SURVIVAL, _answered_level, is_labelled, need_target, shared_target
from smmil.evaluate.survival import _Concordance, _FollowUp, _OverTime
from smmil.prediction import Prediction

_Kinds = dict[str, np.ndarray]


class TargetTable:
    """Labelled cases of one kind of target as arrays; what all metrics need is computed once.

    kind, cases, names   of the target, and of its columns (labels, number, or time and event)
    """

    def __init__(self, cases: Sequence[Prediction]):
        self.kind, self.cases = shared_target(cases), [p for p in cases if is_labelled(p)]
        widths = {len(p.probs): p.id for p in self.cases}
        if len(widths) > 1 and self.kind not in SURVIVAL:
            listed = ", ".join(f"{case}: {width}" for width, case in sorted(widths.items()))
            raise DataError(f"predictions of different numbers of labels or levels ({listed}); separate them")
        self.names = next((p.target_names for p in self.cases), [])

    def __len__(self) -> int:
        return len(self.cases)

    @cached_property
    def target(self) -> np.ndarray:
        """(n, t) what is known: labels, the number, or time and event; of an ordinal target the level."""
        rows = [np.array([p.y]) if self.kind == "ordinal" else p.target for p in self.cases]
        return np.array(rows, dtype=np.float64).reshape(len(rows), -1)

    @cached_property
    def value(self) -> np.ndarray:
        """(n,) the predicted number, level or risk."""
        if self.kind == "ordinal":
            return self.levels.astype(np.float64)
        lacking = next((p.id for p in self.cases if p.value is None), None)
        if lacking is not None:
            raise DataError(f"{lacking}: a prediction of kind {self.kind} without a value; predict this case again")
        return np.array([p.value for p in self.cases], dtype=np.float64)

    @cached_property
    def levels(self) -> np.ndarray:
        """(n,) the most probable level of an ordinal target."""
        return np.array([_answered_level(p) for p in self.cases], dtype=np.int64)

    @cached_property
    def probs(self) -> np.ndarray:
        return np.array([p.probs for p in self.cases], dtype=np.float64)

    @cached_property
    def times(self) -> np.ndarray:
        """Times of a survival target that all cases state; none where they differ, as those of several folds do."""
        stated = {tuple(p.times.tolist()) for p in self.cases}
        return np.array(stated.pop()) if len(stated) == 1 else np.zeros(0)

    @cached_property
    def follow_up(self) -> _FollowUp:
        return _FollowUp(self.target[:, 0], self.target[:, 1] > 0) if len(self) else _FollowUp(np.zeros(0), np.zeros(0))

    @cached_property
    def concordance(self) -> _Concordance:
        return _Concordance(self.follow_up, self.value)

    @cached_property
    def over_time(self) -> _OverTime:
        probs = self.probs if len(self.times) else np.zeros((len(self), 0))
        return _OverTime(self.follow_up, probs, self.times)

    @property
    def kinds(self) -> _Kinds:
        """Cases of the kinds that its metrics need, beside all of them."""
        if self.kind in SURVIVAL:
            return {"{units} with an event": self.target[:, 1] > 0 if len(self) else np.zeros(0, dtype=bool)}
        if self.kind == "ordinal" and len(self):
            levels, counts = np.unique(self.target[:, 0], return_counts=True)
            usual = int(levels[counts.argmax()])
            return {f"{{units}} not of level {usual}": self.target[:, 0] != usual}
        return {}


def of_label(predictions: Sequence[Prediction], label: str) -> list[Prediction]:
    """One label of several as cases of two classes; where it is not known they have no label."""
    need_target(predictions, f"label {label}", ("multilabel",))
    names = predictions[0].target_names if predictions else [label]
    column = names.index(check_choice(label, names, "label"))
    found = []
    for p in predictions:
        known = math.nan if p.target is None else float(p.target[column])
        meta = {key: value for key, value in p.meta.items() if key != "target"}
        y = None if math.isnan(known) else int(known)
        found.append(replace(p, probs=p.probs[column : column + 1], y=y, target=None, value=None, meta=meta))
    return found


def _both_classes(predictions: Sequence[Prediction], label: str) -> bool:
    """Whether a label is known to be there in some cases and absent in others."""
    return {0, 1} <= {p.y for p in of_label(predictions, label)}


def _judged_labels(predictions: Sequence[Prediction]) -> list[str]:
    """Labels that take part in means over labels: those with both classes."""
    names = predictions[0].target_names if predictions else []
    return [name for name in names if _both_classes(predictions, name)]
