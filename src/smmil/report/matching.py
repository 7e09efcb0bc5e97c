"""Whether an image is the one a case was made from: a map over another one would point at nothing."""

from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.exports.same_scan import other_scan
from smmil.images import Slide, Volume
from smmil.report.cases import ReportCase

_SAME = 0.01  # pixel sizes and distances closer than this are the same, said with fewer digits
_ASK = "is it the image this case was made from?"


def refuse_other_slide(case: ReportCase, slide: Slide) -> None:
    """An error when the slide's size, scanned area or pixel size is not what the predictions remember."""
    for told in (p.meta.get("slide") for p in case.predictions if p is not None):
        if isinstance(told, dict):
            _refuse(case, slide, "pixels", told.get("size"), slide.size)
            _refuse(case, slide, "bounds (x, y, width, height)", told.get("bounds"), slide.bounds)
            _refuse_pixel_size(case, slide, told.get("mpp"))


def pixels_per_unit(case: ReportCase, slide: Slide) -> float:
    """Level-0 pixels per coordinate unit: 1, unless coordinates count micrometres."""
    unit = case.facts["spacing"] if case.facts["unit"] == "um" else None
    if unit is None or (slide.mpp is None and unit != 1.0):
        return 1.0
    if slide.mpp is None:
        raise DataError(
            f"{case.id}: coordinates count micrometres and {slide.path} does not say how large its pixels are; give "
            "--slides a table with a column mpp"
        )
    return 1.0 if abs(unit / slide.mpp - 1) <= _SAME else unit / slide.mpp


def slice_numbers(case: ReportCase, volume: Volume) -> np.ndarray:
    """Slices that are instances, counted from the foot; an error when the scan lacks them or is another one."""
    places = [p.coords for p in case.predictions if p is not None and p.coords is not None]
    stated = np.unique(np.concatenate([coords[:, 0] for coords in places if coords.shape[1] == 1]))
    numbers = np.rint(stated).astype(np.int64)
    if np.abs(stated - numbers).max() > 1e-6 or numbers.min() < 0:
        raise DataError(f"{case.id}: coordinates of a scan should count slices 0, 1, 2, …, got {stated.min():g}")
    if numbers.max() >= len(volume):
        raise DataError(f"{case.id}: has a slice {numbers.max()}, but {volume.name} only {len(volume)} slices; {_ASK}")
    apart = case.facts["spacing"] if case.facts["unit"] == "mm" else None
    if apart is not None and abs(apart / volume.distance_mm - 1) > _SAME:
        raise DataError(
            f"{case.id}: was made from slices {apart:g} mm apart, but those of {volume.name} are "
            f"{volume.distance_mm:g} mm apart; {_ASK}"
        )
    refuse_other_scan(case, volume)
    return numbers


def refuse_other_scan(case: ReportCase, volume: Volume) -> None:
    """An error when the scan's size, voxels or place in the patient are not what the predictions remember."""
    for prediction in (p for p in case.predictions if p is not None):
        other = other_scan(prediction, volume)
        if other is not None:
            raise DataError(
                f"{case.id}: was made from a scan with {other.told}, but {volume.name} has {other.found}; {_ASK}"
            )


def _refuse(case: ReportCase, slide: Slide, what: str, told: Any, found: tuple[int, ...]) -> None:
    if isinstance(told, list | tuple) and [*told] != [*found]:
        raise DataError(
            f"{case.id}: was made from a slide with {what} {_numbers(told)}, but {slide.path} has {_numbers(found)}; "
            f"{_ASK}"
        )


def _refuse_pixel_size(case: ReportCase, slide: Slide, told: Any) -> None:
    if isinstance(told, int | float) and told > 0 and slide.mpp is not None and abs(told / slide.mpp - 1) > _SAME:
        raise DataError(
            f"{case.id}: was made from a slide with {told:g} µm per pixel, but {slide.path} has {slide.mpp:g}; {_ASK} "
            "(a table for --slides may have a column mpp where the file is wrong)"
        )


def _numbers(values: Any) -> str:
    return " x ".join(str(v) for v in values)
