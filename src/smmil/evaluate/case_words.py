"""What was predicted of a case whose target is no class, in words: risk, level, number or labels, beside the truth."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from smmil.evaluate.bags import SURVIVAL, _answered_level, is_labelled
from smmil.prediction import Prediction

_CALLED = 0.5


class _CaseWords(NamedTuple):
    """A prediction in words, and what lists of cases sort and filter by.

    said     "risk 0.83 (3rd of 40), P(event by 24) 41 %", "level 3", "12.4", "blood 0.91, oedema 0.12"
    truth    "event at 9", "no event until 30", "level 4", "10.9", "blood"; empty: not known
    share    from 0 to 1, for a bar; None: there is none       error  how far from the truth; None: not known
    outcome  right or wrong, event or censored, too high or too low; unlabelled
    """

    said: str
    truth: str
    share: float | None
    error: float | None
    outcome: str

    @property
    def text(self) -> str:
        """Both together: "level 3 (true 4)"."""
        return f"{self.said} ({_short_truth(self.truth)})" if self.truth else self.said


def case_words(prediction: Prediction, values: Sequence[float] = ()) -> _CaseWords:
    """Words about a case; values: predicted numbers of all cases of its model, among which its place is told."""
    write = {"multilabel": _labels, "ordinal": _level, "regression": _number}
    return write.get(prediction.target_kind, _risk)(prediction, values)


def with_place(said: str, value: float, values: Sequence[float]) -> str:
    """Words that begin with a risk, with its place among all of them behind it: "risk 0.83 (3rd of 40), …"."""
    risk, comma, rest = said.partition(",")
    place = _place(1 + sum(other > value for other in values))
    return f"{risk} ({place} of {len(values):,}){comma}{rest}"


def predicted_values(predictions: Iterable[Prediction]) -> list[float]:
    """Predicted numbers of cases, for `case_words`."""
    return [p.value for p in predictions if p.value is not None]


def case_numbers(prediction: Prediction) -> dict[str, Any]:
    """Columns of a table about a case: its value, and the probability of each label, level or time."""
    if prediction.target_kind == "multilabel":
        names = prediction.target_names
    elif prediction.target_kind in SURVIVAL:
        names = [f"event_by_{time:g}" for time in prediction.times]
    else:
        names = [f"level_{level}" for level in range(len(prediction.probs))]
    found = {"case_value": prediction.value} if prediction.value is not None else {}
    return found | {f"case_probability_{name}": float(p) for name, p in zip(names, prediction.probs, strict=True)}


def positives_in_words(kind: str, n: int) -> str:
    """How many cases are positive, in the words of their target: "12 with an event"; empty for numbers."""
    words = {"class": "positive", "multilabel": "with a label", "ordinal": "above the lowest level", "regression": ""}
    said = words.get(kind, "with an event")
    return f"{n} {said}" if said else ""


def _short_truth(truth: str) -> str:
    return f"true {truth.removeprefix('level ')}" if not truth.startswith(("event", "no event")) else truth


def _risk(prediction: Prediction, values: Sequence[float]) -> _CaseWords:
    value = prediction.value
    said = "risk unknown" if value is None else f"risk {_digits(value)}"
    if value is not None and len(values) > 1:
        said = with_place(said, value, values)
    middle, share = len(prediction.times) // 2, None
    if len(prediction.times):
        share = float(prediction.probs[middle])
        said += f", P(event by {prediction.times[middle]:g}) {100 * share:.0f} %"
    if prediction.target is None:
        return _CaseWords(said, "", share, None, "unlabelled")
    time, event = prediction.target.tolist()
    truth = f"event at {_digits(time)}" if event else f"no event until {_digits(time)}"
    return _CaseWords(said, truth, share, _error_over_time(prediction), "event" if event else "censored")


def _error_over_time(prediction: Prediction) -> float | None:
    """Mean distance between the probability of an event and what is known, over the times until which it is known."""
    assert prediction.target is not None
    time, event = prediction.target.tolist()
    known = [(p, 1.0 if event and time <= t else 0.0) for p, t in zip(prediction.probs, prediction.times, strict=True)
             if event or time >= t]  # fmt: skip
    return float(np.mean([abs(p - happened) for p, happened in known])) if known else None


def _level(prediction: Prediction, values: Sequence[float]) -> _CaseWords:
    answer, y, most = _answered_level(prediction), prediction.y, max(len(prediction.probs) - 1, 1)
    outcome = "unlabelled" if y is None else "correct" if y == answer else "wrong"
    mean = answer if prediction.value is None else prediction.value
    error = None if y is None else abs(mean - y)
    return _CaseWords(f"level {answer}", "" if y is None else f"level {y}", answer / most, error, outcome)


def _number(prediction: Prediction, values: Sequence[float]) -> _CaseWords:
    value = math.nan if prediction.value is None else prediction.value
    said = "unknown" if prediction.value is None else _digits(value)
    if prediction.target is None:
        return _CaseWords(said, "", None, None, "unlabelled")
    true = float(prediction.target[0])
    side = "too high" if value > true else "too low" if value < true else "exact"
    return _CaseWords(said, _digits(true), None, None if math.isnan(value) else abs(value - true), side)


def _labels(prediction: Prediction, values: Sequence[float]) -> _CaseWords:
    names, probs = prediction.target_names, prediction.probs
    said = ", ".join(f"{name} {p:.2f}" for name, p in zip(names, probs, strict=True))
    if prediction.target is None or not is_labelled(prediction):
        return _CaseWords(said, "", None, None, "unlabelled")
    truth = prediction.target
    known = ~np.isnan(truth)
    there = [name for name, label in zip(names, truth, strict=True) if label == 1]
    gap = np.abs(probs[known] - truth[known])
    right = bool(((probs[known] >= _CALLED) == (truth[known] > 0)).all())
    return _CaseWords(said, ", ".join(there) or "none", None, float(gap.max()), "correct" if right else "wrong")


def _digits(value: float) -> str:
    """Three digits that count; whole numbers as they are."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.3g}"


def _place(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, …"""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
