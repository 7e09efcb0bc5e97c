"""SETMIL (Zhao et al., MICCAI 2022, doi:10.1007/978-3-031-16434-7_7)."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.frame import Frame
from smmil.models import Output
from smmil.nn.board import Board, board_side, gathered_spots, lattice_spots, lattice_step, lay_out, place_rows, read_out
from smmil.nn.relative import RelativeBlock, map_pairs
from smmil.nn.shuffle_board import changed, draw_changes
from smmil.nn.sinusoid import sinusoids
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.windows import WindowTransformer, whole_map, window_index

LARGEST_SIDE = 2048
REDUCE, PYRAMID = 5, (3, 5, 7)


class SETMIL(nn.Module):
    """Put the patches back on their map, halve it, look at it at three scales, and let a class token read the result.

    Features stand on a board of cells, empty ones zero. Windows of 5 × 5 cells become tokens, one per 2 × 2 cells;
    windows of 3, 5 and 7 tokens are joined to one pyramid; transformer blocks with relative positions mix these with a
    class token, from which the bag's logits are read.

    Scores say what the class token takes, in the last block, from the token over each patch: its attention before
    dropout, mean over heads. Patches of the same 2 × 2 cells share a score. The values of all tokens, empty ones and
    the class token included, add up to one: they rank the patches of one slide and shrink with the size of the map. One
    column, whatever the number of classes. The authors show a heat map but no code for it; this reading is ours.

    size     least side of the board. A bag that needs more gets the square around it: every patch is seen
    crop     True: the authors' board of size × size, centred; patches outside are not seen and their score is 0
    fold     grid: by coordinates (x, y). The step is the frame's, else the smallest difference between coordinates if
             all of them lie on that lattice. Patches of one cell share it: it shows their mean, and all get its score.
             gather: line by line into a square of ⌈√n⌉², in the order of the list. Also taken by grid where there is no
             lattice to be found. Slices (one or three coordinates) are always gathered, in the order of their
             coordinates, the last axis first
    augment  in training, the authors' random flips, zoom, cut-out and quarter turns of the board; a patch that is not
             seen then scores 0, one seen in several cells gets their mean
    reduced, level_dim   width of the tokens behind the first windows, and of each of the three scales
    depth, heads         of the transformer blocks, which are 3 level_dim wide
    dropout  in the pyramid and the blocks, also on attention weights
    sm       {where: early} smooths the features before they are put on the board; other options as in `SmoothAt`. They
             are next read by a LayerNorm, so there is no layer to normalise spectrally

    Bags are processed one by one, also in a batch. No matrix of all pairs of tokens exists, not in training either:
    time grows with the square of the number of tokens (a quarter of the cells), memory with their number.
    """

    score_kind = "class token attention"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        size: int = 48,
        fold: str = "grid",
        crop: bool = False,
        augment: bool = False,
        reduced: int = 128,
        level_dim: int = 64,
        depth: int = 6,
        heads: int = 16,
        dropout: float = 0.2,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and below 1, got {dropout}")
        self.fold = check_choice(fold, ("grid", "gather"), "fold")
        self.size, self.crop, self.augment = size, crop, augment
        dim = len(PYRAMID) * level_dim
        self.reduce = WindowTransformer(in_dim, reduced, REDUCE)
        self.levels = nn.ModuleList(WindowTransformer(reduced, level_dim, k, dropout=dropout) for k in PYRAMID)
        self.token = nn.Parameter(torch.empty(1, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(RelativeBlock(dim, heads, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_classes)
        self.apply(_start_small)
        nn.init.trunc_normal_(self.token, std=0.02)
        self.sm = SmoothAt(sm, {"early": ()})

    def forward(self, batch: BagBatch) -> Output:
        boards = self._boards(batch)
        x = batch.split(self.sm("early", batch.x.to(self.token.dtype), batch))
        found = [self._bag(rows, board) for rows, board in zip(x, boards, strict=True)]
        z, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Output(self.head(self.norm(z)), scores[:, None])

    def _bag(self, x: Tensor, board: Board) -> tuple[Tensor, Tensor]:
        """Class token (1, dim) and scores (n,) of one bag."""
        tokens = self.reduce(place_rows(x, board), window_index(board.cells, REDUCE, stride=2))
        side = (board.side + 1) // 2
        cells = whole_map(side, x.device)
        framed = torch.cat([tokens, torch.zeros_like(tokens[:1])])
        levels = [level(framed, window_index(cells, k)) for level, k in zip(self.levels, PYRAMID, strict=True)]
        tokens = torch.cat([self.token, torch.cat(levels, dim=1)])
        tokens = self.dropout(tokens + sinusoids(*tokens.shape).to(self.token))
        pairs = map_pairs(side, x.device)
        *blocks, last = (cast(RelativeBlock, block) for block in self.blocks)
        for block in blocks:
            tokens = block(tokens, pairs)
        z, row = last.first_row(tokens)
        return z, read_out(row.mean(0)[1:].to(self.token.dtype), board)

    def _boards(self, batch: BagBatch) -> list[Board]:
        coords = [None] * len(batch) if batch.coords is None else batch.split(batch.coords)
        places = zip(batch.ids, batch.sizes, coords, batch.frames, strict=True)
        return [self._board(name, self._spots(n, c, frame, batch.x.device)) for name, n, c, frame in places]

    def _spots(self, n: int, coords: Tensor | None, frame: Frame | None, device: torch.device) -> Tensor:
        """Row and column of every instance, by the fold that the bag allows."""
        if coords is None or coords.shape[1] != 2:
            return gathered_spots(n, coords, device)
        step = None if self.fold == "gather" else lattice_step(coords) if frame is None else frame.step[:2]
        return gathered_spots(n, None, device) if step is None else lattice_spots(coords, step)

    def _board(self, name: str, spots: Tensor) -> Board:
        side = self.size if self.crop else board_side(spots, self.size)
        if side > LARGEST_SIDE:
            raise DataError(
                f"{name}: its map would have {side:,} × {side:,} cells, at most {LARGEST_SIDE:,} are possible; "
                "check the patch size and stride of its frame, or use fold='gather' or crop=True"
            )
        board = lay_out(spots, side)
        return changed(board, draw_changes(side)) if self.augment and self.training else board


def _start_small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
