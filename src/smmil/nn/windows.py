"""Transformers whose tokens are windows of a map: each reads a k × k neighbourhood, then all look at each other."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from smmil.nn.relative import feed_forward
from smmil.nn.rowwise import attend_by_rows

EMPTY = -1
ENTRIES = 2**23


def window_index(cells: Tensor, kernel: int, stride: int = 1) -> Tensor:
    """What the k × k window around every stride-th cell shows: (⌈side/stride⌉², k²), row by row.

    cells (side, side) holds numbers of rows; beyond the edge of the map a window shows EMPTY.
    """
    rim = kernel // 2
    framed = pad(cells, (rim, rim, rim, rim), value=EMPTY)
    return framed.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(-1, kernel * kernel)


def whole_map(side: int, device: torch.device | str = "cpu") -> Tensor:
    """Cells of a map without holes: their numbers in raster order."""
    return torch.arange(side * side, device=device).view(side, side)


def distinct_windows(index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Windows that show something, then one that shows nothing, if any does; where each went; how often each comes."""
    blank = (index == EMPTY).all(1)
    busy = (~blank).nonzero()[:, 0]
    chosen = torch.cat([busy, blank.nonzero()[:1, 0]])
    place = torch.full_like(blank, len(busy), dtype=torch.long)
    place[busy] = torch.arange(len(busy), device=index.device)
    return index[chosen], place, place.bincount(minlength=len(chosen))


class WindowTransformer(nn.Module):
    """One token of width `dim` per window: normalise what the window shows, attend with one head, think.

        q, k, v = W LN(window);  y = v + drop(out(thin(softmax(q kᵀ/√(channels·k²))) v));  y + MLP(LN y)

    Channels of a window lie in the order of torch's unfold: all cells of the first channel, then of the next. The scale
    is the width of a window, not of a query. Windows are gathered a few at a time, and again for the backward pass: the
    unfolded map, 25 times the features for k = 5, never exists. Blank windows are all alike; without dropout they are
    computed once and counted.
    """

    def __init__(self, channels: int, dim: int, kernel: int, *, dropout: float = 0.0):
        super().__init__()
        width = channels * kernel * kernel
        self.scale, self.dropout = width**-0.5, dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = feed_forward(dim, dim, dropout)

    def forward(self, rows: Tensor, index: Tensor) -> Tensor:
        """Tokens (t, dim) of windows `index` (t, k²) into rows (m, channels), whose last row stands for EMPTY."""
        if self.dropout and self.training:
            q, k, v = self._read(rows, index)
            mixed = attend_by_rows(q[None], k[None], v[None], scale=self.scale, dropout=self.dropout)[0]
            return self._rest(v, dropout(self.out(mixed.to(v.dtype)), self.dropout))
        index, place, counts = distinct_windows(index)
        q, k, v = self._read(rows, index)
        often = counts.to(q.dtype).log()[None] if len(counts) < len(place) else None
        # Four dimensions: with three the kernel is not fused.
        q4, k4, v4 = (t[None, None] for t in (q, k, v))
        mixed = scaled_dot_product_attention(q4, k4, v4, attn_mask=often, scale=self.scale)[0, 0]
        return self._rest(v, self.out(mixed))[place]

    def _read(self, rows: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        parts = index.split(max(1, ENTRIES // self.norm1.weight.numel()))
        return torch.cat(list(self._projected(rows, parts))).chunk(3, dim=-1)

    def _projected(self, rows: Tensor, parts: tuple[Tensor, ...]) -> Iterator[Tensor]:
        for part in parts:
            if torch.is_grad_enabled():
                yield checkpoint(self._project, rows, part, use_reentrant=False, preserve_rng_state=False)
            else:
                yield self._project(rows, part)

    def _project(self, rows: Tensor, index: Tensor) -> Tensor:
        return self.qkv(self.norm1(rows[index].transpose(1, 2).flatten(1)))

    def _rest(self, v: Tensor, attended: Tensor) -> Tensor:
        y = v + attended
        return y + self.mlp(self.norm2(y))
