"""Instances laid out on a square grid of cells, its random augmentation, and maps of tokens read back per instance."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

EMPTY, GREY = -1, -2
_OFF_LATTICE = 1e-3


class GridLayout(NamedTuple):
    """Which cell shows which place. Instances at one position share a place; places 0 … m−1 are rows of `cell_rows`.

    cells   (side, side) the place that a cell shows, EMPTY for none, GREY where it was cut out
    place   (n,) the place of every instance; no cell shows it when it was cropped away
    shares  (m,) share of the cells that showed each place before a part was cut out; None if nothing was
    """

    cells: Tensor
    place: Tensor
    shares: Tensor | None = None

    @property
    def side(self) -> int:
        return self.cells.shape[0]

    @classmethod
    def centred(cls, positions: Tensor, side: int) -> "GridLayout":
        """Positions (n, 2), from row and column 0 on, centred on a grid; what does not fit is cropped on both sides."""
        extent = positions.amax(0) + 1
        keys, place = (positions[:, 0] * extent[1] + positions[:, 1]).unique(return_inverse=True)
        corner = torch.where(extent > side, -((extent - side) // 2), (side - extent) // 2)
        at = torch.stack([keys // extent[1], keys % extent[1]], 1) + corner
        shown = ((at >= 0) & (at < side)).all(1)
        cells = torch.full((side, side), EMPTY, device=positions.device)
        cells[at[shown, 0], at[shown, 1]] = torch.arange(len(keys), device=positions.device)[shown]
        return cls(cells, place)

    def cell_rows(self, x: Tensor) -> Tensor:
        """What cells can show: one row per place, the mean of its instances; then a grey row and one of zeros.

        EMPTY and GREY are their numbers counted from the end. Grey is one number in all channels: the mean of the whole
        grid before it was cut.
        """
        count = self.place.bincount()
        rows = x.new_zeros(len(count), x.shape[1]).index_add(0, self.place, x) / count[:, None].to(x.dtype)
        grey = x.new_zeros(()) if self.shares is None else self.shares.to(x.dtype) @ rows.mean(1)
        return torch.cat([rows, grey.expand(1, x.shape[1]), x.new_zeros(1, x.shape[1])])

    def instance_values(self, values: Tensor) -> Tensor:
        """One number per instance (n,) from a map of tokens (⌈side/2⌉²,) in raster order, each for 2 × 2 cells.

        The mean over all cells that show the instance's place; 0 if none does.
        """
        half = torch.arange(self.side, device=values.device) // 2
        seen = self.cells >= 0
        token = (half[:, None] * ((self.side + 1) // 2) + half)[seen]
        m = int(self.place.max()) + 1
        total = values.new_zeros(m).index_add(0, self.cells[seen], values[token])
        return (total / self.cells[seen].bincount(minlength=m).clamp(min=1).to(values.dtype))[self.place]

    def augmented(self, changes: "GridAugmentation") -> "GridLayout":
        """The grid after the changes: some instances may have left it, and some may be seen in several cells."""
        cells = self.cells.flip([axis for axis, on in ((0, changes.flip), (1, changes.mirror)) if on])
        if changes.zoom is not None:
            cells = _zoomed(cells, changes.zoom, changes.corner)
        shares = None
        if changes.cut is not None:
            shares = cells[cells >= 0].bincount(minlength=int(self.place.max()) + 1) / cells.numel()
            cells = _cut_out(cells, changes.cut)
        return GridLayout(cells.rot90(changes.turns), self.place, shares)


def square_side(n: int) -> int:
    """Side of the smallest square that holds n ≥ 1 instances."""
    return math.isqrt(n - 1) + 1


def lattice_step(coords: Tensor) -> tuple[float] | None:
    """The smallest difference of coordinates (n, k) along an axis, if all lie on a lattice of this step; else None."""
    coords = coords.to(torch.float64)
    gaps = torch.cat([axis.unique().diff() for axis in coords.T])
    if not len(gaps):
        return None
    step = gaps.min()
    steps = (coords - coords.amin(0)) / step
    return (step.item(),) if ((steps - steps.round()).abs() < _OFF_LATTICE).all() else None


def lattice_positions(coords: Tensor, step: tuple[float, ...]) -> Tensor:
    """Row and column (n, 2) of coordinates x, y: the nearest cell of a lattice that begins at their minimum.

    step  along x and y, or one number for both
    """
    steps = torch.tensor(step, dtype=torch.float64, device=coords.device)
    coords = coords.to(torch.float64)
    return ((coords - coords.amin(0)) / steps + 0.5).floor().long().flip(1)


def gathered_positions(n: int, coords: Tensor | None = None, device: torch.device | str = "cpu") -> Tensor:
    """Row and column (n, 2) in a square of ⌈√n⌉², filled line by line: the fold that needs no lattice.

    In the order of the list, or of `coords` (n, k) if given: by the last axis, within it by the one before, and so on.
    """
    order = torch.arange(n, device=device)
    for axis in [] if coords is None else coords.T:
        order = order[axis[order].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(n, device=device)
    return torch.stack([rank // square_side(n), rank % square_side(n)], 1)


def window_index(cells: Tensor, kernel: int, stride: int = 1) -> Tensor:
    """What the k × k window around every stride-th cell shows: (⌈side/stride⌉², k²), row by row.

    cells (side, side) holds numbers of rows; beyond the edge of the map a window shows EMPTY.
    """
    rim = kernel // 2
    framed = pad(cells, (rim, rim, rim, rim), value=EMPTY)
    return framed.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(-1, kernel * kernel)


@dataclass(frozen=True)
class GridAugmentation:
    """One draw of all random changes of a grid, applied in this order.

    mirror, flip  columns, rows reversed
    zoom          side after nearest rescaling, None: unchanged; a smaller grid is centred, of a larger one the part
                  below and right of `corner` is kept
    cut           upper left corner of a square of side // 8 that turns grey, None: nothing does; it may hang over
    turns         quarter turns, from rows towards columns
    """

    mirror: bool = False
    flip: bool = False
    zoom: int | None = None
    corner: tuple[int, int] = (0, 0)
    cut: tuple[int, int] | None = None
    turns: int = 0

    @classmethod
    def draw(cls, side: int) -> "GridAugmentation":
        """Flips, zoom of ±20 % and cut-out with probability ½ each, and a quarter turn; by torch's generator."""
        mirror, flip, zooms, cuts = (torch.rand(4) < 0.5).tolist()
        least = max(1, int(0.8 * side))
        zoom = _random_int(least, max(least + 1, int(1.2 * side)))
        room, hole = max(1, zoom - side), side // 8
        corner = (_random_int(0, room), _random_int(0, room))
        cut = (_random_int(-(hole // 2), side - hole), _random_int(-(hole // 2), side - hole)) if hole else None
        return cls(mirror, flip, zoom if zooms else None, corner, cut if cuts else None, _random_int(0, 4))


def _zoomed(cells: Tensor, zoom: int, corner: tuple[int, int]) -> Tensor:
    side = cells.shape[0]
    source = torch.arange(zoom, device=cells.device) * side // zoom
    scaled = cells[source][:, source]
    if zoom > side:
        return scaled[corner[0] : corner[0] + side, corner[1] : corner[1] + side]
    rim = (side - zoom) // 2
    framed = torch.full_like(cells, EMPTY)
    framed[rim : rim + zoom, rim : rim + zoom] = scaled
    return framed


def _cut_out(cells: Tensor, corner: tuple[int, int]) -> Tensor:
    hole, cells = cells.shape[0] // 8, cells.clone()
    rows, columns = (slice(max(0, at), max(0, at + hole)) for at in corner)
    cells[rows, columns] = GREY
    return cells


def _random_int(low: int, high: int) -> int:
    """A whole number from low to high − 1."""
    return int(torch.randint(low, high, ()))
