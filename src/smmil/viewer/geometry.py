"""Positions of a case's instances on the page: level-0 pixels of the slide or slices of the scan."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import SlideFacts, boxes, slide_facts
from smmil.frame import Frame
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from smmil.viewer.data import ViewerData

_SAME_SIZE = 0.01  # pixel sizes closer than this are the same, written with fewer digits


@dataclass(frozen=True, eq=False)
class Geometry:
    """coords (n, 2) corners or (n, 1) slices; boxes (n, 4) left, top, right, bottom; sizes in level-0 pixels.

    size   of the slide, width and height, as far as it is known
    notes  what a viewer should know, one line each
    """

    coords: np.ndarray | None = None
    boxes: np.ndarray | None = None
    patch: tuple[float, float] | None = None
    step: tuple[float, float] | None = None
    mpp: float | None = None
    size: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


def case_geometry(study: "ViewerData", number: int) -> Geometry:
    """Geometry of the instances, from the slide where it is at hand, else as the prediction states them."""
    row, case = study.cases[number], study.first_export_case(number)
    coords = case.prediction.coords
    if coords is None or row.kind == "none":
        return Geometry()
    if row.kind == "scan":
        return Geometry(coords[:, -1:].astype(np.float64))
    try:
        facts, case = _facts(study, number, case)
        if case.prediction.frame is None:
            return Geometry(coords.astype(np.float64), mpp=facts.mpp, size=facts.size)
        places = _on_slide(case, facts)
        return places if row.kind == "slide" else replace(places, step=None)
    except DataError as problem:
        note = study.message(problem, number)
        return Geometry(coords.astype(np.float64), notes=(note,))


def _facts(study: "ViewerData", number: int, case: ExportCase) -> tuple[SlideFacts, ExportCase]:
    """Facts from the slide, else as the prediction remembers them.

    A slide that cannot be opened or is another one counts as not given (a note of the case says so).
    """
    remembered = _remembered_pixel_size(case.prediction)
    alone = replace(case, image=None, notes=[])
    if case.image is not None:
        try:
            picture = study.picture(number)
            size = picture.origin[0] + picture.width, picture.origin[1] + picture.height
            mpp = picture.mpp or remembered or slide_facts(alone).mpp
            return SlideFacts(size, (*picture.origin, picture.width, picture.height), mpp), case
        except SmmilError:
            pass
    facts = slide_facts(alone)
    return (facts, alone) if remembered is None else (replace(facts, mpp=remembered), _in_pixels(alone, remembered))


def _remembered_pixel_size(prediction: Prediction) -> float | None:
    """Micrometres per level-0 pixel of the slide the case was made from."""
    slide = prediction.meta.get("slide")
    mpp = slide.get("mpp") if isinstance(slide, dict) else None
    return float(mpp) if isinstance(mpp, int | float) and 0 < mpp < float("inf") else None


def _in_pixels(case: ExportCase, mpp: float) -> ExportCase:
    """The case with coordinates in level-0 pixels, where they counted micrometres."""
    prediction, frame = case.prediction, case.prediction.frame
    if prediction.coords is None or frame is None or frame.spacing is None or frame.unit != "um":
        return case
    scale = frame.spacing[0] / mpp
    scale = 1.0 if abs(scale - 1) <= _SAME_SIZE else scale
    patch, step = (tuple(side * scale for side in sides) for sides in (frame.patch, frame.step))
    coords = prediction.coords.astype(np.float64) * scale
    return replace(case, prediction=replace(prediction, coords=coords, frame=Frame(patch, stride=step)))


def _on_slide(case: ExportCase, facts: SlideFacts) -> Geometry:
    frame = case.prediction.frame
    assert frame is not None  # asked before
    rectangles = boxes(case, facts)
    width, height = (rectangles[0, 2:] - rectangles[0, :2]).tolist()
    scale = width / frame.patch[0]
    step = [side * scale for side in (frame.step * 2)[:2]]
    return Geometry(rectangles[:, :2], rectangles, (width, height), (step[0], step[1]), facts.mpp, facts.size)
