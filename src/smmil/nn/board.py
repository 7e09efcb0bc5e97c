"""Instances laid out on a square board of cells, and a map of tokens read back at every instance."""

from typing import NamedTuple

import torch
from torch import Tensor

from smmil.nn.position import square_side
from smmil.nn.windows import EMPTY

GREY = -2
OFF_LATTICE = 1e-3


class Board(NamedTuple):
    """Which cell shows what. Instances at one spot share a place; places 0 … m−1 are rows of `place_rows`.

    cells   (side, side) the place that a cell shows, EMPTY for none, GREY where it was cut out
    place   (n,) the place of every instance; none of the cells shows it when it was cropped away
    shares  (m,) share of the cells that showed each place before something was cut out; None if nothing was
    """

    cells: Tensor
    place: Tensor
    shares: Tensor | None = None

    @property
    def side(self) -> int:
        return self.cells.shape[0]


def lattice_step(coords: Tensor) -> tuple[float] | None:
    """The smallest difference of coordinates (n, k) along an axis, if all lie on a lattice of this step; else None."""
    coords = coords.to(torch.float64)
    gaps = torch.cat([axis.unique().diff() for axis in coords.T])
    if not len(gaps):
        return None
    step = gaps.min()
    steps = (coords - coords.amin(0)) / step
    return (step.item(),) if ((steps - steps.round()).abs() < OFF_LATTICE).all() else None


def lattice_spots(coords: Tensor, step: tuple[float, ...]) -> Tensor:
    """Row and column (n, 2) of coordinates x, y: the nearest cell of a lattice that begins at their minimum.

    step  along x and y, or one number for both
    """
    steps = torch.tensor(step, dtype=torch.float64, device=coords.device)
    coords = coords.to(torch.float64)
    return ((coords - coords.amin(0)) / steps + 0.5).floor().long().flip(1)


def gathered_spots(n: int, coords: Tensor | None = None, device: torch.device | str = "cpu") -> Tensor:
    """Row and column (n, 2) in a square of ⌈√n⌉², filled line by line: the fold that needs no lattice.

    In the order of the list, or of `coords` (n, k) if given: by the last axis, within it by the one before, and so on.
    """
    order = torch.arange(n, device=device)
    for axis in [] if coords is None else coords.T:
        order = order[axis[order].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(n, device=device)
    return torch.stack([rank // square_side(n), rank % square_side(n)], 1)


def board_side(spots: Tensor, size: int) -> int:
    """Side of a board that shows all spots: at least `size`, else that of their bounding square."""
    return max(size, int(spots.max()) + 1)


def lay_out(spots: Tensor, side: int) -> Board:
    """Spots (n, 2), from row and column 0 on, centred on a board; what does not fit is cropped evenly on both sides."""
    extent = spots.amax(0) + 1
    keys, place = (spots[:, 0] * extent[1] + spots[:, 1]).unique(return_inverse=True)
    corner = torch.where(extent > side, -((extent - side) // 2), (side - extent) // 2)
    at = torch.stack([keys // extent[1], keys % extent[1]], 1) + corner
    shown = ((at >= 0) & (at < side)).all(1)
    cells = torch.full((side, side), EMPTY, device=spots.device)
    cells[at[shown, 0], at[shown, 1]] = torch.arange(len(keys), device=spots.device)[shown]
    return Board(cells, place)


def place_rows(x: Tensor, board: Board) -> Tensor:
    """What cells can show: one row per place, the mean of its instances; then a grey row and an empty one, of zeros.

    EMPTY and GREY are their numbers counted from the end. Grey is one number in all channels: the mean of the whole
    board before it was cut.
    """
    often = board.place.bincount()
    rows = x.new_zeros(len(often), x.shape[1]).index_add(0, board.place, x) / often[:, None].to(x.dtype)
    grey = x.new_zeros(()) if board.shares is None else board.shares.to(x.dtype) @ rows.mean(1)
    return torch.cat([rows, grey.expand(1, x.shape[1]), x.new_zeros(1, x.shape[1])])


def read_out(values: Tensor, board: Board) -> Tensor:
    """One number per instance (n,) from a map of tokens (⌈side/2⌉²,) in raster order, each standing for 2 × 2 cells.

    The mean over all cells that show the instance's place; 0 if none does.
    """
    half = torch.arange(board.side, device=values.device) // 2
    seen = board.cells >= 0
    token = (half[:, None] * ((board.side + 1) // 2) + half)[seen]
    m = int(board.place.max()) + 1
    total = values.new_zeros(m).index_add(0, board.cells[seen], values[token])
    return (total / board.cells[seen].bincount(minlength=m).clamp(min=1).to(values.dtype))[board.place]
