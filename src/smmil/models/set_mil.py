"""SETMIL (Zhao et al., MICCAI 2022, doi:10.1007/978-3-031-16434-7_7).

Tokens of a map know their distances by image relative position encoding (iRPE; Wu et al., 2021, arXiv:2107.14222):
every head adds to the logit of two tokens of a side × side map a number that depends on their distance only, looked up
in a table (Euclidean method, bias mode). Distances are rounded and sorted into buckets, fine when near and all alike
from 4 on. A class token in front of the map has a bucket of its own, for its row and for its column.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.frame import Frame
from smmil.models import Output
from smmil.nn import kernels
from smmil.nn.kernels.attention import Pairs, attention, join_heads, split_heads
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.token_grid import (
    EMPTY,
    GridAugmentation,
    GridLayout,
    gathered_positions,
    lattice_positions,
    lattice_step,
    window_index,
)

_LARGEST_SIDE = 2048
_REDUCE, _PYRAMID = 5, (3, 5, 7)
_WINDOW_ENTRIES = 2**23
# Buckets of distances: α, β and γ of iRPE; the table holds −β … β and the class token's bucket.
_ALPHA, _BETA, _GAMMA = 1.9, 3.8, 15.2
_FAR = int(_BETA)
_CLASS = 2 * _FAR + 1
_BUCKETS = _CLASS + 1


class SETMIL(nn.Module):
    """Patches on their spatial grid, reduced to a token map, a pyramid of three window sizes, and a transformer.

    Features stand on a grid of cells, empty ones zero. Windows of 5 × 5 cells become tokens, one per 2 × 2 cells;
    windows of 3, 5 and 7 tokens are joined to one pyramid; transformer blocks with relative positions mix these with a
    class token, from which the bag's logits are read.

    Scores say what the class token takes, in the last block, from the token over each patch: its attention before
    dropout, mean over heads. Patches of the same 2 × 2 cells share a score. The values of all tokens, empty ones and
    the class token included, add up to one: they rank the patches of one slide and shrink with the size of the map. One
    column, whatever the number of classes. The authors show a heat map but no code for it; this reading is ours.

    size     least side of the grid. A bag that needs more gets the square around it: every patch is seen
    crop     True: the authors' grid of size × size, centred; patches outside are not seen and their score is 0
    fold     grid: by coordinates (x, y). The step is the frame's, else the smallest difference between coordinates if
             all of them lie on that lattice. Patches of one cell share it: it shows their mean, and all get its score.
             gather: line by line into a square of ⌈√n⌉², in the order of the list. Also taken by grid where there is no
             lattice to be found. Slices (one or three coordinates) are always gathered, in the order of their
             coordinates, the last axis first
    augment  in training, the authors' random flips, zoom, cut-out and quarter turns of the grid; a patch that is not
             seen then scores 0, one seen in several cells gets their mean
    reduced, level_dim   width of the tokens behind the first windows, and of each of the three scales
    depth, heads         of the transformer blocks, which are 3 level_dim wide
    dropout  in the pyramid and the blocks, also on attention weights
    sm       {where: early} smooths the features before they are put on the grid; other options as in `SmoothAt`. They
             are next read by a LayerNorm, so there is no layer to normalise spectrally

    Bags are processed one by one, also in a batch. No matrix of all pairs of tokens exists, not in training either:
    time grows with the square of the number of tokens (a quarter of the cells), memory with their number.
    """

    all_pairs = True
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
        dim = len(_PYRAMID) * level_dim
        self.reduce = _WindowTransformer(in_dim, reduced, _REDUCE)
        self.levels = nn.ModuleList(_WindowTransformer(reduced, level_dim, k, dropout=dropout) for k in _PYRAMID)
        self.token = nn.Parameter(torch.empty(1, dim))
        self.dropout = nn.Dropout(dropout)
        kinds = [_RelativeBlock] * (depth - 1) + [_ClassTokenBlock]
        self.blocks = nn.ModuleList(kind(dim, heads, dropout=dropout) for kind in kinds)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_classes)
        self.apply(_start_small)
        nn.init.trunc_normal_(self.token, std=0.02)
        self.sm = SmoothAt(sm, {"early": ()})

    def forward(self, batch: BagBatch) -> Output:
        layouts = self._layouts(batch)
        x = batch.split(self.sm("early", batch.x.to(self.token.dtype), batch))
        found = [self._bag(rows, layout) for rows, layout in zip(x, layouts, strict=True)]
        z, scores = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Output(self.head(self.norm(z)), scores[:, None])

    def _bag(self, x: Tensor, layout: GridLayout) -> tuple[Tensor, Tensor]:
        """Class token (1, dim) and scores (n,) of one bag."""
        tokens = self.reduce(layout.cell_rows(x), window_index(layout.cells, _REDUCE, stride=2))
        side = (layout.side + 1) // 2
        cells = torch.arange(side * side, device=x.device).view(side, side)
        framed = torch.cat([tokens, torch.zeros_like(tokens[:1])])
        levels = [level(framed, window_index(cells, k)) for level, k in zip(self.levels, _PYRAMID, strict=True)]
        tokens = torch.cat([self.token, torch.cat(levels, dim=1)])
        tokens = self.dropout(tokens + _sinusoids(*tokens.shape).to(self.token))
        pairs = _map_pairs(side, x.device)
        *blocks, last = self.blocks
        for block in blocks:
            tokens = block(tokens, pairs)
        z, row = last(tokens)
        return z, layout.instance_values(row.mean(0)[1:].to(self.token.dtype))

    def _layouts(self, batch: BagBatch) -> list[GridLayout]:
        coords = [None] * len(batch) if batch.coords is None else batch.split(batch.coords)
        bags = zip(batch.ids, batch.sizes, coords, batch.frames, strict=True)
        return [self._layout(name, self._positions(n, c, frame, batch.x.device)) for name, n, c, frame in bags]

    def _positions(self, n: int, coords: Tensor | None, frame: Frame | None, device: torch.device) -> Tensor:
        """Row and column of every instance, by the fold that the bag allows."""
        if coords is None or coords.shape[1] != 2:
            return gathered_positions(n, coords, device)
        step = None if self.fold == "gather" else lattice_step(coords) if frame is None else frame.step[:2]
        return gathered_positions(n, None, device) if step is None else lattice_positions(coords, step)

    def _layout(self, name: str, positions: Tensor) -> GridLayout:
        side = self.size if self.crop else max(self.size, int(positions.max()) + 1)
        if side > _LARGEST_SIDE:
            raise DataError(
                f"{name}: its map would have {side:,} × {side:,} cells, at most {_LARGEST_SIDE:,} are possible; "
                "check the patch size and stride of its frame, or use fold='gather' or crop=True"
            )
        layout = GridLayout.centred(positions, side)
        return layout.augmented(GridAugmentation.draw(side)) if self.augment and self.training else layout


def _start_small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _sinusoids(n: int, dim: int) -> Tensor:
    """Positions 0 … n−1 as (n, dim) float64: sin(p/10000^(2⌊j/2⌋/dim)) in even channels j, the cosine in odd ones."""
    channel = torch.arange(dim)
    speed = 10000.0 ** (-2 * (channel // 2).to(torch.float64) / dim)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * speed
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())


def _distinct_windows(index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Windows that show something, then one that shows nothing, if any does; where each went; how often each comes."""
    blank = (index == EMPTY).all(1)
    busy = (~blank).nonzero()[:, 0]
    chosen = torch.cat([busy, blank.nonzero()[:1, 0]])
    place = torch.full_like(blank, len(busy), dtype=torch.long)
    place[busy] = torch.arange(len(busy), device=index.device)
    return index[chosen], place, place.bincount(minlength=len(chosen))


class _WindowTransformer(nn.Module):
    """One token of width `dim` per k × k window of a map: normalise the window, attend with one head, pass an MLP.

        q, k, v = W LN(window);  y = v + drop(out(drop(softmax(q kᵀ/√(channels·k²))) v));  y + MLP(LN y)

    Channels of a window lie in the order of torch's unfold: all cells of the first channel, then of the next. The scale
    is the width of a window, not of a query. Windows are gathered a few at a time, and again for the backward pass: the
    unfolded map, 25 times the features for k = 5, never exists. Blank windows are all alike; without dropout they are
    computed once and counted.
    """

    def __init__(self, channels: int, dim: int, kernel: int, *, dropout: float = 0.0):
        super().__init__()
        self.width, self.dropout = channels * kernel * kernel, dropout
        self.norm1 = nn.LayerNorm(self.width)
        self.qkv = nn.Linear(self.width, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = _feed_forward(dim, dim, dropout)

    def forward(self, rows: Tensor, index: Tensor) -> Tensor:
        """Tokens (t, dim) of windows `index` (t, k²) into rows (m, channels), whose last row stands for EMPTY."""
        if self.dropout and self.training:
            return self._tokens(rows, index, None)
        index, place, counts = _distinct_windows(index)
        return self._tokens(rows, index, counts if len(counts) < len(place) else None)[place]

    def _tokens(self, rows: Tensor, index: Tensor, counts: Tensor | None) -> Tensor:
        q, k, v = self._projected(rows, index).chunk(3, dim=-1)
        bias, dropout = None if counts is None else counts.to(q.dtype).log(), self.dropout if self.training else 0.0
        mixed = attention(q[None], k[None], v[None], scale=self.width**-0.5, dropout=dropout, key_bias=bias)[0]
        y = v + F.dropout(self.out(mixed), dropout)
        return cast(Tensor, y + self.mlp(self.norm2(y)))

    def _projected(self, rows: Tensor, index: Tensor) -> Tensor:
        return torch.cat([self._project(rows, part) for part in index.split(max(1, _WINDOW_ENTRIES // self.width))])

    def _project(self, rows: Tensor, index: Tensor) -> Tensor:
        def project(rows: Tensor) -> Tensor:
            return cast(Tensor, self.qkv(self.norm1(rows[index].transpose(1, 2).flatten(1))))

        if not torch.is_grad_enabled() or not kernels.enabled("recomputed", pays=True):
            return project(rows)
        return cast(Tensor, checkpoint(project, rows, use_reentrant=False, preserve_rng_state=False))


def _distance_bucket(distance: Tensor) -> Tensor:
    """0, 1, 2 or 3 for a distance on the map: itself up to α after rounding, then by its logarithm, never above β."""
    d = distance.to(torch.float64).round()
    slow = _ALPHA + (d.clamp(min=_ALPHA) / _ALPHA).log() / math.log(_GAMMA / _ALPHA) * (_BETA - _ALPHA)
    return torch.where(d <= _ALPHA, d, slow.round().clamp(max=_BETA)).long()


def _near_offsets() -> tuple[Tensor, Tensor]:
    """Steps (o, 2) in rows and columns to all tokens that are not far, oneself included; and their buckets."""
    line = torch.arange(-_FAR, _FAR + 1)
    offsets = torch.cartesian_prod(line, line)
    bucket = _distance_bucket(offsets.to(torch.float64).norm(dim=1))
    return offsets[bucket < _FAR], bucket[bucket < _FAR]


def _map_pairs(side: int, device: torch.device | str = "cpu") -> Pairs:
    """Pairs with a bias among a class token and a side × side map in raster order; kinds as in `_relative_bias`.

    A number added to a whole row leaves its softmax alone. So far pairs, nearly all, count as 0; the class token's own
    row, where all are alike, needs none; what remains is each token's 37 neighbours and its pair with the class token.
    """
    offsets, bucket = (t.to(device) for t in _near_offsets())
    cell = torch.arange(side * side, device=device)
    there = torch.stack([cell // side, cell % side], 1)[:, None] + offsets
    first, column = torch.zeros_like(cell)[:, None], 1 + there[..., 0] * side + there[..., 1]
    inside = torch.cat([first == 0, ((there >= 0) & (there < side)).all(2)], dim=1)
    row = (1 + cell)[:, None].expand(inside.shape)
    kind = torch.cat([bucket.new_tensor([_FAR]), bucket]).expand(inside.shape)
    starts = [0, 0, *inside.sum(1).cumsum(0).tolist()]
    return Pairs(row[inside], torch.cat([first, column], dim=1)[inside], kind[inside], starts)


def _relative_bias(table: Tensor) -> Tensor:
    """What pairs add beyond far pairs: kinds 0, 1, 2 are the near buckets, 3 is the pair with the class token.

    table (heads, 8): buckets −3 … 3 and that of the class token. Distances are not negative: the first three are idle.
    """
    return torch.cat([table[:, _FAR : 2 * _FAR], table[:, _CLASS:]], dim=1) - table[:, 2 * _FAR : _CLASS]


class _BlockLayers(nn.Module):
    """Parameters of a pre-norm transformer block over a class token and a map (1 + side², dim).

    dropout  on attention weights, behind the output layer and behind both layers of the MLP (4 dim wide)
    """

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0):
        super().__init__()
        if dim % heads:
            raise ConfigError(f"heads={heads} must divide the width of the tokens, {dim}")
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.table = nn.Parameter(torch.zeros(heads, _BUCKETS))
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = _feed_forward(dim, 4 * dim, dropout)

    def _qkv(self, tokens: Tensor) -> Iterator[Tensor]:
        return (split_heads(part, self.heads) for part in self.qkv(self.norm1(tokens)).chunk(3, dim=-1))

    def _after_attention(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        tokens = tokens + F.dropout(self.out(join_heads(mixed).to(tokens.dtype)), self._dropout())
        return cast(Tensor, tokens + self.mlp(self.norm2(tokens)))

    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0


class _RelativeBlock(_BlockLayers):
    """All tokens after the block."""

    def forward(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        q, k, v = self._qkv(tokens)
        mixed = attention(q, k, v, dropout=self._dropout(), pairs=pairs, bias=_relative_bias(self.table))
        return self._after_attention(tokens, mixed)


class _ClassTokenBlock(_BlockLayers):
    """The class token after the block (1, dim), and its weights (heads, n) before dropout.

    The same as the first row of `_RelativeBlock` at little cost. The table has no effect on it: all pairs of this row
    share one bucket, which a softmax does not notice.
    """

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self._qkv(tokens)
        with torch.autocast(q.device.type, enabled=False):
            wide = torch.promote_types(q.dtype, torch.float32)
            row = (q[:, :1].to(wide) @ k.mT.to(wide) * q.shape[2] ** -0.5).softmax(-1)
            mixed = F.dropout(row, self._dropout()) @ v.to(wide)
        return self._after_attention(tokens[:1], mixed), row[:, 0]


def _feed_forward(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """Two layers with GELU between them and dropout behind each."""
    drop = nn.Dropout(dropout)
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), drop, nn.Linear(hidden, dim), drop)
