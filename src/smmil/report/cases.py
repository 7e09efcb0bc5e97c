"""One row per case: what every model said, how wrong it was, and the map to show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smmil.prediction import Prediction
from smmil.report.private import safe_text
from smmil.report.rasters import Raster, pack

CALLED_POSITIVE = 0.5


@dataclass(frozen=True)
class Case:
    """A case as the page knows it: plain facts, and the packed raster of each model (None: model without this case)."""

    id: str
    facts: dict[str, Any]
    rasters: list[Raster | None]
    predictions: list[Prediction | None]

    @property
    def kind(self) -> str:
        """The best that any model's prediction allows: map, points, strip or list."""
        kinds = {r.facts["kind"] for r in self.rasters if r is not None}
        return next(kind for kind in ("map", "points", "strip", "list") if kind in kinds)


def all_cases(models: Mapping[str, Sequence[Prediction]], column: int | None = None, bits: int = 16) -> list[Case]:
    """Every case of any model; worst mistakes of the first model first, unlabelled cases last."""
    tables = [{p.id: p for p in predictions} for predictions in models.values()]
    ids = sorted({id_ for table in tables for id_ in table})
    cases = [_case(id_, [table.get(id_) for table in tables], column, bits) for id_ in ids]
    return sorted(cases, key=_worst_first)


def _case(id_: str, predictions: list[Prediction | None], column: int | None, bits: int) -> Case:
    rasters = [None if p is None else pack(p, column, bits) for p in predictions]
    first = next(p for p in predictions if p is not None)
    said = [
        None if p is None or r is None else {**verdict(p), "raster": r.facts}
        for p, r in zip(predictions, rasters, strict=True)
    ]
    facts = {"id": safe_text(id_), "y": first.y, "part": _part(first), "said": said, **_scale(first)}
    return Case(id_, facts, rasters, predictions)


def verdict(prediction: Prediction) -> dict[str, Any]:
    """Probabilities, answer, distance from the label (1 - probability of the true class) and outcome in one word."""
    probs = prediction.probs.tolist()
    table = [1 - probs[0], probs[0]] if len(probs) == 1 else probs
    answer = int(table[1] >= CALLED_POSITIVE) if len(table) == 2 else max(range(len(table)), key=table.__getitem__)
    y = prediction.y
    return {
        "p": table[answer] if len(table) > 2 else table[1],
        "answer": answer,
        "error": None if y is None else 1 - table[y],
        "outcome": outcome(y, answer, len(table)),
        "instances": prediction.n,
    }


def outcome(y: int | None, answer: int, classes: int = 2) -> str:
    """true or false, positive or negative, as the viewer says; with several classes correct or wrong; or unlabelled."""
    if y is None:
        return "unlabelled"
    if classes > 2:
        return "correct" if y == answer else "wrong"
    return f"{'true' if y == answer else 'false'} {'positive' if answer else 'negative'}"


def _worst_first(case: Case) -> tuple[float, str]:
    errors = [said["error"] for said in case.facts["said"] if said is not None]
    first = errors[0] if errors else None
    return (2.0 if first is None else -first, case.id)


def _part(prediction: Prediction) -> str | None:
    split = prediction.meta.get("split")
    part = split.get("part") if isinstance(split, dict) else None
    return part if part in ("train", "val", "test") else None


def _scale(prediction: Prediction) -> dict[str, Any]:
    """Size and unit of one coordinate step, for scale bars."""
    frame = prediction.frame
    known = frame is not None and frame.spacing is not None and frame.unit in ("um", "mm")
    return {"spacing": frame.spacing[0] if known else None, "unit": frame.unit if known else "px"}  # type: ignore[union-attr,index]
