"""One picture per case to see at a glance what was taken as tissue and where the instances are."""

from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import replacing
from smmil.images import Slide
from smmil.images.volume import Volume, parse_window, window
from smmil.prepare.recipe import Recipe
from smmil.prepare.selection import Selection
from smmil.prepare.tissue import TissueMask

_SIDE = 1024
_OUTLINE, _TILE, _DAMAGED = (0, 90, 200), (0, 130, 60), (220, 0, 0)
_ACROSS, _SLICE = 5, 160


def slide_preview(path: Path, slide: Slide, selection: Selection, damaged: list[tuple[float, float]]) -> None:
    """The slide with the outline of its tissue (blue), its tiles (green) and damaged tiles (red)."""
    from PIL import Image, ImageDraw

    small = slide.thumbnail(_SIDE)
    picture = small.image.copy()
    if selection.mask is not None:
        picture[_outline(selection.mask, picture.shape[:2], small.scale)] = _OUTLINE
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    _boxes(draw, selection.coords, selection.footprint, small.scale, _TILE)
    _boxes(draw, np.array(damaged).reshape(-1, 2), selection.footprint, small.scale, _DAMAGED)
    _save(path, image)


def _outline(mask: TissueMask, shape: tuple[int, int], scale: float) -> np.ndarray:
    """Thumbnail pixels of tissue that touch a pixel without."""
    from scipy.ndimage import binary_erosion

    rows, columns = (
        np.floor(((np.arange(n) + 0.5) * scale - mask.origin[axis]) / mask.scale[axis]).astype(np.int64)
        for n, axis in zip(shape, (1, 0), strict=True)
    )
    around = np.pad(mask.mask, 1)  # whatever lies outside the mask falls into its empty border
    rows, columns = (np.clip(v, -1, n) + 1 for v, n in zip((rows, columns), mask.mask.shape, strict=True))
    tissue = around[np.ix_(rows, columns)]
    return tissue & ~binary_erosion(tissue, np.ones((3, 3)))


def _boxes(draw: Any, coords: np.ndarray, footprint: int, scale: float, colour: tuple[int, int, int]) -> None:
    first = np.rint(coords / scale).astype(int)
    last = np.maximum(first, np.rint((coords + footprint) / scale).astype(int) - 1)
    for corners in np.hstack([first, last]).tolist():
        draw.rectangle(corners, outline=colour)


def scan_preview(path: Path, volume: Volume, recipe: Recipe) -> None:
    """Up to 20 slices, evenly spread from the first to the last, through the first window."""
    from PIL import Image

    chosen = np.unique(np.linspace(0, len(volume) - 1, min(len(volume), 4 * _ACROSS)).round().astype(int))
    rows = -(-len(chosen) // _ACROSS)
    sheet = Image.new("L", (_SLICE * min(_ACROSS, len(chosen)), _SLICE * rows))
    for place, index in enumerate(chosen.tolist()):
        shades = window(volume.slice_hu(index), *parse_window(recipe.windows[0]))
        tile = Image.fromarray((shades * 255).round().astype(np.uint8))
        tile.thumbnail((_SLICE, _SLICE))
        sheet.paste(tile, (place % _ACROSS * _SLICE, place // _ACROSS * _SLICE))
    _save(path, sheet)


def _save(path: Path, image: Any) -> None:
    try:
        with replacing(path) as temporary:
            image.save(temporary, "PNG")
    except OSError as problem:
        raise DataError(f"{path}: cannot be written ({problem}); check the folder and the free space") from None
