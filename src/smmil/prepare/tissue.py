"""Tissue masks: computed at a fixed resolution, from outlines or from an image."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import label, median_filter

from smmil.errors import DataError, MissingExtra
from smmil.files import need_file, read_json
from smmil.images import Slide, need_mpp
from smmil.images.tiff_slide import check_picture
from smmil.prepare.recipe import TissueRecipe


@dataclass(frozen=True, eq=False)
class _TissueMask:
    """True where there is tissue. Pixel [i, j] covers level 0 from origin + (j, i) · scale on."""

    mask: np.ndarray
    scale: tuple[float, float]
    origin: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def find(cls, slide: Slide, recipe: TissueRecipe, given: Path | None = None) -> "_TissueMask":
        """The mask of a slide: from `given` (an image or GeoJSON outlines) or by the recipe's method."""
        if given is not None:
            outlines = given.suffix.lower() in (".geojson", ".json")
            return _mask_from_outlines(slide, given, recipe) if outlines else _mask_from_image(slide, given)
        if recipe.method == "none":  # one mask pixel that is exactly the scanned area
            x, y, width, height = slide.bounds
            return cls(np.ones((1, 1), bool), (width, height), (x, y))
        side = max(1, ceil(max(slide.size) * need_mpp(slide) / recipe.resolution_um))
        picture = slide.thumbnail(side)
        pixel_um2 = (picture.scale * need_mpp(slide)) ** 2
        mask = _tidy(_coloured(picture.image, recipe), recipe.smallest_um2 / pixel_um2, recipe.hole_um2 / pixel_um2)
        return cls(mask, (picture.scale, picture.scale))

    def shares(self, coords: np.ndarray, footprint: float) -> np.ndarray:
        """The share of tissue, 0 to 1, in each square with its corner at `coords` (n, 2) and this side; exact."""
        corners = coords - np.array(self.origin)
        left, top = (corners / self.scale).T
        right, bottom = ((corners + footprint) / self.scale).T
        total = np.pad(self.mask.astype(np.float64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        area = _at(total, bottom, right) - _at(total, top, right) - _at(total, bottom, left) + _at(total, top, left)
        share = area * self.scale[0] * self.scale[1] / footprint**2
        return np.clip(np.round(share, 9), 0, 1)  # rounded: sums of parts of pixels differ in the last digits


def _at(total: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The integral image between its grid points: linear along each axis, which is exact inside a pixel."""
    y, x = np.clip(y, 0, total.shape[0] - 1), np.clip(x, 0, total.shape[1] - 1)
    i, j = (np.minimum(v.astype(np.int64), n - 2) for v, n in zip((y, x), total.shape, strict=True))
    v, h = y - i, x - j
    upper = total[i, j] * (1 - h) + total[i, j + 1] * h
    lower = total[i + 1, j] * (1 - h) + total[i + 1, j + 1] * h
    return upper * (1 - v) + lower * v


def _coloured(image: np.ndarray, recipe: TissueRecipe) -> np.ndarray:
    """True where an RGB image is saturated more than Otsu's threshold (kept within the recipe's limits)."""
    try:
        from skimage.filters import threshold_otsu
    except ModuleNotFoundError:
        raise MissingExtra("scikit-image", "slides", "finding tissue") from None
    brightest, faintest = image.max(2).astype(np.float32), image.min(2).astype(np.float32)
    saturation = (brightest - faintest) / np.maximum(brightest, 1)
    saturation[brightest < recipe.darkest * 255] = 0
    saturation = median_filter(saturation, 3)
    threshold = recipe.lowest
    if saturation.min() < saturation.max():
        threshold = float(np.clip(threshold_otsu(saturation), recipe.lowest, recipe.highest))
    return saturation > threshold


def _tidy(mask: np.ndarray, smallest: float, hole: float) -> np.ndarray:
    """The mask without pieces of fewer than `smallest` pixels and without holes of fewer than `hole`."""
    return ~_without_small(~_without_small(mask, smallest), hole)


def _without_small(mask: np.ndarray, pixels: float) -> np.ndarray:
    pieces, count = label(mask, np.ones((3, 3)))
    sizes = np.bincount(pieces.ravel(), minlength=count + 1)
    return (sizes >= pixels)[pieces] & mask


def _mask_from_image(slide: Slide, path: Path) -> _TissueMask:
    """A mask drawn over the whole slide, at any resolution: tissue is where it is not black."""
    image = _read_image(path)
    mask = np.asarray(image.reshape(*image.shape[:2], -1).any(2))
    rows, columns = mask.shape
    scale = (slide.size[0] / columns, slide.size[1] / rows)
    # One mask pixel more or less along an axis is rounding; anything else is another slide or a cropped mask.
    if abs(slide.size[0] / scale[1] - columns) > 1.5 and abs(slide.size[1] / scale[0] - rows) > 1.5:
        raise DataError(
            f"{path}: {columns} x {rows} pixels do not have the shape of the slide ({slide.size[0]} x "
            f"{slide.size[1]}); give a mask of the whole slide"
        )
    return _TissueMask(mask, scale)


def _read_image(path: Path) -> np.ndarray:
    """Pixels of a PNG or TIFF mask; an error of the reading library becomes a DataError."""
    try:
        with Image.open(need_file(path)) as image:
            check_picture(path, image.format, image)
            return np.asarray(image.convert("RGB") if image.mode in ("P", "RGBA", "LA", "PA", "CMYK") else image)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check where the tissue masks lie") from None
    except DataError as problem:
        raise DataError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, Image.DecompressionBombError) as problem:
        raise DataError(f"{path}: not readable as a mask image ({problem}); write it again as PNG") from None


def _mask_from_outlines(slide: Slide, path: Path, recipe: TissueRecipe) -> _TissueMask:
    """True where the centre of a mask pixel lies inside an outline and not inside one of its holes."""
    from skimage.draw import polygon

    scale = recipe.resolution_um / need_mpp(slide)
    columns, rows = (max(1, ceil(side / scale)) for side in slide.size)
    offset = np.array(slide.bounds[:2] if recipe.origin == "bounds" else (0, 0), dtype=np.float64)
    mask = np.zeros((rows, columns), bool)
    for rings in _polygons(read_json(path), path):
        inside = np.zeros_like(mask)
        for depth, ring in enumerate(rings):
            # Half a pixel: skimage's whole numbers are centres of pixels, ours are their corners.
            x, y = ((_points(ring, path) + offset) / scale - 0.5).T
            inside[polygon(y, x, mask.shape)] = depth == 0
        mask |= inside
    return _TissueMask(mask, (scale, scale))


def _polygons(content: Any, path: Path) -> Iterator[list[Any]]:
    """Each polygon as its rings: the outline first, then the holes."""
    if isinstance(content, list):
        content = {"type": "FeatureCollection", "features": content}
    if not isinstance(content, dict):
        raise DataError(f"{path}: not GeoJSON (got {type(content).__name__}); export the outlines again")
    kind = content.get("type")
    if kind == "FeatureCollection" and isinstance(content.get("features"), list):
        for feature in content["features"]:
            yield from _polygons(feature, path)
    elif kind == "Feature":
        yield from _polygons(content.get("geometry"), path)
    elif kind == "Polygon" and isinstance(content.get("coordinates"), list):
        yield content["coordinates"]
    elif kind == "MultiPolygon" and isinstance(content.get("coordinates"), list):
        yield from content["coordinates"]
    else:
        raise DataError(f"{path}: geometry {kind!r} is no outline of tissue; expected Polygon or MultiPolygon")


def _points(ring: Any, path: Path) -> np.ndarray:
    try:
        points = np.asarray(ring, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[0] < 3 or points.shape[1] < 2 or not np.isfinite(points).all():
        raise DataError(f"{path}: a ring is not a list of at least three points x, y; export the outlines again")
    return points[:, :2]
