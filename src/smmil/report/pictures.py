"""Small pictures of the images behind the maps: slides cut to the tissue, scans slice by slice."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.images import open_slide
from smmil.images.windows import Window, parse_window
from smmil.report.cases import Case
from smmil.report.damage import describe, hatched, lost_pixels
from smmil.report.jpeg import fitting_jpeg
from smmil.report.matching import pixels_per_unit, refuse_other_slide
from smmil.report.originals import Original, find_originals
from smmil.report.slices import ScanPicture, scan_picture

_SIDES = (1600, 1200, 900, 640, 448, 320, 224)
_LARGEST_WHOLE = 12_000  # pixels of the whole slide's side that are decoded at most to cut the tissue from

Area = tuple[float, float, float, float]


@dataclass(frozen=True)
class CasePicture:
    """A JPEG (base64) and the rectangle it covers: left, top, width, height in coordinate units of the case.

    damage  what of the slide could not be decoded and is hatched, in words; None: nothing
    """

    jpeg: str
    area: Area
    damage: str | None = None


AnyPicture = CasePicture | ScanPicture


def all_pictures(
    cases: Sequence[Case], where: str | Path, most_bytes: int, shades: Window = "brain"
) -> tuple[dict[str, AnyPicture], dict[str, str]]:
    """Pictures by case id, and for the others the reason why there is none."""
    parse_window(shades)
    files = find_originals(where, [case.id for case in cases])
    share = most_bytes // max(len(cases), 1)
    found: dict[str, AnyPicture] = {}
    failed: dict[str, str] = {}
    for case in cases:
        try:
            found[case.id] = _picture(case, files, share, shades)
        except SmmilError as problem:
            failed[case.id] = str(problem).removeprefix(f"{case.id}: ")
    return found, failed


def _picture(case: Case, files: dict[str, Original], most_bytes: int, shades: Window) -> AnyPicture:
    if case.kind == "list":
        raise DataError("there is no map that a picture could lie below; see the note on the case")
    if case.id not in files:
        raise DataError(f"no {'scan' if case.kind == 'strip' else 'slide'} of this name was found")
    if case.kind == "strip":
        return scan_picture(files[case.id], case, most_bytes, shades)
    return case_picture(files[case.id], case, most_bytes)


def case_picture(original: Original, case: Case, most_bytes: int) -> CasePicture:
    """The tissue of a slide as the largest JPEG that fits into `most_bytes` (the smallest one, when none does)."""
    with open_slide(original.path, original.mpp) as slide:
        refuse_other_slide(case, slide)
        unit = pixels_per_unit(case, slide)
        area = _tissue_area(case, slide.size, unit)
        whole = max(1, min(_LARGEST_WHOLE, round(_SIDES[0] * max(slide.size) / max(area[2:]))))
        shown = slide.thumbnail(whole)
        lost, covered = _cut(lost_pixels(shown), shown.scale, area)
        damage = describe(lost, slide, shown) if lost.any() else None
    image = hatched(_cut(shown.image, shown.scale, area)[0], lost)
    left, top, width, height = (value / unit for value in covered)
    return CasePicture(fitting_jpeg(image, _SIDES, most_bytes), (left, top, width, height), damage)


def _tissue_area(case: Case, size: tuple[int, int], unit: float) -> Area:
    """The rectangle around all maps of the case with a margin, inside the slide, in its pixels."""
    facts = [r.facts for r in case.rasters if r is not None and r.facts["kind"] in ("map", "points")]
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
