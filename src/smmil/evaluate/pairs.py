"""The same cases as two models saw them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.cases import patient_of
from smmil.prediction import Prediction


class Pairs(NamedTuple):
    """Cases that both models predicted, in the same order, and how many only one did."""

    a: list[Prediction]
    b: list[Prediction]
    only_in_a: int
    only_in_b: int


def paired(a: Sequence[Prediction], b: Sequence[Prediction]) -> tuple[Pairs, list[str]]:
    """The common cases of two models by id, and remarks; refused when a label or patient of a case differs."""
    first, second = _by_id(a, "first"), _by_id(b, "second")
    common = sorted(first.keys() & second.keys())
    if not common:
        raise DataError(
            f"compare: the two models have no case in common ({_some(first)} / {_some(second)}); predict the same cases"
        )
    for case in common:
        _refuse_different(first[case], second[case])
    found = Pairs(
        [_with_patient(first[case], second[case]) for case in common],
        [second[case] for case in common],
        len(first) - len(common),
        len(second) - len(common),
    )
    if found.only_in_a or found.only_in_b:
        counts = f"{found.only_in_a} cases only of the first model and {found.only_in_b} only of the second"
        return found, [f"{counts} are left out"]
    return found, []


def _by_id(predictions: Sequence[Prediction], which: str) -> dict[str, Prediction]:
    found = {p.id: p for p in predictions}
    if len(found) < len(predictions):
        raise DataError(
            f"compare: the {which} model has {len(predictions)} predictions of {len(found)} cases; keep one each"
        )
    return found


def _refuse_different(a: Prediction, b: Prediction) -> None:
    if a.y != b.y:
        raise DataError(
            f"{a.id}: label {a.y} in the first model's file but {b.y} in the second's; predict one of them again"
        )
    same = a.y_inst is b.y_inst if a.y_inst is None or b.y_inst is None else np.array_equal(a.y_inst, b.y_inst)
    if not same:
        raise DataError(f"{a.id}: instance labels differ between the two models; predict both from the same bag files")
    people = {patient_of(p) for p in (a, b)} - {None}
    if len(people) > 1:
        raise DataError(f"{a.id}: belongs to patient {' and '.join(sorted(map(str, people)))}; mend the manifest")


def _with_patient(a: Prediction, b: Prediction) -> Prediction:
    """The first one, with the patient that perhaps only the second names."""
    who = patient_of(b)
    return a if who is None or patient_of(a) is not None else replace(a, meta={**a.meta, "patient": who})


def _some(cases: dict[str, Prediction]) -> str:
    return ", ".join(sorted(cases)[:2]) or "none"
