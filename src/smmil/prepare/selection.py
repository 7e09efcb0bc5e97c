"""The instances of a slide before any feature is computed: which squares, and what their coordinates mean."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.frame import Frame
from smmil.images import Slide
from smmil.prepare.points import Points
from smmil.prepare.recipe import Recipe
from smmil.prepare.tile import lattice, tissue_tiles
from smmil.prepare.tissue import TissueMask, tissue_mask


@dataclass(frozen=True, eq=False)
class Selection:
    """Squares of `footprint` level-0 pixels at `coords`, how neighbours are found, and facts for the bag file."""

    coords: np.ndarray
    footprint: int
    frame: Frame
    graph: dict[str, Any]
    mask: TissueMask | None = None
    candidates: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def select_tiles(slide: Slide, recipe: Recipe, given_mask: Path | None = None) -> Selection:
    """Tiles of the lattice that hold enough tissue."""
    cells = lattice(slide, recipe)
    mask = tissue_mask(slide, recipe.tissue, given_mask)
    coords = tissue_tiles(cells, mask, recipe.tissue.share)
    columns, rows = cells.counts
    facts = {
        "tile_um": {"requested": recipe.tile_um, "used": cells.footprint * cells.mpp},
        "overlap_um": {"requested": recipe.overlap_um, "used": (cells.footprint - cells.step) * cells.mpp},
    }
    return Selection(
        coords, cells.footprint, cells.frame, {"kind": "grid", "neighbours": 8}, mask, columns * rows, facts
    )


def select_points(slide: Slide, recipe: Recipe, points: Points) -> Selection:
    """A crop around every point; the pixel size may be unknown, since crops are counted in pixels."""
    patch = (recipe.crop_px, recipe.crop_px)
    frame = Frame(patch) if slide.mpp is None else Frame(patch, (slide.mpp, slide.mpp), "um")
    corners = points.corners(recipe)
    outside = ((corners >= slide.size) | (corners + recipe.crop_px <= 0)).any(1)
    if outside.any():
        x, y = points.xy[outside][0].tolist()
        raise DataError(
            f"{slide.path}: {int(outside.sum())} points lie outside the image, such as x={x:g}, y={y:g}; "
            f"it has {slide.size[0]} × {slide.size[1]} pixels"
        )
    rule = {"kind": "knn", "k": recipe.neighbours}
    return Selection(corners, recipe.crop_px, frame, rule, candidates=len(corners))


def slide_facts(slide: Slide, selection: Selection, pixels: int) -> dict[str, Any]:
    """What a bag file should remember of its slide: resolution wanted and used, size, reader, oddities."""
    scale = selection.footprint / pixels
    return {
        **selection.facts,
        "mpp_level0": slide.mpp,
        "mpp_read": None if slide.mpp is None else slide.mpp * scale,
        "level_read": slide.best_level(scale),
        "patch_size": pixels,
        "level0_width": slide.size[0],
        "level0_height": slide.size[1],
        "bounds": list(slide.bounds),
        "reader": slide.reader,
        "notes": list(slide.notes),
    }
