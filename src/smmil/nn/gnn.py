"""Graph convolutions (GENConv, ChebConv, GINConv), sums over neighbours, and the search for nearest neighbours."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from smmil.errors import ConfigError, DataError
from smmil.graph import Graph
from smmil.nn.segment import segment_softmax, segment_sum

SPARE = 16


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A 0/1 matrix and its transpose: row i lists the neighbours of i; it may be one-sided."""

    matrix: Graph
    transpose: Graph

    @classmethod
    def of(cls, graph: Graph) -> "Neighbours":
        """The neighbours of a graph as built, its weights left aside."""
        if graph.kind is not None:
            raise DataError(f"neighbours are read from a graph as built, got one normalised as {graph.kind!r}")
        alike = _ones(graph.indptr, graph.indices)
        return cls(alike, alike)

    @property
    def isolated(self) -> Tensor:
        """Rows without neighbours, as a mask (n, 1)."""
        return (self.matrix.indptr.diff() == 0)[:, None]

    def sum(self, x: Tensor) -> Tensor:
        """For every row the sum of its neighbours in x; half precision is summed in float32."""
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        total: Tensor = torch.ops.smmil.propagate(x, *self.matrix.csr, *self.transpose.csr)
        return total


def nearest(coords: Tensor, offsets: Tensor, k: int) -> Neighbours:
    """Each instance is a neighbour of the k nearest of its bag: row i lists those that count i among their nearest.

    Of equally distant ones those further up, then further left, come first: the order of the rows does not matter (as
    long as no more than 16 compete). In a bag of n <= k instances all are neighbours.
    """
    if k < 1:
        raise DataError(f"nearest: k must be at least 1, got {k}")
    points = np.asarray(coords.detach().cpu(), dtype=np.float64).reshape(len(coords), -1)
    chosen = [_choose(points[a:b], k) + a for a, b in itertools.pairwise(offsets.tolist())]
    counts = np.concatenate([np.full(len(c), c.shape[1]) for c in chosen])
    heard = np.concatenate([c.reshape(-1) for c in chosen])
    speaker = np.repeat(np.arange(len(points)), counts)
    order = np.argsort(heard, kind="stable")
    listens = _rows(np.bincount(heard, minlength=len(points)), speaker[order])
    return Neighbours(*(_ones(*(t.to(coords.device) for t in side)) for side in (listens, _rows(counts, heard))))


def _choose(points: np.ndarray, k: int) -> np.ndarray:
    """Row numbers (n, min(k, n - 1)) of the nearest others of every point."""
    n = len(points)
    _, near = cKDTree(points).query(points, k=np.arange(1, min(n, k + 1 + SPARE) + 1))
    apart = points[near] - points[:, None]
    itself = near == np.arange(n)[:, None]
    keys = (*np.moveaxis(apart, -1, 0), (apart**2).sum(-1), itself)
    return np.take_along_axis(near, np.lexsort(keys, axis=-1), 1)[:, : min(k, n - 1)]


def _rows(counts: np.ndarray, columns: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])), torch.from_numpy(columns)


def _ones(indptr: Tensor, indices: Tensor) -> Graph:
    return Graph(indptr, indices, torch.ones(indices.numel(), dtype=torch.float64, device=indices.device))


MESSAGE_SHIFT = 1e-7


def _softmax_aggregate(m: Tensor, t: Tensor, neighbours: Neighbours) -> Tensor:
    """Weighted mean of the neighbours' messages m (n, d), every channel with its own weights softmax(t m); (n, d).

    The numerator exp(t m_j) belongs to the speaker alone, so the mean is a ratio of two sums over neighbours: memory
    O(n d), not O(e d). One shift per channel keeps it in range; should the messages of a channel spread too far for
    that (t m over 80 apart in float32), the weights are formed edge by edge. Rows without neighbours get 0.
    """
    m = m if m.dtype in (torch.float32, torch.float64) else m.float()
    if torch.compiler.is_compiling():  # a program cannot look at the spread first
        return _softmax_aggregate_by_edge(m, t, neighbours)
    logits = t * m
    low, top = logits.detach().aminmax(dim=0)
    if not float((top - low).max()) <= 0.9 * math.log(torch.finfo(m.dtype).max):
        return _softmax_aggregate_by_edge(m, t, neighbours)
    e = (logits - (low + top) / 2).exp()
    weighted, total = neighbours.sum(torch.cat([e * m, e], 1)).chunk(2, dim=1)
    return weighted / (total + neighbours.isolated.to(m.dtype))


def _softmax_aggregate_by_edge(m: Tensor, t: Tensor, neighbours: Neighbours) -> Tensor:
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
        out: Tensor = self.mlp(x + _softmax_aggregate(x.relu() + MESSAGE_SHIFT, self.t, neighbours))
        return out


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
        h: Tensor
        if type(self.first).forward is nn.Linear.forward:  # else it may not commute with sums
            h = self.first(x)
            h = h + neighbours.sum(h - self.first.bias)
        else:
            h = self.first(x + neighbours.sum(x))
        out: Tensor = self.second(h.relu())
        return out
