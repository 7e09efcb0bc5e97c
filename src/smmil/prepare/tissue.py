"""Tissue masks: computed at a fixed resolution, from outlines or from an image."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import binary_dilation, label, median_filter

from smmil.errors import DataError, MissingExtra
from smmil.files import need_file, read_json
from smmil.images import Slide, need_mpp
from smmil.images.tiff_slide import check_picture
from smmil.prepare.recipe import TissueRecipe

_COLOURLESS = 0.001  # share of saturated pixels below which a picture has no colour
_GLASS = 0.8  # glass is at least this bright, a dark background at least this dark, whatever covers the slide
_PALE = 5  # pixels that ink may reach beyond its unmistakable part
_DENSITY = -np.log((np.arange(256, dtype=np.float32) + 1) / 256)


@dataclass(frozen=True, eq=False)
class _TissueMask:
    """True where there is tissue. Pixel [i, j] covers level 0 from origin + (j, i) · scale on.

    warnings  what the picture shows that another choice in the recipe would serve better
    """

    mask: np.ndarray
    scale: tuple[float, float]
    origin: tuple[float, float] = (0.0, 0.0)
    warnings: tuple[str, ...] = ()

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
        mask, warnings = _tissue_of(picture.image, recipe, recipe.smallest_um2 / pixel_um2, recipe.hole_um2 / pixel_um2)
        return cls(mask, (picture.scale, picture.scale), warnings=warnings)

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


def _tissue_of(
    image: np.ndarray, recipe: TissueRecipe, smallest: float, hole: float
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The tissue of a small picture by the recipe's method; pieces and holes of fewer pixels are dropped and filled."""
    if recipe.method != "otsu":
        return _tidy(_above_otsu(_shade(image, recipe), recipe), smallest, hole), ()
    saturation = _saturation(image)
    saturation[image.max(2) < recipe.darkest * 255] = 0
    saturation = median_filter(saturation, 3)
    mask = _tidy(_above_otsu(saturation, recipe), smallest, hole)
    if (saturation > recipe.lowest).mean() < _COLOURLESS and (better := _grey_method(image, recipe, smallest, hole)):
        where = "a light" if better == "grey" else "a dark"
        return mask, (
            f"the image has no colour, by which tissue is found: with {where} background choose --tissue {better}",
        )
    ink = _ink(image, smallest)
    if recipe.pen == "exclude":
        return mask & ~ink, ()
    share = (mask & ink).sum() / max(1, mask.sum())
    if share:
        return mask, (f"{share:.1%} of what is taken as tissue looks like felt pen; --pen exclude leaves it out",)
    return mask, ()


def _saturation(image: np.ndarray) -> np.ndarray:
    brightest, faintest = image.max(2).astype(np.float32), image.min(2).astype(np.float32)
    return (brightest - faintest) / np.maximum(brightest, 1)


def _shade(image: np.ndarray, recipe: TissueRecipe) -> np.ndarray:
    """How much darker than the glass a pixel is, 0 to 1, or with a dark background how much brighter."""
    light = image.mean(2, dtype=np.float32) / 255
    seen = light if recipe.method == "grey" else 1 - light
    glass = max(_GLASS, float(np.percentile(seen, 99)))
    shade = np.clip(1 - seen / glass, 0, 1)
    if recipe.method == "grey":
        shade[light < recipe.darkest] = 0  # the edge of the scan
    return median_filter(shade, 3)


def _grey_method(image: np.ndarray, recipe: TissueRecipe, smallest: float, hole: float) -> str | None:
    """The method that finds tissue in a picture without colour, by its background; None: there is none."""
    name = "grey" if np.median(image) > 127 else "dark"
    found, _ = _tissue_of(image, recipe.model_copy(update={"method": name}), smallest, hole)
    return name if found.any() else None


def _above_otsu(signal: np.ndarray, recipe: TissueRecipe) -> np.ndarray:
    """True where the signal exceeds Otsu's threshold (kept within the recipe's limits)."""
    try:
        from skimage.filters import threshold_otsu
    except ModuleNotFoundError:
        raise MissingExtra("scikit-image", "slides", "finding tissue") from None
    threshold = recipe.lowest
    if signal.min() < signal.max():
        threshold = float(np.clip(threshold_otsu(signal), recipe.lowest, recipe.highest))
    return signal > threshold


def _ink(image: np.ndarray, smallest: float) -> np.ndarray:
    """True on felt pen: black, or of a colour that no mixture of haematoxylin with eosin or a brown chromogen has.

    Blue and green ink absorb more red than green light, which those stains do not; red ink absorbs much blue light,
    hardly any red, and is more saturated than blood. Over tissue the densities add up, so each has a second, denser
    rule. Unmistakable pixels must make up a piece of `smallest` pixels; from there ink reaches as far as paler pixels
    of its kind touch.
    """
    red, green, blue = np.moveaxis(_DENSITY[image], 2, 0)
    saturation, brightest = _saturation(image), image.max(2)

    def pixels(beyond: float, density: float, vivid: float, dark: float) -> np.ndarray:
        cold = (red > beyond * green) & (red > density)
        cold |= (red > 0.95 * green) & (blue < 0.4 * red) & (red > 0.7 + density)
        warm = (saturation > vivid) & (blue > 0.6 * green) & (red < 0.25 * green)
        warm |= (saturation > vivid) & (blue > 0.5 * green) & (red < 0.4 * green) & (green > 2.2)
        black = (brightest < dark) & (saturation < 0.3) | (brightest < 0.6 * dark) & (saturation < 0.75)
        return np.asarray(cold | warm | black)

    sure = _tidy(pixels(1.2, 0.5, 0.8, 90), max(1, smallest), smallest)
    if not sure.any():
        return sure
    return np.asarray(binary_dilation(binary_dilation(sure, mask=pixels(1.1, 0.15, 0.6, 130), iterations=_PALE)))


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
