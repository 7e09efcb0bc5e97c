"""Instance boxes in level-0 pixels, and scores painted onto pixels and CT volumes."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.exports.case import ExportCase
from smmil.images.volume import Volume

# Relative difference of pixel sizes that comes from writing them with fewer digits.
_SAME_SIZE = 0.01
_NEAR_WHOLE = 1e-3  # what is whole up to this rounding becomes whole


@dataclass(frozen=True)
class SlideFacts:
    """What is known about the slide; None where unknown."""

    size: tuple[int, int] | None = None  # (width, height) of level 0
    bounds: tuple[int, int, int, int] | None = None  # (x, y, width, height) of the scanned area in it
    mpp: float | None = None  # micrometres per level-0 pixel

    @property
    def offset(self) -> tuple[int, int]:
        """Corner of the scanned area: where QuPath and others that crop to it begin to count."""
        return (0, 0) if self.bounds is None else self.bounds[:2]


def slide_facts(case: ExportCase) -> SlideFacts:
    """Size, bounds and pixel size: from the slide, else from the prediction (`meta`: size, bounds, mpp)."""
    with case.slide() as slide:
        if slide is not None:
            return SlideFacts(slide.size, slide.bounds, slide.mpp or _pixel_size(case))
    meta = case.prediction.meta
    recorded = {**meta, **slide_meta} if isinstance(slide_meta := meta.get("slide"), dict) else meta
    size, bounds = _whole_numbers(recorded.get("size"), 2), _whole_numbers(recorded.get("bounds"), 4)
    if bounds is None:
        case.notes.append(
            "the slide was not given (--image), so its bounds are unknown: coordinates count from its corner"
        )
    return SlideFacts(size, bounds, _pixel_size(case))  # type: ignore[arg-type]


def boxes(case: ExportCase, facts: SlideFacts) -> np.ndarray:
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
    values = np.hstack([corners, corners + patch])
    whole = np.rint(values)
    return np.where(np.abs(values - whole) < _NEAR_WHOLE, whole, values)


def _pixels_per_unit(case: ExportCase, facts: SlideFacts) -> float:
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


def _pixel_size(case: ExportCase) -> float | None:
    """Micrometres per pixel as the prediction says it, else the unit its coordinates count in."""
    stated, frame = _stated_pixel_size(case), case.prediction.frame
    if stated is not None or frame is None or frame.spacing is None or frame.unit != "um":
        return stated
    return frame.spacing[0]


def _stated_pixel_size(case: ExportCase) -> float | None:
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


ALL = slice(None)
Rows = np.ndarray | slice  # chosen instances: numbers, a mask, or all
_MOST_PIXELS = 2**25
_REDUCTIONS = (32, 16, 8, 4, 2, 1)


def paint(boxes: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """float32 picture of that shape: (rows, columns), or (slices, rows, columns).

    boxes  (n, 2 d) first x, y(, z), then their ends, in output pixels; edges go to the nearest pixel edge, and an
           instance smaller than a pixel still gets one
    """
    axes = len(shape)
    first = np.rint(boxes[:, :axes]).astype(np.int64)
    last = np.maximum(np.rint(boxes[:, axes:]).astype(np.int64), first + 1)
    total, count = np.zeros(shape, np.float32), np.zeros(shape, np.uint16)
    limits = np.array(shape[::-1])
    first, last = np.clip(first, 0, limits), np.clip(last, 0, limits)
    for low, high, value in zip(first[:, ::-1].tolist(), last[:, ::-1].tolist(), values.tolist(), strict=True):
        place = tuple(map(slice, low, high))
        total[place] += value
        count[place] += 1
    with np.errstate(invalid="ignore"):
        return np.divide(total, count, out=np.full(shape, np.nan, np.float32), where=count > 0)


def _reduction(boxes: np.ndarray, size: tuple[int, int]) -> tuple[int, bool]:
    """Level-0 pixels per map pixel, a power of two, and whether every edge of an instance falls on a pixel edge.

    The coarsest of 32, 16, … 1 at which the map is exact; when none is, the finest one that stays below 34 million
    pixels. Very large slides may need more than 32.
    """

    def fits(r: int) -> bool:
        return prod(_reduced_shape(size, r)) <= _MOST_PIXELS

    small = [r for r in _REDUCTIONS if fits(r)]
    for r in small:
        if (boxes % r == 0).all():
            return r, True
    if small:
        return small[-1], False
    r = _REDUCTIONS[0]
    while not fits(r):
        r *= 2
    return r, bool((boxes % r == 0).all())


def _reduced_shape(size: tuple[int, int], r: int) -> tuple[int, int]:
    """Rows and columns of the map of a slide of (width, height) `size`."""
    return -(-size[1] // r), -(-size[0] // r)


def _slide_heat(
    case: ExportCase, rectangles: np.ndarray, size: tuple[int, int], rows: Rows = ALL
) -> tuple[np.ndarray, int, bool]:
    """The scores of a slide of that size, painted; level-0 pixels per map pixel, and whether all edges are exact."""
    r, exact = _reduction(rectangles, size)
    if not exact:
        case.notes.append(f"tile edges were rounded to map pixels of {r} level-0 pixels")
    return paint(rectangles[rows] / r, case.score[rows], _reduced_shape(size, r)), r, exact


def _extent(boxes: np.ndarray, size: tuple[int, int] | None) -> tuple[int, int]:
    """(width, height) of the slide; if unknown, just large enough for all instances."""
    if size is not None:
        return size
    right, bottom = np.ceil(boxes[:, 2:].max(0)).astype(int)
    return max(1, int(right)), max(1, int(bottom))


_MOST_VOXELS = 2**30


def scan_heat(case: ExportCase, volume: Volume, rows: Rows = ALL) -> np.ndarray:
    """float32 (slices, rows, columns) as `open_volume` shows them: whole slices or boxes of voxels; nan elsewhere."""
    if int(np.prod(volume.shape)) > _MOST_VOXELS:
        raise DataError(f"{volume.name}: {volume.shape} voxels are too many for one map; export a table instead")
    if case.axes == 3:
        return paint(_voxel_boxes(case, volume)[rows], case.score[rows], volume.shape)
    values = _slice_scores(case, len(volume), rows)
    return np.broadcast_to(values[:, None, None], volume.shape).copy()


def _slice_scores(case: ExportCase, n_slices: int, rows: Rows = ALL) -> np.ndarray:
    """float32 (slices,): the score of each slice, nan for slices that are no instance, the mean where several are."""
    if case.axes != 1:
        raise DataError(f"{case.id}: instances are not slices but have {case.axes} coordinates")
    places = _slices(case, n_slices)[rows]
    total = np.bincount(places, case.score[rows].astype(np.float64), n_slices)
    count = np.bincount(places, minlength=n_slices)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _slices(case: ExportCase, n_slices: int) -> np.ndarray:
    """Number of the slice of each instance, checked against the scan that was given."""
    assert case.prediction.coords is not None  # Case.axes saw to it
    stated = case.prediction.coords[:, 0].astype(np.float64)
    places = np.rint(stated).astype(np.int64)
    if np.abs(stated - places).max() > 1e-6 or places.min() < 0:
        raise DataError(f"{case.id}: coordinates of a scan count slices 0, 1, 2, …, got {stated.min():g}")
    if places.max() >= n_slices:
        raise DataError(
            f"{case.id}: an instance is slice {places.max()}, but the scan given with --image has only {n_slices}; "
            "give the scan this case was made from"
        )
    return places


def _voxel_boxes(case: ExportCase, volume: Volume) -> np.ndarray:
    frame, coords = case.prediction.frame, case.prediction.coords
    if frame is None or coords is None:
        raise DataError(f"{case.id}: the prediction does not say how large its instances are (no frame); predict again")
    first = coords.astype(np.float64)
    boxes = np.hstack([first, first + np.array((frame.patch * 3)[:3])])
    limits = np.array(volume.shape[::-1])
    if boxes[:, :3].min() < 0 or (boxes[:, :3] >= limits).any():
        raise DataError(
            f"{case.id}: instances lie outside the scan given with --image, which has {limits.tolist()} columns, rows "
            "and slices; give the scan this case was made from"
        )
    return boxes
