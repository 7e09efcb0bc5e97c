"""Unweighted, possibly one-sided neighbourhoods: sums over neighbours, and the nearest by position."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from smmil.errors import DataError
from smmil.graph import Graph

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
        return torch.ops.smmil.propagate(x, *self.matrix.csr, *self.transpose.csr)


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
