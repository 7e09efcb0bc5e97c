"""Tissue outlines in GeoJSON, as TRIDENT and QuPath write them, as a mask."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import read_json
from smmil.images import Slide, need_mpp
from smmil.prepare.recipe import TissueRecipe
from smmil.prepare.tissue import TissueMask


def mask_from_outlines(slide: Slide, path: Path, recipe: TissueRecipe) -> TissueMask:
    """True where the centre of a mask pixel lies inside an outline and not inside one of its holes."""
    scale = recipe.resolution_um / need_mpp(slide)
    columns, rows = (max(1, ceil(side / scale)) for side in slide.size)
    offset = np.array(slide.bounds[:2] if recipe.origin == "bounds" else (0, 0), dtype=np.float64)
    mask = np.zeros((rows, columns), bool)
    for rings in _polygons(read_json(path), path):
        inside = np.zeros_like(mask)
        for depth, ring in enumerate(rings):
            _paint(inside, (_points(ring, path) + offset) / scale, value=depth == 0)
        mask |= inside
    return TissueMask(mask, (scale, scale))


def _paint(mask: np.ndarray, corners: np.ndarray, value: bool) -> None:
    from skimage.draw import polygon

    # Half a pixel: skimage's whole numbers are centres of pixels, ours are their corners.
    rows, columns = polygon(corners[:, 1] - 0.5, corners[:, 0] - 0.5, mask.shape)
    mask[rows, columns] = value


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
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim != 2 or points.shape[0] < 3 or points.shape[1] < 2 or not np.isfinite(points).all():
        raise DataError(f"{path}: a ring is not a list of at least three points x, y; export the outlines again")
    return points[:, :2]
