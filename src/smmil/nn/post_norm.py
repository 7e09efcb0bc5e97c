"""The original transformer layers (each step added, then normalised) for packed bags, and queries that read a bag."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from smmil.nn.dropped_attention import dropped_attention

SMALL = 1 << 19  # numbers that are cheaper to keep than to compute again


def recomputed(run: Callable[..., Tensor], *rows: Tensor, size: int) -> Tensor:
    """run(*rows), keeping only its input for the backward pass, which runs it again with the same random numbers.

    size  numbers in its widest tensor on the way; if they are few, all is kept as usual
    """
    if size <= SMALL or not torch.is_grad_enabled():
        return run(*rows)
    return checkpoint(run, *rows, use_reentrant=False)


class HeadProjections(nn.Module):
    """The linear maps around attention: queries, keys and values in, merged heads out; with biases."""

    def __init__(self, dim: int):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.merge = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.merge.bias)

    def queries(self, x: Tensor) -> Tensor:
        dim = self.merge.in_features
        return F.linear(x, self.qkv.weight[:dim], self.qkv.bias[:dim])

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dim = self.merge.in_features
        k, v = F.linear(x, self.qkv.weight[dim:], self.qkv.bias[dim:]).chunk(2, dim=-1)
        return k, v


class FeedForward(nn.Module):
    """LN(x + W₂ relu(W₁ x)) with dropout behind both maps, row by row; its wide middle is not kept for training."""

    def __init__(self, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return recomputed(self._rows, x, size=x[..., 0].numel() * self.expand.out_features)

    def _rows(self, x: Tensor) -> Tensor:
        return self.norm(x + self.drop(self.contract(self.drop(self.expand(x).relu()))))


class PostNormLayer(nn.Module):
    """Every instance looks at all instances of its bag, then thinks for itself; normalised after each."""

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention = HeadProjections(dim)
        self.norm = nn.LayerNorm(dim)
        self.feed = FeedForward(dim, hidden, dropout)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        q, k, v = self.attention.qkv(x).chunk(3, dim=-1)
        heard = dropped_attention(q, k, v, offsets, self.heads, self.dropout if self.training else 0.0)
        return self.feed(self.norm(x + F.dropout(self.attention.merge(heard), self.dropout, self.training)))


class QueryLayer(nn.Module):
    """A few queries per bag look at each other, then at all instances, then think for themselves."""

    def __init__(self, dim: int, *, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.drop = nn.Dropout(dropout)
        self.among, self.norm_among = HeadProjections(dim), nn.LayerNorm(dim)
        self.across, self.norm_across = HeadProjections(dim), nn.LayerNorm(dim)
        self.feed = FeedForward(dim, hidden, dropout)

    def forward(self, t: Tensor, h: Tensor, offsets: Tensor) -> Tensor:
        """New queries (b, m, dim) from queries t and packed instances h (n, dim)."""
        heard = self._attend(self.among.queries(t), *self.among.keys_and_values(t))
        t = self.norm_among(t + self.drop(self.among.merge(heard)))
        k, v = (rows.split(offsets.diff().tolist()) for rows in self.across.keys_and_values(h))
        bags = zip(self.across.queries(t).split(1), k, v, strict=True)
        heard = torch.cat([self._attend(q, k_bag[None], v_bag[None]) for q, k_bag, v_bag in bags])
        return self.feed(self.norm_across(t + self.drop(self.across.merge(heard))))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        dropout = self.drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).flatten(2)


class QueryDecoder(nn.Module):
    """Learned queries that read a bag through some layers; what they found, side by side: (b, queries·dim).

    All layers begin with the same weights, as copies of one.
    """

    def __init__(self, dim: int, *, queries: int, layers: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, dim))
        first = QueryLayer(dim, heads=heads, hidden=hidden, dropout=dropout)
        self.layers = nn.ModuleList(deepcopy(first) for _ in range(layers))

    def forward(self, h: Tensor, offsets: Tensor) -> Tensor:
        t = self.queries.expand(offsets.numel() - 1, -1, -1)
        for layer in self.layers:
            t = layer(t, h, offsets)
        return t.flatten(1)
