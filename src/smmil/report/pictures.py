"""Small pictures of slides and scans behind the maps."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.images import DamagedTile, Slide, Thumbnail, Volume
from smmil.images.matching import (
    Original,
    display_window,
    find_case_images,
    open_case_slide,
    open_scan,
    pixels_per_unit,
    refuse_other_scan,
    refuse_other_slide,
)
from smmil.images.volume import Window, check_window, parse_window, window
from smmil.report.cases import _ReportCase

Area = tuple[float, float, float, float]
_DARK, _LIGHT = 96, 160
_STRIPES = 80  # along the longer side of a picture: still seen when it is made small


@dataclass(frozen=True)
class _CasePicture:
    """A JPEG (base64) of a slide's tissue, or with all slices of a scan from foot to head, row by row."""

    jpeg: str
    area: Area | None = None  # left, top, width, height of a slide in coordinate units
    damage: str | None = None  # what of a slide is lost and hatched; damaged scans are not shown at all
    layout: list[int] | None = None  # of a scan: slices per row, their width and height, number of slices
    voxels: list[int] | None = None  # columns and rows of a slice in its file
    sides: str | None = None  # what its columns, rows and slices run towards, such as LPS, where that is known
    wide_mm: float | None = None  # width of a slice, where that is known


def _lost_pixels(thumbnail: Thumbnail) -> np.ndarray:
    """(rows, columns) bool: pixels of the thumbnail that stand for damage."""
    lost = np.zeros(thumbnail.image.shape[:2], bool)
    for x, y, width, height in thumbnail.damaged:
        left, top = int(x / thumbnail.scale), int(y / thumbnail.scale)
        right, bottom = (int(np.ceil(end / thumbnail.scale - 1e-6)) for end in (x + width, y + height))
        lost[top:bottom, left:right] = True
    return lost


def _hatched(image: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """The picture with grey diagonal stripes, which no stain has, where pixels were lost."""
    if not lost.any():
        return image
    row, column = np.indices(lost.shape)
    stripe = max(2, max(lost.shape) // _STRIPES)
    grey = np.where((row + column) // stripe % 2, _DARK, _LIGHT).astype(np.uint8)
    return np.where(lost[..., None], grey[..., None], image)


def _describe(lost: np.ndarray, slide: Slide, thumbnail: Thumbnail) -> str:
    """How much is lost and why; an error when nothing is left to show."""
    x, y, width, height = thumbnail.damaged[0]
    side, reason = max(width, height), "its reader does not say why"
    try:
        slide.read(x, y, side, max(1, round(side / thumbnail.scale)))
    except DamagedTile as damage:
        reason = damage.reason
    if lost.all():
        raise DataError(f"{slide.path}: the slide is damaged, nothing here can be decoded ({reason}); copy it again")
    share = max(1, round(100 * lost.mean()))
    return f"the slide is damaged: {share} % of its picture cannot be decoded ({reason}) and is hatched; copy it again"


_QUALITY = 80


def _as_jpeg(image: np.ndarray) -> str:
    """A JPEG without any description, in base64; (rows, columns) is grey, (rows, columns, 3) is colour."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _fitting_jpeg(image: np.ndarray, sides: Sequence[int], most_bytes: int) -> str:
    """The largest JPEG with one of these longer sides that fits into `most_bytes`; the smallest when none does."""
    from PIL import Image

    longest = max(image.shape[:2])
    picture = Image.fromarray(np.ascontiguousarray(image))
    expected = 0.0
    for side in sides:
        # a picture has about as many bytes as pixels allow: no need to try sizes that are far too large
        if side != sides[-1] and expected * (side / longest) ** 2 > 1.2 * most_bytes:
            continue
        shape = [max(1, round(length * min(1.0, side / longest))) for length in (image.shape[1], image.shape[0])]
        small = picture if side >= longest else picture.resize((shape[0], shape[1]), Image.Resampling.BOX)
        encoded = _as_jpeg(np.asarray(small))
        if len(encoded) <= most_bytes:
            break
        expected = len(encoded) / min(1.0, side / longest) ** 2
    return encoded


_SIDES = (384, 320, 256, 192, 128, 96, 64, 48)
_WIDEST = 6000  # pixels of a picture's side; browsers refuse much larger ones


def _scan_picture(original: Original, case: _ReportCase, most_bytes: int, shades: Window | None = None) -> _CasePicture:
    """All slices through a window, as the largest JPEG that fits into `most_bytes` (the smallest, when none does).

    shades  None: the window that the prediction records, else the usual one for such values
    """
    first = next(prediction for prediction in case.predictions if prediction is not None)
    volume = open_scan(original.path, first)
    refuse_other_scan(case.id, case.predictions, volume)
    grey = _grey(volume, display_window(first, volume) if shades is None else parse_window(shades, volume))
    rows = ceil(len(grey) ** 0.5)
    # widths of a slice that keep the whole picture small enough to be shown
    for side in [side for side in _SIDES if side * rows <= _WIDEST] or [max(8, _WIDEST // rows)]:
        sheet, across, (height, width) = _sheet(grey, side)
        jpeg = _as_jpeg(sheet)
        if len(jpeg) <= most_bytes:
            break
    wide = volume.shape[2] * volume.spacing_mm[0] if volume.sized else None
    layout, voxels = [across, width, height, len(grey)], [volume.shape[2], volume.shape[1]]
    return _CasePicture(jpeg, layout=layout, voxels=voxels, sides=volume.stated_orientation, wide_mm=wide)


def _grey(volume: Volume, shades: tuple[float, float]) -> np.ndarray:
    """(slices, rows, columns) uint8, pixels made square, at most as fine as the largest picture needs."""
    from PIL import Image

    x, y, _ = volume.spacing_mm
    rows, columns = volume.shape[1] * y, volume.shape[2] * x
    unit = min(_SIDES[0], max(volume.shape[1:])) / max(rows, columns)
    size = max(1, round(columns * unit)), max(1, round(rows * unit))
    pictures = (window(volume.slice_hu(i), *shades) * 255 for i in range(len(volume)))
    return np.stack([
        np.asarray(Image.fromarray(np.rint(p).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR))
        for p in pictures
    ])  # fmt: skip


def _sheet(grey: np.ndarray, side: int) -> tuple[np.ndarray, int, tuple[int, int]]:
    """All slices row by row, at most `side` pixels wide and high each; their number per row and their size."""
    from PIL import Image

    factor = min(1.0, side / max(grey.shape[1:]))
    height, width = (max(1, round(length * factor)) for length in grey.shape[1:])
    across = ceil(len(grey) ** 0.5)
    sheet = np.zeros((height * ceil(len(grey) / across), width * across), np.uint8)
    for index, picture in enumerate(grey):
        top, left = index // across * height, index % across * width
        small = Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR)
        sheet[top : top + height, left : left + width] = np.asarray(small)
    return sheet, across, (height, width)


_SIDES_PICTURES = (1600, 1200, 900, 640, 448, 320, 224)
_LARGEST_WHOLE = 12_000  # pixels of the whole slide's side that are decoded at most to cut the tissue from


def _all_pictures(
    cases: Sequence[_ReportCase], where: str | Path, most_bytes: int, shades: Window | None = None
) -> tuple[dict[str, _CasePicture], dict[str, str]]:
    """Pictures by case id, and for the others the reason why there is none."""
    if shades is not None:
        check_window(shades)
    files = find_case_images(where, [case.id for case in cases])
    share = most_bytes // max(len(cases), 1)
    found: dict[str, _CasePicture] = {}
    failed: dict[str, str] = {}
    for case in cases:
        try:
            found[case.id] = _picture(case, files, share, shades)
        except SmmilError as problem:
            failed[case.id] = str(problem).removeprefix(f"{case.id}: ")
    return found, failed


def _picture(case: _ReportCase, files: dict[str, Original], most_bytes: int, shades: Window | None) -> _CasePicture:
    if case.kind == "list":
        raise DataError("there is no map that a picture could lie below; see the note on the case")
    if case.id not in files:
        raise DataError(f"no {'scan' if case.kind in ('strip', 'volume') else 'slide'} of this name was found")
    if case.kind in ("strip", "volume"):
        return _scan_picture(files[case.id], case, most_bytes, shades)
    return _case_picture(files[case.id], case, most_bytes)


def _case_picture(original: Original, case: _ReportCase, most_bytes: int) -> _CasePicture:
    """The tissue of a slide as the largest JPEG that fits into `most_bytes` (the smallest one, when none does)."""
    with open_case_slide(original, case.predictions) as slide:
        refuse_other_slide(case.id, case.predictions, slide)
        unit = pixels_per_unit(case.id, case.predictions, slide)
        area = _tissue_area(case, slide.size, unit)
        whole = max(1, min(_LARGEST_WHOLE, round(_SIDES_PICTURES[0] * max(slide.size) / max(area[2:]))))
        thumbnail = slide.thumbnail(whole)
        lost, covered = _cut(_lost_pixels(thumbnail), thumbnail.scale, area)
        damage = _describe(lost, slide, thumbnail) if lost.any() else None
    image = _hatched(_cut(thumbnail.image, thumbnail.scale, area)[0], lost)
    left, top, width, height = (value / unit for value in covered)
    return _CasePicture(_fitting_jpeg(image, _SIDES_PICTURES, most_bytes), (left, top, width, height), damage)


def _tissue_area(case: _ReportCase, size: tuple[int, int], unit: float) -> Area:
    """The rectangle around all maps of the case with a margin, inside the slide, in its pixels."""
    facts = [raster.facts for raster in case.all_rasters if raster.facts["kind"] in ("map", "points")]
    extents = np.array([f["extent"] for f in facts]) * unit
    (left, top), (right, bottom) = extents[:, :2].min(0).tolist(), extents[:, 2:].max(0).tolist()
    # tiles may hang over the edge, but not lie beyond it
    slack = max(_tile(f) for f in facts) * unit
    if min(left, top) < -slack or right > size[0] + slack or bottom > size[1] + slack:
        raise DataError(f"{case.id}: its tiles lie outside the slide ({size[0]} x {size[1]}); is it the right slide?")
    margin = 0.04 * max(right - left, bottom - top)
    left, top = max(0.0, left - margin), max(0.0, top - margin)
    right, bottom = min(float(size[0]), right + margin), min(float(size[1]), bottom + margin)
    return left, top, right - left, bottom - top


def _tile(facts: dict[str, Any]) -> float:
    """Width of an instance; that of a dot may be unknown, and its extent has a margin of one hundredth."""
    left, top, right, bottom = facts["extent"]
    if facts["kind"] == "points":
        return max(facts["width"] or 0.0, 0.02 * max(right - left, bottom - top))
    return (right - left) / facts["columns"]


def _cut(image: np.ndarray, scale: float, area: Area) -> tuple[np.ndarray, Area]:
    """The part of a thumbnail that covers the area, and what it covers exactly."""
    left, top = int(area[0] / scale), int(area[1] / scale)
    right, bottom = (int(np.ceil((area[i] + area[i + 2]) / scale)) for i in (0, 1))
    part = image[top:bottom, left:right]
    return part, (left * scale, top * scale, part.shape[1] * scale, part.shape[0] * scale)
