"""Where the instances of a case lie on the page: level-0 pixels of the slide, or slices of the scan."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.exports.case import Case
from smmil.exports.places import SlideFacts, boxes, slide_facts

if TYPE_CHECKING:
    from smmil.viewer.study import Study


@dataclass(frozen=True, eq=False)
class Places:
    """coords (n, 2) corners or (n, 1) slices; boxes (n, 4) left, top, right, bottom; sizes in level-0 pixels.

    notes  what a viewer should know, one line each
    """

    coords: np.ndarray | None = None
    boxes: np.ndarray | None = None
    patch: tuple[float, float] | None = None
    step: tuple[float, float] | None = None
    mpp: float | None = None
    notes: tuple[str, ...] = ()


def case_places(study: "Study", number: int) -> Places:
    """Places of the instances, from the slide where it is at hand, else as the prediction tells them."""
    row, case = study.cases[number], study.first_said(number)
    coords = case.prediction.coords
    if coords is None or row.kind == "none":
        return Places()
    if row.kind == "scan":
        return Places(coords[:, -1:].astype(np.float64))
    try:
        facts, case = _facts(study, number, case)
        if case.prediction.frame is None:
            return Places(coords.astype(np.float64), mpp=facts.mpp)
        places = _on_slide(case, facts)
        return places if row.kind == "slide" else replace(places, step=None)
    except DataError as problem:
        note = study.words(problem, number)
        return Places(coords.astype(np.float64), notes=(note,))


def _facts(study: "Study", number: int, case: Case) -> tuple[SlideFacts, Case]:
    """Facts from the slide; one that cannot be opened counts as not given (the page says so elsewhere)."""
    if case.image is not None:
        try:
            picture = study.picture(number)
            size = picture.origin[0] + picture.width, picture.origin[1] + picture.height
            mpp = picture.mpp or slide_facts(replace(case, image=None, notes=[])).mpp
            return SlideFacts(size, (*picture.origin, picture.width, picture.height), mpp), case
        except SmmilError:
            case = replace(case, image=None, notes=[])
    return slide_facts(replace(case, notes=[])), case


def _on_slide(case: Case, facts: SlideFacts) -> Places:
    frame = case.prediction.frame
    assert frame is not None  # asked before
    rectangles = boxes(case, facts)
    width, height = (rectangles[0, 2:] - rectangles[0, :2]).tolist()
    scale = width / frame.patch[0]
    step = [side * scale for side in (frame.step * 2)[:2]]
    return Places(rectangles[:, :2], rectangles, (width, height), (step[0], step[1]), facts.mpp)
