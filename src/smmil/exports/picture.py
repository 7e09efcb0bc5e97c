"""Pictures to look at: the scores over a thumbnail of the slide, or around the slices of a scan."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import MissingExtra
from smmil.exports.case import ExportCase
from smmil.exports.geometry import boxes, extent, paint, scan_heat, slice_scores, slide_facts
from smmil.files import replacing
from smmil.images.volume import parse_window, window
from smmil.maps import canvas

OPACITY = 0.55
_PAPER = np.array([246, 245, 242], np.float32)


def write_png(case: ExportCase, path: Path) -> None:
    """The scores as colours (viridis, 2nd to 98th percentile of the case) over what is known of the image.

    The longest side has at most `size` pixels. With a threshold only instances that reach it are coloured.
    """
    try:
        from PIL import Image, PngImagePlugin
    except ModuleNotFoundError:
        raise MissingExtra("Pillow", "slides", "writing pictures") from None
    picture = _over_slide(case) if case.axes == 2 else _contact_sheet(case)
    about = PngImagePlugin.PngInfo()
    for key, value in (("Software", case.facts["software"]), ("Comment", json.dumps(case.facts))):
        about.add_text(key, value)
    with replacing(path) as temporary:
        Image.fromarray(np.rint(picture).astype(np.uint8)).save(temporary, "PNG", pnginfo=about)


def _over_slide(case: ExportCase) -> np.ndarray:
    """Thumbnail and heat map, pixel on pixel: column j covers x from j · scale to (j + 1) · scale."""
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    with case.slide() as slide:
        if slide is not None:
            small = slide.thumbnail(case.size)
            base, scale = small.image.astype(np.float32), small.scale
            if small.damaged:
                case.notes.append(f"{len(small.damaged)} damaged part(s) of the slide were left white")
        else:
            base, scale = _blank(extent(rectangles, facts.size), case.size)
    shown = _shown(case)
    return _tinted(base, paint(rectangles[shown] / scale, case.score[shown], base.shape[:2]), case)


def _blank(size: tuple[int, int], longest: int) -> tuple[np.ndarray, float]:
    scale = max(1.0, max(size) / longest)
    width, height = (max(1, min(longest, ceil(side / scale - 1e-6))) for side in size)
    return np.broadcast_to(_PAPER, (height, width, 3)).copy(), scale


def _shown(case: ExportCase) -> np.ndarray:
    """Rows of the instances that are coloured."""
    return np.arange(case.prediction.n) if case.positive is None else np.flatnonzero(case.positive)


def _colours(case: ExportCase, heat: np.ndarray) -> np.ndarray:
    """RGB from 0 to 255 for each value, on the scale of the whole case, so that a threshold changes no colour."""
    low, high, _ = canvas.limits_of(case.score.astype(np.float64), None)
    shades = canvas.colours("viridis")((np.nan_to_num(heat, nan=low) - low) / (high - low))
    return shades[..., :3].astype(np.float32) * 255


def _tinted(base: np.ndarray, heat: np.ndarray, case: ExportCase) -> np.ndarray:
    """The heat over the picture; where there is none the picture stays as it is."""
    mixed = (1 - OPACITY) * base + OPACITY * _colours(case, heat)
    return np.where(np.isnan(heat)[..., None], base, mixed)


def _contact_sheet(case: ExportCase) -> np.ndarray:
    """All slices from foot to head, row by row, each in a frame of its score's colour; boxes are tinted."""
    volume = case.volume("a picture of a scan")
    across = ceil(len(volume) ** 0.5)
    cell = max(4, case.size // across)
    sheet = np.zeros((cell * ceil(len(volume) / across), cell * across, 3), np.float32)
    paints = _Slices(case, volume)
    for index in range(len(volume)):
        top, left = (place * cell for place in divmod(index, across))
        sheet[top : top + cell, left : left + cell] = paints.cell(index, cell)
    return sheet


class _Slices:
    """Slices in the brain window, as squares with the colour of their score."""

    def __init__(self, case: ExportCase, volume: Any):
        self.case, self.volume = case, volume
        shown = _shown(case)
        self.heat = scan_heat(case, volume, shown) if case.axes == 3 else None
        self.scores = slice_scores(case, len(volume), shown) if case.axes == 1 else None

    def cell(self, index: int, side: int) -> np.ndarray:
        grey = window(self.volume.slice_hu(index), *parse_window("brain")) * 255
        picture = np.repeat(grey[..., None], 3, axis=2)
        if self.heat is not None:
            picture = _tinted(picture, self.heat[index], self.case)
        border = max(1, side // 24)
        framed = np.zeros((side, side, 3), np.float32)
        if self.scores is not None and not np.isnan(self.scores[index]):
            framed[:] = _colours(self.case, self.scores[index : index + 1])
        inner = _fitted(picture, side - 2 * border)
        framed[border : side - border, border : side - border] = inner
        return framed


def _fitted(picture: np.ndarray, side: int) -> np.ndarray:
    """The picture in a black square, proportions kept."""
    from PIL import Image

    rows, columns = picture.shape[:2]
    height, width = (max(1, round(side * n / max(rows, columns))) for n in (rows, columns))
    small = Image.fromarray(np.rint(picture).astype(np.uint8)).resize((width, height), Image.Resampling.BILINEAR)
    square = np.zeros((side, side, 3), np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = np.asarray(small)
    return square
