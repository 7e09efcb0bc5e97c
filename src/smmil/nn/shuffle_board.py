"""Random changes of a board for training, as SETMIL's authors make them: flips, zoom, cut-out, quarter turns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smmil.nn.board import GREY, Board
from smmil.nn.windows import EMPTY


@dataclass(frozen=True)
class Changes:
    """One draw of all changes, made in this order.

    mirror, flip  columns, rows reversed
    zoom          side after nearest rescaling, None: unchanged; a smaller board is centred, of a larger one the part
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


def draw_changes(side: int) -> Changes:
    """Flips, zoom of ±20 % and cut-out with probability ½ each, and a quarter turn; from torch's global generator."""
    mirror, flip, zooms, cuts = (torch.rand(4) < 0.5).tolist()
    least = max(1, int(0.8 * side))
    zoom = _whole(least, max(least + 1, int(1.2 * side)))
    room, hole = max(1, zoom - side), side // 8
    corner = (_whole(0, room), _whole(0, room))
    cut = (_whole(-(hole // 2), side - hole), _whole(-(hole // 2), side - hole)) if hole else None
    return Changes(mirror, flip, zoom if zooms else None, corner, cut if cuts else None, _whole(0, 4))


def changed(board: Board, changes: Changes) -> Board:
    """The board after the changes: some instances may have left it, and some may be seen in several cells."""
    cells = board.cells.flip([axis for axis, on in ((0, changes.flip), (1, changes.mirror)) if on])
    if changes.zoom is not None:
        cells = _zoomed(cells, changes.zoom, changes.corner)
    shares = None
    if changes.cut is not None:
        shares = cells[cells >= 0].bincount(minlength=int(board.place.max()) + 1) / cells.numel()
        cells = _cut(cells, changes.cut)
    return Board(cells.rot90(changes.turns), board.place, shares)


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


def _cut(cells: Tensor, corner: tuple[int, int]) -> Tensor:
    hole, cells = cells.shape[0] // 8, cells.clone()
    rows, columns = (slice(max(0, at), max(0, at + hole)) for at in corner)
    cells[rows, columns] = GREY
    return cells


def _whole(low: int, high: int) -> int:
    """A whole number from low to high − 1."""
    return int(torch.randint(low, high, ()))
