"""The tiles of a slide: one lattice of squares, given in micrometres, counted in level-0 pixels."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from smmil.errors import ConfigError
from smmil.frame import Frame
from smmil.images import Slide, need_mpp
from smmil.prepare.recipe import Recipe
from smmil.prepare.tissue import TissueMask


@dataclass(frozen=True)
class Lattice:
    """Squares of `footprint` level-0 pixels, `step` apart, from `origin` on, over `size` level-0 pixels.

    One lattice serves the whole slide, so that neighbours are found wherever two pieces of tissue meet. It begins at
    the corner of the scanned area. Footprint and overlap are the wanted micrometres rounded to whole level-0 pixels
    (half to even), so all coordinates are whole numbers and the size is off by half a level-0 pixel at most.
    Squares at the right and lower edge stick out of the scanned area rather than leave a strip of tissue out.
    """

    origin: tuple[int, int]
    size: tuple[int, int]
    footprint: int
    step: int
    mpp: float

    def coords(self) -> np.ndarray:
        """Top-left corners, int64 (n, 2): x, y; row by row."""
        columns, rows = self.counts
        y, x = np.mgrid[:rows, :columns]
        return np.stack([x.ravel(), y.ravel()], 1).astype(np.int64) * self.step + np.array(self.origin)

    @property
    def counts(self) -> tuple[int, int]:
        """Squares per row and per column: as many as it takes to cover all."""
        overlap = self.footprint - self.step
        columns, rows = (max(1, ceil((side - overlap) / self.step)) for side in self.size)
        return columns, rows

    @property
    def frame(self) -> Frame:
        stride = None if self.step == self.footprint else (self.step, self.step)
        return Frame((self.footprint, self.footprint), (self.mpp, self.mpp), "um", stride)


def lattice(slide: Slide, recipe: Recipe) -> Lattice:
    """The lattice of this slide for the recipe's tile size."""
    mpp = need_mpp(slide)
    footprint, overlap = round(recipe.tile_um / mpp), round(recipe.overlap_um / mpp)
    if footprint - overlap < 1:
        raise ConfigError(
            f"{slide.path}: tiles of {recipe.tile_um:g} µm with an overlap of {recipe.overlap_um:g} µm are less than "
            f"one pixel apart at {mpp:g} µm per pixel; use larger tiles or less overlap"
        )
    x, y, width, height = slide.bounds
    return Lattice((x, y), (width, height), footprint, footprint - overlap, mpp)


def tissue_tiles(cells: Lattice, mask: TissueMask, share: float) -> np.ndarray:
    """Corners of the squares of which at least `share` is tissue; what sticks out of the slide is none."""
    coords = cells.coords()
    return coords[mask.shares(coords, cells.footprint) >= share]
