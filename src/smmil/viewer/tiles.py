"""Pixels for the browser: Deep Zoom tiles, patches, CT slices and thumbnails."""

import io
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from smmil.errors import DataError, SmmilError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import paint, scan_heat
from smmil.images import Slide, Volume
from smmil.images.matching import Original, display_window, open_case_slide, recorded_window, refuse_other_slide
from smmil.images.volume import PRESETS, window
from smmil.maps import canvas
from smmil.maps.raster import rasterize
from smmil.prediction import Prediction
from smmil.viewer.cache import USUAL_BYTES
from smmil.viewer.catalogue import _NotFound

if TYPE_CHECKING:
    from smmil.viewer.data import ViewerData

_TILE = 256
_LARGEST_PATCH = 1024
# A slide without small levels would have to be decoded as a whole for its overview.
_MOST_DECODED = 2**28
_SIDE = 160  # of a thumbnail
_STRIP = 14
_DOT = 2  # half the width of an instance of unknown size
_OPACITY = 0.55
_PAPER = (246, 245, 242)


@dataclass(frozen=True)
class _SlidePicture:
    """A slide's scanned area as a Deep Zoom pyramid: level `levels` - 1 is full size, level 0 a single pixel.

    origin  level-0 pixel of the slide at the corner of the picture       weight  bytes an open slide may hold
    """

    path: Path
    origin: tuple[int, int]
    width: int
    height: int
    mpp: float | None
    weight: int = USUAL_BYTES

    @classmethod
    def open(cls, original: Original, prediction: Prediction) -> "_SlidePicture":
        """Size and place of a case's slide; an error when it cannot be opened, is another one, or has no overview."""
        with open_case_slide(original, [prediction]) as slide:
            refuse_other_slide(prediction.id, [prediction], slide)
            left, top, width, height = _scanned(slide)
            weight = slide.size[0] * slide.size[1] * 3 if slide.reader == "pillow" else 0
            picture = cls(original.path, (left, top), width, height, slide.mpp, max(weight, USUAL_BYTES))
            level = slide.best_level(picture.scale(picture.overview))
            if weight == 0 and width * height / slide.downsamples[level] ** 2 > _MOST_DECODED:
                raise DataError(f"{original.path}: has no small levels to show it from; convert it to a tiled pyramid")
        return picture

    @property
    def levels(self) -> int:
        return (max(self.width, self.height) - 1).bit_length() + 1

    @property
    def overview(self) -> int:
        """The largest level that is a single tile; smaller ones are made from it, not from the slide."""
        return min(self.levels - 1, _TILE.bit_length() - 1)

    def scale(self, level: int) -> int:
        """Level-0 pixels per pixel of a level."""
        return 1 << (self.levels - 1 - level)

    def size(self, level: int) -> tuple[int, int]:
        scale = self.scale(level)
        return ceil(self.width / scale), ceil(self.height / scale)

    def has(self, level: int, column: int, row: int) -> bool:
        """Whether there is such a tile."""
        if not 0 <= level < self.levels:
            return False
        width, height = self.size(level)
        return 0 <= column * _TILE < width and 0 <= row * _TILE < height

    def tile(self, slide: Slide, level: int, column: int, row: int) -> np.ndarray:
        """One tile, uint8 (height, width, 3); tiles at the right and lower edge are smaller."""
        scale = self.scale(level)
        if level < self.overview:
            whole = np.ascontiguousarray(self.tile(slide, self.overview, 0, 0))
            return np.asarray(Image.fromarray(whole).reduce(scale // self.scale(self.overview)))
        x, y = (origin + place * _TILE * scale for origin, place in zip(self.origin, (column, row), strict=True))
        width, height = self.size(level)
        return slide.read(x, y, _TILE * scale, _TILE)[: height - row * _TILE, : width - column * _TILE]

    def facts(self) -> dict[str, object]:
        size = {"width": self.width, "height": self.height, "tile": _TILE, "levels": self.levels}
        return {**size, "origin": list(self.origin)}


def _patch_pixels(slide: Slide, box: np.ndarray, size: int) -> np.ndarray:
    """The rectangle left, top, right, bottom in at most `size` pixels along its longer side; never enlarged."""
    left, top, right, bottom = box.tolist()
    side = max(right - left, bottom - top)
    pixels = max(1, min(size, _LARGEST_PATCH, ceil(side)))
    columns, rows = (max(1, round(length * pixels / side)) for length in (right - left, bottom - top))
    return slide.read(left, top, side, pixels)[:rows, :columns]


def _jpeg(pixels: np.ndarray) -> bytes:
    """As JPEG, colours as fine as brightness: nuclei are small."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=90, subsampling=0)
    return buffer.getvalue()


def _scanned(slide: Slide) -> tuple[int, int, int, int]:
    """The scanned area inside the slide; the whole slide when the file's bounds make no sense."""
    left, top, width, height = slide.bounds
    left, top = max(left, 0), max(top, 0)
    width, height = min(width, slide.size[0] - left), min(height, slide.size[1] - top)
    return (left, top, width, height) if width > 0 and height > 0 else (0, 0, *slide.size)


def _scan_facts(volume: Volume, prediction: Prediction) -> dict[str, Any]:
    """Sizes, distances in mm (slice, row, column), orientation, and windows (centre, width), the usual one first.

    Values that are no Hounsfield units, such as those of MR, are sent as they are and have windows of their own.
    """
    shown = display_window(prediction, volume)
    hounsfield = volume.values == "HU" or (volume.values == "unknown" and shown in PRESETS.values())
    named = {} if shown in PRESETS.values() else {"as prepared" if recorded_window(prediction) else "p1/99": shown}
    slices, rows, columns = volume.shape
    x, y, z = volume.spacing_mm
    windows = named | (PRESETS if volume.values in ("HU", "unknown") else {})
    return {
        "slices": slices,
        "rows": rows,
        "columns": columns,
        "spacing": [z, y, x] if volume.sized else None,
        "orientation": volume.stated_orientation,
        "unit": "HU" if hounsfield else None,
        "numbers": _numbers(volume),
        "windows": {name: list(limits) for name, limits in windows.items()},
    }


def _numbers(volume: Volume) -> str:
    """How slices are sent: whole numbers for Hounsfield units; others may all lie between 0 and 1."""
    return "int16" if volume.values == "HU" else "float32"


def _slice_bytes(volume: Volume, index: int) -> bytes:
    """Slice `index` row by row, little-endian; int16 is cut off at its limits."""
    values = volume.slice_hu(index)
    if _numbers(volume) == "float32":
        return np.nan_to_num(values, nan=float(np.nanmin(values, initial=0.0))).astype("<f4").tobytes()
    return np.clip(np.rint(np.nan_to_num(values, nan=-32768)), -32768, 32767).astype("<i2").tobytes()


def _thumbnail(study: "ViewerData", number: int) -> bytes:
    """A PNG of at most 160 x 160 pixels."""
    row = study.cases[number]
    if row.kind == "none":
        raise _NotFound("this case has no coordinates")
    case = study.first_export_case(number)
    return _png(_of_scan(study, number, case) if row.kind == "scan" else _of_slide(study, number, case))


def _of_slide(study: "ViewerData", number: int, case: ExportCase) -> np.ndarray:
    if case.image is not None:
        try:
            with study.damage_recorded(number):
                return _overlay_on_thumbnail(study, number, case)
        except SmmilError:
            pass  # the notes of the case give the reason; its map can still be shown
    if study.cases[number].kind == "slide":
        return _on_paper(rasterize(case.prediction, case.score)[0], case)
    coords = study.geometry(number).coords
    assert coords is not None  # asked before
    scale = max(float(np.ptp(coords, axis=0).max()), 1e-9) / (_SIDE - 2 * _DOT)
    dots = (coords - coords.min(0)) / scale
    return _on_paper(paint(np.hstack([dots, dots + 2 * _DOT]), case.score, (_SIDE, _SIDE)), case)


def _overlay_on_thumbnail(study: "ViewerData", number: int, case: ExportCase) -> np.ndarray:
    picture, places = study.picture(number), study.geometry(number)
    level = max(k for k in range(picture.levels) if max(picture.size(k)) <= _TILE)
    with study.pool.lend(picture.path, picture.weight) as slide:
        base = picture.tile(slide, level, 0, 0)
    scale = picture.scale(level)
    boxes = places.boxes
    if boxes is None:
        assert places.coords is not None  # asked before
        boxes = np.hstack([places.coords - _DOT * scale, places.coords + _DOT * scale])
    shifted = (boxes - np.array(picture.origin * 2)) / scale
    return _tinted(base, paint(shifted, case.score, base.shape[:2]), case, _OPACITY)


def _on_paper(heat: np.ndarray, case: ExportCase) -> np.ndarray:
    base = np.broadcast_to(np.array(_PAPER, np.uint8), (*heat.shape, 3))
    return _tinted(base, heat, case, 1.0)


def _of_scan(study: "ViewerData", number: int, case: ExportCase) -> np.ndarray:
    """The hottest slice, as it was prepared, above a strip of all scores; without the scan only the strip."""
    places = study.geometry(number).coords
    assert places is not None  # scans have coordinates
    slices, which = np.unique(places[:, -1], return_inverse=True)
    highest = np.full(len(slices), -np.inf)  # of the patches of each slice, where it was cut into some
    np.maximum.at(highest, which.ravel(), case.score.astype(np.float64))
    columns = np.linspace(0, len(slices) - 1, _SIDE).round().astype(int)
    strip = np.repeat(_on_paper(highest[columns][None], case), _STRIP, axis=0)
    if case.image is None:
        return strip
    try:
        hottest, volume = int(places[case.score.argmax(), -1]), study.volume(number)
        shown, limits = volume.slice_hu(hottest), display_window(case.prediction, volume)
    except SmmilError:
        return strip  # as above
    grey = np.repeat(
        (window(shown, *limits) * 255).astype(np.uint8)[..., None],
        3,
        axis=2,
    )
    if case.axes == 3:
        volume, rows = study.volume(number), np.flatnonzero(places[:, -1] == hottest)
        grey = _tinted(grey, scan_heat(case, volume, rows)[hottest], case, _OPACITY)
    fitted = ImageOps.pad(Image.fromarray(grey), (_SIDE, _SIDE - _STRIP), color="black")
    return np.vstack([np.asarray(fitted), strip])


def _tinted(base: np.ndarray, heat: np.ndarray, case: ExportCase, opacity: float) -> np.ndarray:
    low, high, _ = canvas.limits_of(case.score.astype(np.float64), case.prediction.fixed_scale)
    colours = canvas.colours("viridis")((np.nan_to_num(heat, nan=low) - low) / (high - low))[..., :3] * 255
    mixed = np.where(np.isnan(heat)[..., None], base, (1 - opacity) * base + opacity * colours)
    return np.rint(mixed).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    longest = max(image.size)
    if longest > _SIDE:
        image = image.resize([max(1, round(side * _SIDE / longest)) for side in image.size], Image.Resampling.BOX)
    elif longest <= _SIDE // 2:
        image = image.resize([side * (_SIDE // longest) for side in image.size], Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
