"""Where the instances of a slide lie, in pixels of level 0."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.exports.case import Case

# Sizes of pixels closer than this are the same size, said with fewer digits.
_SAME_SIZE = 0.01
_NEAR_WHOLE = 1e-3


@dataclass(frozen=True)
class SlideFacts:
    """What is known about the slide; None where nobody says.

    size    (width, height) of level 0           bounds  (x, y, width, height) of the scanned area in it
    mpp     micrometres per level-0 pixel
    """

    size: tuple[int, int] | None = None
    bounds: tuple[int, int, int, int] | None = None
    mpp: float | None = None

    @property
    def offset(self) -> tuple[int, int]:
        """Corner of the scanned area: where QuPath and others that crop to it begin to count."""
        return (0, 0) if self.bounds is None else self.bounds[:2]


def slide_facts(case: Case) -> SlideFacts:
    """Size, bounds and pixel size: from the slide, else from the prediction (`meta`: size, bounds, mpp)."""
    with case.slide() as slide:
        if slide is not None:
            return SlideFacts(slide.size, slide.bounds, slide.mpp or _pixel_size(case))
    meta = case.prediction.meta
    told = {**meta, **slide_meta} if isinstance(slide_meta := meta.get("slide"), dict) else meta
    size, bounds = _whole_numbers(told.get("size"), 2), _whole_numbers(told.get("bounds"), 4)
    if bounds is None:
        case.notes.append(
            "the slide was not given (--image), so its bounds are unknown: coordinates count from its corner"
        )
    return SlideFacts(size, bounds, _pixel_size(case))  # type: ignore[arg-type]


def boxes(case: Case, facts: SlideFacts) -> np.ndarray:
    """(n, 4) left, top, right, bottom of every instance in level-0 pixels."""
    prediction = case.prediction
    case.need_slide("a map in pixels")
    if prediction.frame is None:
        raise DataError(
            f"{case.id}: the prediction does not say how large its instances are (no frame); predict it again from "
            "bags that store the patch size"
        )
    scale = _pixels_per_unit(case, facts)
    corners = np.asarray(prediction.coords, dtype=np.float64) * scale
    patch = np.array((prediction.frame.patch * 2)[:2]) * scale
    return near_whole(np.hstack([corners, corners + patch]))


def near_whole(values: np.ndarray) -> np.ndarray:
    """Whole numbers in place of values that are whole up to rounding."""
    whole = np.rint(values)
    return np.where(np.abs(values - whole) < _NEAR_WHOLE, whole, values)


def _pixels_per_unit(case: Case, facts: SlideFacts) -> float:
    """Level-0 pixels per coordinate unit: 1, unless coordinates count micrometres."""
    frame = case.prediction.frame
    if frame is None or frame.spacing is None or frame.unit != "um":
        return 1.0
    spacing = frame.spacing[0]
    if facts.mpp is None or (spacing == 1.0 and case.image is None and _stated_pixel_size(case) is None):
        raise DataError(
            f"{case.id}: coordinates count steps of {spacing:g} um and the size of the slide's pixels is not known; "
            "give the slide with --image"
        )
    return 1.0 if abs(spacing / facts.mpp - 1) <= _SAME_SIZE else spacing / facts.mpp


def _pixel_size(case: Case) -> float | None:
    """Micrometres per pixel as the prediction says it, else the unit its coordinates count in."""
    stated, frame = _stated_pixel_size(case), case.prediction.frame
    if stated is not None or frame is None or frame.spacing is None or frame.unit != "um":
        return stated
    return frame.spacing[0]


def _stated_pixel_size(case: Case) -> float | None:
    meta = case.prediction.meta
    slide = meta.get("slide")
    for mpp in (meta.get("mpp"), slide.get("mpp") if isinstance(slide, dict) else None):
        if isinstance(mpp, int | float) and 0 < mpp < float("inf"):
            return float(mpp)
    return None


def _whole_numbers(value: Any, count: int) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    return tuple(int(v) for v in value) if all(isinstance(v, int | float) and v >= 0 for v in value) else None
