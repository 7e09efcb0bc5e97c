"""Whom an instance listens to and how much, itself included: the neighbourhoods of CAMIL."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from smmil.errors import DataError
from smmil.graph import Graph
from smmil.nn.neighbours import Neighbours, nearest
from smmil.nn.segment import segment_sum

ENTRIES = 2**22
REFERENCES = 15


@dataclass(frozen=True, eq=False)
class Context:
    """Weights a_ij of the others each row listens to, and the weight (n, 1) a_ii it gives itself."""

    others: Neighbours
    own: Tensor

    def sum(self, x: Tensor) -> Tensor:
        """Σ_j a_ij x_j for every row: a sparse product, nothing is kept per neighbour."""
        return self.others.sum(x) + self.own.to(x.dtype) * x

    def without_self(self) -> "Context":
        return Context(self.others, torch.zeros_like(self.own))


def context_logits(q: Tensor, k: Tensor, context: Context) -> Tensor:
    """g_i = Σ_j a_ij q_i·k_j/√d as a column (n, 1).

    The sum is drawn inside, q_i·(Σ_j a_ij k_j): of the n × n products none is formed, not even those of neighbours.
    """
    return (q * context.sum(k)).sum(1, keepdim=True) * q.shape[1] ** -0.5


def graph_context(graph: Graph) -> Context:
    """The neighbours of a graph as built with their weights; itself as much as the heaviest of them, 1 if alone."""
    if graph.kind is not None:
        raise DataError(f"the context is read from a graph as built, got one normalised as {graph.kind!r}")
    return Context(Neighbours(graph, graph), _heaviest(graph.weight, graph.indptr))


def nearest_context(x: Tensor, coords: Tensor, offsets: Tensor, k: int = 7) -> Context:
    """The k nearest of the bag by position, each the heavier the more its features x resemble one's own.

    With cosine distances c_ij to the 15 nearest (all others of a smaller bag; k if that is more),

        a_ij = exp(-c_ij / ‖c_i‖) for the first k,   a_ii = the largest over all of them, 1 if alone

    so that weights lie between 1/e and 1. One may listen to another without being listened to. The weights are facts
    about the features: no gradient flows through them.
    """
    if k < 1:
        raise DataError(f"nearest_context: k must be at least 1, got {k}")
    near = nearest(coords, offsets, max(k, REFERENCES)).transpose  # row i holds the nearest of i, nearest first
    apart = cosine_distances(x.detach(), near.edges())
    norm = segment_sum(apart.square(), near.indptr).sqrt()
    weight = (-apart / norm.where(norm > 0, 1)[near.rows]).exp()
    rank = torch.arange(len(weight), device=weight.device) - near.indptr[near.rows]
    return Context(_two_sided(near, weight, rank < k), _heaviest(weight, near.indptr))


def cosine_distances(x: Tensor, pairs: Tensor) -> Tensor:
    """1 - cos of the rows of x joined by each of the pairs (2, e), in float64; 0 where a row is all zero.

    A difference that rounding alone can make counts as none: normalised, it would become weights of pure chance.
    """
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    length = x.norm(dim=1, keepdim=True)
    units = x / length.where(length > 0, 1)
    parts = pairs.split(max(1, ENTRIES // x.shape[1]), dim=1)
    cosines = torch.cat([(units[i] * units[j]).sum(1) for i, j in parts])
    apart = 1 - cosines.double()
    blank = (length[:, 0] == 0)[pairs].any(0)
    return apart.where((apart > 16 * torch.finfo(x.dtype).eps) & ~blank, 0)


def _heaviest(weight: Tensor, indptr: Tensor) -> Tensor:
    """Largest weight of each row as a column; 1 for rows without any."""
    most = torch.segment_reduce(weight, "max", offsets=indptr, axis=0, initial=0)
    return most.where(indptr.diff() > 0, 1)[:, None]


def _two_sided(near: Graph, weight: Tensor, kept: Tensor) -> Neighbours:
    """The kept entries with their weights, as a matrix and as its transpose."""
    rows, columns, weight = near.rows[kept], near.indices[kept], weight[kept]
    back = columns.argsort(stable=True)
    return Neighbours(_matrix(rows, columns, weight, near.n), _matrix(columns[back], rows[back], weight[back], near.n))


def _matrix(rows: Tensor, columns: Tensor, weight: Tensor, n: int) -> Graph:
    """CSR from entries sorted by row."""
    return Graph(pad(torch.bincount(rows, minlength=n).cumsum(0), (1, 0)), columns, weight)
