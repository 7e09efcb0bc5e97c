"""Graph convolutions over packed instances: GENConv, ChebConv and GINConv without a tensor per edge."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smmil.errors import ConfigError
from smmil.graph import Graph
from smmil.nn.neighbours import Neighbours
from smmil.nn.segment import segment_softmax, segment_sum

MESSAGE_SHIFT = 1e-7


def softmax_aggregate(m: Tensor, t: Tensor, neighbours: Neighbours) -> Tensor:
    """Weighted mean of the neighbours' messages m (n, d), every channel with its own weights softmax(t m); (n, d).

    The numerator exp(t m_j) belongs to the speaker alone, so the mean is a ratio of two sums over neighbours: memory
    O(n d), not O(e d). One shift per channel keeps it in range; should the messages of a channel spread too far for
    that (t m over 80 apart in float32), the weights are formed edge by edge. Rows without neighbours get 0.
    """
    m = m if m.dtype in (torch.float32, torch.float64) else m.float()
    if torch.compiler.is_compiling():  # a program cannot look at the spread first
        return softmax_aggregate_by_edge(m, t, neighbours)
    logits = t * m
    low, top = logits.detach().aminmax(dim=0)
    if not float((top - low).max()) <= 0.9 * math.log(torch.finfo(m.dtype).max):
        return softmax_aggregate_by_edge(m, t, neighbours)
    e = (logits - (low + top) / 2).exp()
    weighted, total = neighbours.sum(torch.cat([e * m, e], 1)).chunk(2, dim=1)
    return weighted / (total + neighbours.isolated.to(m.dtype))


def softmax_aggregate_by_edge(m: Tensor, t: Tensor, neighbours: Neighbours) -> Tensor:
    """The same for messages of any spread, with one row per edge: memory O(e d)."""
    heard, offsets = m[neighbours.matrix.indices], neighbours.matrix.indptr
    return segment_sum(segment_softmax(t * heard, offsets) * heard, offsets)


class GENConv(nn.Module):
    """Add to each row the softmax-weighted mean of its neighbours' messages, then an MLP (DeeperGCN, arXiv:2006.07739).

    Messages are relu(x) + 1e-7; the inverse temperature t of the softmax is learned, starting at 1. The MLP doubles the
    width inside, with LayerNorm and ReLU in the middle.
    """

    def __init__(self, dim: int, *, bias: bool = True):
        super().__init__()
        self.t = nn.Parameter(torch.ones(1))
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim, bias=bias), nn.LayerNorm(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim, bias=bias)
        )

    def forward(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        return self.mlp(x + softmax_aggregate(x.relu() + MESSAGE_SHIFT, self.t, neighbours))


def chebyshev_terms(x: Tensor, graph: Graph, count: int) -> list[Tensor]:
    """T_0 x … T_{count-1} x with T_0 = I, T_1 = -P, T_k = -2 P T_{k-1} - T_{k-2} for a normalised graph P = I - L.

    These are Chebyshev polynomials of the Laplacian scaled to [-1, 1] with largest eigenvalue 2: 2L/2 - I = -P.
    """
    terms = [x]
    with torch.autocast(x.device.type, enabled=False):
        for k in range(1, count):
            step = -graph.propagate(terms[-1])
            terms.append(step if k == 1 else 2 * step - terms[-2])
    return terms


class ChebConv(nn.Module):
    """Σ_k T_k Θ_k (+ bias): a polynomial filter of the graph Laplacian with `order` terms (arXiv:1606.09375).

    Takes the terms themselves, so that several filters can share them. One term sees no neighbours at all.
    """

    def __init__(self, in_dim: int, out_dim: int, order: int = 5, *, bias: bool = True):
        super().__init__()
        if order < 1:
            raise ConfigError(f"ChebConv: it needs at least one term, got K = {order}")
        self.weight = nn.Parameter(torch.empty(order, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim)) if bias else None
        for one in self.weight:
            nn.init.xavier_uniform_(one)

    def forward(self, terms: Sequence[Tensor]) -> Tensor:
        out = terms[0] @ self.weight[0]
        for term, weight in zip(terms[1:], self.weight[1:], strict=True):
            out = out + term @ weight
        return out if self.bias is None else out + self.bias


class GINConv(nn.Module):
    """MLP of each row plus the sum of its neighbours: Linear, ReLU, Linear (arXiv:1810.00826, with ε = 0).

    The first linear map is taken before the sum, with which it commutes: wide features are narrowed first.
    """

    def __init__(self, in_dim: int, dim: int):
        super().__init__()
        self.first = nn.Linear(in_dim, dim)
        self.second = nn.Linear(dim, dim)

    def forward(self, x: Tensor, neighbours: Neighbours) -> Tensor:
        if not isinstance(self.first, nn.Linear):
            return self.second(self.first(x + neighbours.sum(x)).relu())
        h = self.first(x)
        return self.second((h + neighbours.sum(h - self.first.bias)).relu())
