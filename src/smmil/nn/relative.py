"""Image relative position encoding (iRPE; Wu et al., 2021, arXiv:2107.14222): tokens of a map know their distances.

Every head adds to the logit of two tokens of a side × side map a number that depends on their distance only, looked up
in a table: Euclidean method, bias mode. Distances are rounded and sorted into buckets, fine when near and all
alike from 4 on. A class token in front of the map has a bucket of its own, for its row and for its column.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from smmil.errors import ConfigError
from smmil.nn.rowwise import Pairs, attend_by_rows

ALPHA, BETA, GAMMA = 1.9, 3.8, 15.2
FAR = int(BETA)
CLASS = 2 * FAR + 1
BUCKETS = CLASS + 1


def distance_bucket(distance: Tensor) -> Tensor:
    """0, 1, 2 or 3 for a distance on the map: itself up to α after rounding, then by its logarithm, never above β."""
    d = distance.to(torch.float64).round()
    slow = ALPHA + (d.clamp(min=ALPHA) / ALPHA).log() / math.log(GAMMA / ALPHA) * (BETA - ALPHA)
    return torch.where(d <= ALPHA, d, slow.round().clamp(max=BETA)).long()


def near_offsets() -> tuple[Tensor, Tensor]:
    """Steps (o, 2) in rows and columns to all tokens that are not far, oneself included; and their buckets."""
    line = torch.arange(-FAR, FAR + 1)
    offsets = torch.cartesian_prod(line, line)
    bucket = distance_bucket(offsets.to(torch.float64).norm(dim=1))
    return offsets[bucket < FAR], bucket[bucket < FAR]


def map_pairs(side: int, device: torch.device | str = "cpu") -> Pairs:
    """Pairs with a bias among a class token and a side × side map in raster order; kinds as in `relative_bias`.

    A number added to a whole row leaves its softmax alone. So far pairs, nearly all, count as 0; the class token's own
    row, where all are alike, needs none; what remains is each token's 37 neighbours and its look at the class token.
    """
    offsets, bucket = (t.to(device) for t in near_offsets())
    cell = torch.arange(side * side, device=device)
    there = torch.stack([cell // side, cell % side], 1)[:, None] + offsets
    first, column = torch.zeros_like(cell)[:, None], 1 + there[..., 0] * side + there[..., 1]
    inside = torch.cat([first == 0, ((there >= 0) & (there < side)).all(2)], dim=1)
    row = (1 + cell)[:, None].expand(inside.shape)
    kind = torch.cat([bucket.new_tensor([FAR]), bucket]).expand(inside.shape)
    starts = [0, 0, *inside.sum(1).cumsum(0).tolist()]
    return Pairs(row[inside], torch.cat([first, column], dim=1)[inside], kind[inside], starts)


def relative_bias(table: Tensor) -> Tensor:
    """What pairs add beyond far pairs: kinds 0, 1, 2 are the near buckets, 3 is a look at the class token.

    table (heads, 8): buckets −3 … 3 and that of the class token. Distances are not negative: the first three are idle.
    """
    return torch.cat([table[:, FAR : 2 * FAR], table[:, CLASS:]], dim=1) - table[:, 2 * FAR : CLASS]


class RelativeBlock(nn.Module):
    """Pre-norm transformer block over a class token and a map (1 + side², dim) with relative position encoding.

    dropout  on attention weights, behind the output layer and behind both layers of the MLP (4 dim wide)
    """

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0):
        super().__init__()
        if dim % heads:
            raise ConfigError(f"heads={heads} must divide the width of the tokens, {dim}")
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.table = nn.Parameter(torch.zeros(heads, BUCKETS))
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = feed_forward(dim, 4 * dim, dropout)

    def forward(self, tokens: Tensor, pairs: Pairs) -> Tensor:
        q, k, v = self._heads(tokens)
        bias = relative_bias(self.table)
        mixed = attend_by_rows(q, k, v, scale=q.shape[2] ** -0.5, dropout=self._drop(), pairs=pairs, bias=bias)
        return self._rest(tokens, mixed)

    def first_row(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The class token after the block (1, dim), and its weights (heads, n) before dropout.

        The same as the first row of `forward` at little cost. The table has no say in it: all pairs of this row share
        one bucket, which a softmax does not notice.
        """
        q, k, v = self._heads(tokens)
        with torch.autocast(q.device.type, enabled=False):
            wide = torch.promote_types(q.dtype, torch.float32)
            row = (q[:, :1].to(wide) @ k.mT.to(wide) * q.shape[2] ** -0.5).softmax(-1)
            mixed = dropout(row, self._drop()) @ v.to(wide)
        return self._rest(tokens[:1], mixed), row[:, 0]

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_head = self.qkv(self.norm1(tokens)).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        return cast(tuple[Tensor, Tensor, Tensor], by_head.unbind(0))

    def _rest(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        attended = self.out(mixed.transpose(0, 1).flatten(1).to(tokens.dtype))
        tokens = tokens + dropout(attended, self._drop())
        return tokens + self.mlp(self.norm2(tokens))

    def _drop(self) -> float:
        return self.dropout if self.training else 0.0


def feed_forward(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """Two layers with GELU between them and dropout behind each."""
    drop = nn.Dropout(dropout)
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), drop, nn.Linear(hidden, dim), drop)
