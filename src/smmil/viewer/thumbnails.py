"""Small pictures for the list of cases: the slide or the hottest slice, with the first model's map."""

import io
from typing import TYPE_CHECKING

import numpy as np

from smmil.errors import SmmilError
from smmil.exports.case import ExportCase
from smmil.exports.geometry import paint
from smmil.images.volume import PRESETS, window
from smmil.maps import canvas, rasterize
from smmil.viewer.params import Absent
from smmil.viewer.tiles import TILE, tile_pixels

if TYPE_CHECKING:
    from smmil.viewer.data import ViewerData

SIDE = 160
_STRIP = 14
_DOT = 2  # half the width of an instance whose size nobody knows
_OPACITY = 0.55
_PAPER = (246, 245, 242)


def thumbnail(study: "ViewerData", number: int) -> bytes:
    """A PNG of at most 160 x 160 pixels."""
    row = study.cases[number]
    if row.kind == "none":
        raise Absent("this case has no coordinates")
    case = study.first_said(number)
    return _png(_of_scan(study, number, case) if row.kind == "scan" else _of_slide(study, number, case))


def _of_slide(study: "ViewerData", number: int, case: ExportCase) -> np.ndarray:
    if case.image is not None:
        try:
            with study.damage.noted(number):
                return _over_slide(study, number, case)
        except SmmilError:
            pass  # the case itself says what is wrong with its slide; its map can still be shown
    if study.cases[number].kind == "slide":
        return _on_paper(rasterize(case.prediction, case.score)[0], case)
    coords = study.places(number).coords
    assert coords is not None  # asked before
    scale = max(float(np.ptp(coords, axis=0).max()), 1e-9) / (SIDE - 2 * _DOT)
    dots = (coords - coords.min(0)) / scale
    return _on_paper(paint(np.hstack([dots, dots + 2 * _DOT]), case.score, (SIDE, SIDE)), case)


def _over_slide(study: "ViewerData", number: int, case: ExportCase) -> np.ndarray:
    picture, places = study.picture(number), study.places(number)
    level = max(k for k in range(picture.levels) if max(picture.size(k)) <= TILE)
    with study.pool.lend(picture.path, picture.weight) as slide:
        base = tile_pixels(slide, picture, level, 0, 0)
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
    """The hottest slice in the brain window above a strip of all scores; without the scan only the strip."""
    slices = study.places(number).coords
    assert slices is not None  # scans have coordinates
    order = np.argsort(slices[:, 0], kind="stable")
    columns = order[np.linspace(0, len(order) - 1, SIDE).round().astype(int)]
    strip = np.repeat(_on_paper(case.score[columns][None].astype(np.float64), case), _STRIP, axis=0)
    if case.image is None:
        return strip
    try:
        shown = study.volume(number).slice_hu(int(slices[case.score.argmax(), 0]))
    except SmmilError:
        return strip  # as above
    grey = np.repeat((window(shown, *PRESETS["brain"]) * 255).astype(np.uint8)[..., None], 3, axis=2)
    return np.vstack([_fitted(grey, SIDE, SIDE - _STRIP), strip])


def _fitted(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.pad(Image.fromarray(picture), (width, height), color="black"))


def _tinted(base: np.ndarray, heat: np.ndarray, case: ExportCase, opacity: float) -> np.ndarray:
    low, high, _ = canvas.limits_of(case.score.astype(np.float64), None)
    colours = canvas.colours("viridis")((np.nan_to_num(heat, nan=low) - low) / (high - low))[..., :3] * 255
    mixed = np.where(np.isnan(heat)[..., None], base, (1 - opacity) * base + opacity * colours)
    return np.rint(mixed).astype(np.uint8)


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    longest = max(image.size)
    if longest > SIDE:
        image = image.resize([max(1, round(side * SIDE / longest)) for side in image.size], Image.Resampling.BOX)
    elif longest <= SIDE // 2:
        image = image.resize([side * (SIDE // longest) for side in image.size], Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
