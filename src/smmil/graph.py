"""Sparse graphs over the instances of a bag: build lattice, kNN and chain graphs, normalise, multiply."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import GetAttrKey, register_pytree_node

from smmil.errors import DataError, check_choice
from smmil.sparse import CSR, row_numbers, sum_by_row

KINDS = ("sym", "sym_loop", "rw")
# Bags from this size on stop when more than this share of their instances has no neighbour.
ALARM_FROM, ALARM_SHARE = 10, 0.5
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Graph:
    """Neighbourhood as a sparse matrix in CSR form: row i lists the neighbours of node i.

    As built (`kind=None`) it is the adjacency A: symmetric, positive weights, no self-loops. `normalized(kind)` is the
    propagation matrix P = I - L. Weights are float64 (float32 on MPS, which has no other) and cast once to the dtype of
    what they act on. `skew` is the condition number of the similarity that makes P symmetric: √(d_max/d_min) for `rw`,
    else 1. A graph is a pytree, so `torch.export` and `torch.compile` take it as an input.
    """

    indptr: Tensor
    indices: Tensor
    weight: Tensor
    kind: str | None = None
    skew: float = 1.0
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the edges, not what was derived from them (torch cannot copy sparse tensors)."""
        return Graph, (self.indptr, self.indices, self.weight, self.kind, self.skew)

    def __repr__(self) -> str:
        entries = self.indices.shape[0]
        size = f"{entries // 2:,} edges" if self.kind is None else f"{entries:,} entries, {self.kind}"
        return f"Graph({self.n:,} nodes, {size})"

    @classmethod
    def from_edges(cls, index: Any, weight: Any = None, n: int | None = None) -> "Graph":
        """Graph from pairs of nodes (2, e); a pair given in one direction counts in both.

        Repeated pairs must agree in weight. Self-loops are refused: `normalized("sym_loop")` adds them on purpose.
        """
        index = np.asarray(index, dtype=np.int64).reshape(2, -1)
        weight = np.ones(index.shape[1]) if weight is None else np.asarray(weight, dtype=np.float64).reshape(-1)
        n = int(index.max(initial=0)) + 1 if n is None else int(n)
        _check_edges(index, weight, n)
        keys = np.concatenate([index[0] * n + index[1], index[1] * n + index[0]])
        keys, first, back = np.unique(keys, return_index=True, return_inverse=True)
        weight = np.concatenate([weight, weight])
        if not np.array_equal(weight[first][back], weight):
            raise DataError("edges: the same pair of nodes is given with two different weights; keep one of them")
        indptr = np.searchsorted(keys, np.arange(n + 1) * n)
        return cls(torch.from_numpy(indptr), torch.from_numpy(keys % n), torch.from_numpy(weight[first]))

    @property
    def n(self) -> int:
        return self.indptr.shape[0] - 1

    @property
    def csr(self) -> CSR:
        """The matrix as kernels take it."""
        return CSR(self.indptr, self.indices, self.weight)

    @property
    def sides(self) -> tuple[Tensor, ...]:
        """The matrix and its transpose, three tensors each: the form in which torch operators take a graph."""
        return (*self.csr, *self.transposed().csr)

    @property
    def rows(self) -> Tensor:
        """Row of every stored entry."""
        return self._cached("rows", lambda: row_numbers(self.indptr, self.indices.shape[0]))

    @property
    def degrees(self) -> Tensor:
        """Sum of the weights in each row."""
        return self._cached("degrees", lambda: sum_by_row(self.rows, self.weight, self.n))

    @property
    def bandwidth(self) -> int:
        """Largest distance in rows between two neighbours."""
        return self.csr.bandwidth

    @property
    def is_chain(self) -> bool:
        """Whether only consecutive nodes are joined, as in CT scans (several chains in a row count too)."""
        return self.bandwidth <= 1

    @property
    def isolated_share(self) -> float:
        """Share of the nodes of a graph as built that have no neighbour."""
        return float((self.indptr.diff() == 0).double().mean())

    def normalized(self, kind: str = "sym", isolated: str = "keep") -> "Graph":
        """The propagation matrix P: `sym` D^-½AD^-½, `sym_loop` the same with A + I, `rw` D^-1 A; cached.

        `isolated="keep"` gives nodes without neighbours P_ii = 1, so smoothing leaves them as they are; "shrink" leaves
        their row empty, which fades them by 1 - alpha (a convention some libraries use).
        """
        check_choice(kind, KINDS, "normalisation")
        check_choice(isolated, ("keep", "shrink"), "isolated")
        if self.kind == kind:
            return self
        if self.kind is not None:
            raise DataError(f"graph is already normalised as {self.kind!r}; build {kind!r} from the graph as built")
        return self._cached((kind, isolated), lambda: self._normalize(kind, isolated))

    def _normalize(self, kind: str, isolated: str) -> "Graph":
        graph = self._with_loops(kind, isolated)
        scale = graph.degrees.clamp_min(torch.finfo(graph.weight.dtype).tiny)
        if kind == "rw":
            weights = (graph.weight / scale[graph.rows], graph.weight / scale[graph.indices])
            p, across = (Graph(graph.indptr, graph.indices, w, kind, _skew(graph.degrees)) for w in weights)
            p._cache["transposed"], across._cache["transposed"] = across, p
            return p
        root = scale.rsqrt()
        weight = graph.weight * root.index_select(0, graph.rows) * root.index_select(0, graph.indices)
        return Graph(graph.indptr, graph.indices, weight, kind)

    def _with_loops(self, kind: str, isolated: str) -> "Graph":
        """The graph with the self-loops a normalisation needs."""
        if kind == "sym_loop":
            return self._with_diagonal(torch.ones(self.n, dtype=self.weight.dtype, device=self.weight.device))
        if isolated == "shrink":
            return self
        alone = self.indptr.diff() == 0
        if torch.compiler.is_compiling() or alone.device.type != "cpu":  # loops of weight 0: no size depends on data
            return self._with_diagonal(alone.to(self.weight.dtype))
        return self._with_diagonal(alone.to(self.weight.dtype), alone) if bool(alone.any()) else self

    def _with_diagonal(self, values: Tensor, where: Tensor | None = None) -> "Graph":
        """The graph with self-loops of weights `values` (n,), at all nodes or at those in the mask `where`."""
        nodes = torch.arange(self.n, device=values.device)
        added = nodes + 1 if where is None else where.long().cumsum(0)
        indptr = self.indptr + pad(added, (1, 0))
        old = torch.arange(self.indices.shape[0], device=values.device) + added[self.rows]
        new = indptr[:-1]
        if where is not None:
            nodes, new = nodes[where], new[where]
        place = torch.cat([old, new])
        indices, weight = torch.cat([self.indices, nodes]), torch.cat([self.weight, values[nodes]])
        indices, weight = (torch.zeros_like(v).scatter(0, place, v) for v in (indices, weight))
        return Graph(indptr, indices, weight, self.kind)

    def within(self, group: Tensor) -> "Graph":
        """The same nodes without the edges that join different groups (n,), and with their new degrees."""
        if self.kind is not None:
            raise DataError(f"the graph is already normalised as {self.kind!r}; cut the graph as built")
        kept = group[self.rows] == group[self.indices]
        before = pad(kept.long().cumsum(0), (1, 0))
        return Graph(before[self.indptr], self.indices[kept], self.weight[kept])

    def induced(self, rows: Tensor) -> "Graph":
        """The part of the matrix among these nodes, given in ascending order: node rows[i] becomes node i.

        Of a graph as built this is the induced subgraph, with degrees of its own; of a normalised one the sub-matrix of
        P, with the degrees of the whole (`halo` says when it smooths alike). Time and memory grow with the entries in
        `rows`, and one number per node of the whole.
        """
        if len(rows) and bool((rows.diff() <= 0).any()):
            raise DataError("graph: the nodes of a part must be given once each and in ascending order; sort them")
        place = self.indptr.new_full((self.n,), -1)
        place[rows] = torch.arange(len(rows), device=place.device)
        entries, counts = self._entries(rows)
        near = place[self.indices[entries]]
        kept = near >= 0
        before = pad(kept.long().cumsum(0), (1, 0))
        indptr = before[pad(counts.cumsum(0), (1, 0))]
        return Graph(indptr, near[kept], self.weight[entries[kept]], self.kind, self.skew)

    def halo(self, rows: Tensor, hops: int) -> Tensor:
        """These nodes and all that are at most `hops` edges away from one of them, in ascending order.

        T steps of `sm` with the sub-matrix of P among halo(rows, T) give, at `rows`, what they give in the whole graph:
        a step carries values over one edge, so what is wrong at the border of the halo needs T + 1 steps to arrive.
        """
        inside = torch.zeros(self.n, dtype=torch.bool, device=self.indptr.device)
        inside[rows] = True
        fresh = inside.nonzero().flatten()
        for _ in range(hops):
            near = self.indices[self._entries(fresh)[0]]
            fresh = near[~inside[near]].unique()
            if not len(fresh):
                break
            inside[fresh] = True
        return inside.nonzero().flatten()

    def _entries(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the stored entries of these rows, row by row, and how many each has."""
        starts = self.indptr[rows]
        counts = self.indptr[rows + 1] - starts
        before = counts.cumsum(0) - counts
        entries = torch.arange(int(counts.sum()), device=starts.device)
        return entries + torch.repeat_interleave(starts - before, counts), counts

    def transposed(self) -> "Graph":
        """The transposed matrix; itself unless the normalisation is `rw`."""
        return self if self.kind != "rw" else self._cached("transposed", self._transpose)

    def _transpose(self) -> "Graph":
        order = self.indices.argsort(stable=True)
        counts = sum_by_row(self.indices, torch.ones_like(self.indices), self.n)
        across = Graph(pad(counts.cumsum(0), (1, 0)), self.rows[order], self.weight[order], self.kind, self.skew)
        across._cache["transposed"] = self
        return across

    def propagate(self, x: Tensor) -> Tensor:
        """The matrix times the rows of x: each row becomes the weighted sum of its neighbours. Differentiable in x."""
        rows = x.reshape(self.n, -1)
        rows = rows if x.dtype in (torch.float32, torch.float64) else rows.float()
        product: Tensor = torch.ops.smmil.propagate(rows, *self.sides)
        return product.reshape(x.shape).to(x.dtype)

    def roughness(self, x: Tensor) -> Tensor:
        """Dirichlet energy: as built ½ Σ A_ij |x_i - x_j|², for `sym` and `sym_loop` tr xᵀ(I - P)x; 0 is smoothest."""
        if self.kind == "rw":
            raise DataError("roughness of an 'rw' graph is not a symmetric energy; use the graph as built or 'sym'")
        x = x.reshape(self.n, -1)
        if self.kind is None:
            apart = (x[self.rows] - x[self.indices]).square().sum(1)
            return (apart * self.weight.to(apart.dtype)).sum() / 2
        return (x * (x - self.propagate(x))).sum()

    def dense(self) -> Tensor:
        matrix = torch.zeros(self.n, self.n, dtype=self.weight.dtype, device=self.weight.device)
        return matrix.index_put_((self.rows, self.indices), self.weight, accumulate=True)

    def same_as(self, other: "Graph") -> bool:
        """Whether both join the same nodes with the same weights, in whatever order the entries are stored."""
        if (self.n, self.indices.numel(), self.kind) != (other.n, other.indices.numel(), other.kind):
            return False
        mine, theirs = (g.rows * g.n + g.indices for g in (self, other))
        (mine, at), (theirs, there) = mine.sort(), theirs.sort()
        return torch.equal(mine, theirs) and torch.equal(self.weight[at], other.weight[there])

    def edges(self) -> Tensor:
        """Stored entries as pairs (2, e), row first."""
        return torch.stack([self.rows, self.indices])

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Graph":
        """The graph on another device; MPS has no float64, so the weights become float32 there."""
        device = torch.device(device)
        if self.weight.device == device:
            return self
        weight = self.weight.to(_weight_dtype(device))
        return Graph(
            self.indptr.to(device, non_blocking=non_blocking),
            self.indices.to(device, non_blocking=non_blocking),
            weight.to(device, non_blocking=non_blocking),
            self.kind,
            self.skew,
        )

    def pin_memory(self) -> "Graph":
        """The graph in page-locked memory, from which copies to a GPU need not wait."""
        indptr, indices, weight = (t.pin_memory() for t in self.csr)
        return Graph(indptr, indices, weight, self.kind, self.skew)

    def _cached(self, key: Any, make: Callable[[], _T]) -> _T:
        """The value under `key`, made when first asked for; tensors of a traced program are not kept."""
        made: _T = self._cache[key] if key in self._cache else make()
        if not torch.compiler.is_compiling():
            self._cache[key] = made
        return made


def _weight_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _skew(degrees: Tensor) -> float:
    """√(d_max/d_min) over the nodes with neighbours; not a number in a traced program, where degrees are unknown."""
    if torch.compiler.is_compiling():
        return float("nan")
    low = degrees.where(degrees > 0, torch.inf).min()
    return math.sqrt(max(1.0, float(degrees.max() / low)))


def _flatten_graph(graph: Graph) -> tuple[list[Any], tuple[str | None, float]]:
    return [graph.indptr, graph.indices, graph.weight], (graph.kind, graph.skew)


def _unflatten_graph(parts: Any, context: Any) -> Graph:
    return Graph(*parts, *context)


def with_keys(names: Sequence[str], parts: list[Any], context: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The parts of a flattened object with their names, by which export reports on them."""
    return [(GetAttrKey(name), part) for name, part in zip(names, parts, strict=True)], context


register_pytree_node(
    Graph,
    _flatten_graph,
    _unflatten_graph,
    serialized_type_name="smmil.Graph",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
    flatten_with_keys_fn=lambda graph: with_keys(("indptr", "indices", "weight"), *_flatten_graph(graph)),
)


def _check_edges(index: np.ndarray, weight: np.ndarray, n: int) -> None:
    if n < 1:
        raise DataError("a graph needs at least one node")
    if weight.size != index.shape[1]:
        raise DataError(f"edges: {index.shape[1]} pairs but {weight.size} weights")
    if index.size and (index.min() < 0 or index.max() >= n):
        raise DataError(f"edges: node {index.min() if index.min() < 0 else index.max()} is outside 0..{n - 1}")
    if (index[0] == index[1]).any():
        raise DataError(f"edges: node {index[0][index[0] == index[1]][0]} is joined to itself; remove self-loops")
    if not (np.isfinite(weight).all() and (weight > 0).all()):
        raise DataError("edges: weights must be positive and finite; leave out pairs that are not neighbours")


def join(graphs: Sequence[Graph]) -> Graph:
    """Block-diagonal matrix of several graphs: no edges between them."""
    if len(graphs) == 1:
        return graphs[0]
    kinds = {g.kind for g in graphs}
    if len(kinds) != 1:
        raise DataError(f"graphs of different normalisation cannot be joined: {sorted(map(str, kinds))}")
    nodes = np.cumsum([0] + [g.n for g in graphs]).tolist()
    entries = np.cumsum([0] + [g.indices.numel() for g in graphs]).tolist()
    indptr = torch.cat([graphs[0].indptr[:1]] + [g.indptr[1:] + e for g, e in zip(graphs, entries, strict=False)])
    indices = torch.cat([g.indices + shift for g, shift in zip(graphs, nodes, strict=False)])
    weight = torch.cat([g.weight for g in graphs])
    return Graph(indptr, indices, weight, kinds.pop(), max(g.skew for g in graphs))


_MOST_NEIGHBOURS = 1000  # on average, and at one place


def chain_graph(n: int) -> Graph:
    """Each instance joined to the previous and the next one: the slices of a scan."""
    first = np.arange(n - 1)
    return Graph.from_edges(np.stack([first, first + 1]), n=n)


def radius_graph(coords: Any, radius: float) -> Graph:
    """Instances at most `radius` apart (Euclidean, in coordinate units)."""
    points = _points(coords)
    return Graph.from_edges(_near_pairs(points, radius), n=len(points))


def knn_graph(coords: Any, k: int) -> Graph:
    """Each instance with its k nearest; joined when at least one of the two chose the other."""
    points = _points(coords)
    if not 1 <= k <= _MOST_NEIGHBOURS:
        raise DataError(f"knn_graph: k must be at least 1 and at most {_MOST_NEIGHBOURS:,}, got {k}")
    k = min(k, len(points) - 1)
    _, near = cKDTree(points).query(points, k=np.arange(1, k + 2))
    chosen = near != np.arange(len(points))[:, None]
    chosen[chosen.all(1), -1] = False  # among many at one place a point need not be found itself: k others all the same
    return Graph.from_edges(np.stack([np.nonzero(chosen)[0], near[chosen]]), n=len(points))


def grid_graph(coords: Any, step: Any = None, neighbours: int = 8, *, check: bool = True) -> Graph:
    """Patches that touch: closer than 1.5 steps along every axis (8), or in Manhattan distance (4).

    On one lattice these are exactly the 8 (or 4) surrounding cells. Pieces of tissue with lattices of their own origin
    are joined where they meet, and two patches at one place are neighbours. With three coordinates 8 means all 26
    touching cells and 4 the six faces; with one coordinate both mean the two adjacent ones.

    coords  top-left corners, any unit, integer or float
    step    distance between neighbouring patches in that unit (level-0 step for slides), one number or one per axis;
            None finds it in the coordinates: the median distance to the nearest other patch
    check   when most of ten patches or more have no neighbour, stop if the coordinates show that the step is wrong, or
            warn that the patches were sampled sparsely
    """
    points = _points(coords)
    if step is None:
        apart = nearest_distance(points)
        step = apart if apart > 0 else 1.0  # of one patch, or of all at one place, any step does
    graph = _grid(points, step, neighbours)
    if check and graph.n >= ALARM_FROM and graph.isolated_share > ALARM_SHARE:
        _refuse_isolated(graph, points, step)
    return graph


def nearest_distance(coords: Any) -> float:
    """Median distance from an instance to the nearest other one, in coordinate units; NaN for a single instance."""
    return float(np.median(_nearest(coords))) if len(coords) > 1 else float("nan")


def is_regular(coords: Any) -> bool:
    """Whether nearest instances lie the same distance apart, as on a lattice whose step was misunderstood."""
    nearest = _nearest(coords)
    return bool((np.abs(nearest - np.median(nearest)) <= 0.02 * np.median(nearest)).mean() > ALARM_SHARE)


def _nearest(coords: Any) -> np.ndarray:
    """Distance from every instance to the nearest other one."""
    found: np.ndarray = cKDTree(coords).query(coords, k=[2])[0].ravel()
    return found


def _refuse_isolated(graph: Graph, points: np.ndarray, step: Any) -> None:
    """Stop or warn where smoothing would silently do nothing, with the step that the coordinates show."""
    apart = nearest_distance(points)
    used = " x ".join(f"{one:g}" for one in np.atleast_1d(step))
    found = f"grid_graph: {graph.isolated_share:.0%} of {graph.n:,} instances have no neighbour with step {used}"
    if is_regular(points):
        raise DataError(
            f"{found}, while the nearest coordinates are {apart:g} apart (median): a wrong step; give step={apart:g} "
            "or none, which finds it in the coordinates (check=False builds the graph all the same)"
        )
    warnings.warn(
        f"{found} (nearest {apart:g} apart, median), on no lattice: smoothing does nothing there; if they were "
        "sampled sparsely, knn_graph(coords, 5) joins the nearest",
        stacklevel=3,
    )


def _grid(points: np.ndarray, step: Any, neighbours: int) -> Graph:
    """The graph of `grid_graph`, whatever it looks like."""
    if neighbours not in (4, 8):
        raise DataError(f"grid_graph: neighbours must be 4 or 8, got {neighbours}")
    step = np.broadcast_to(np.asarray(step, dtype=np.float64), points.shape[1:])
    if not (np.isfinite(step).all() and (step > 0).all()):
        raise DataError(f"grid_graph: step must be positive, got {step.tolist()}")
    scaled = (points - points.T.copy().min(1)) / step  # along contiguous axes a minimum costs a tenth
    cells = np.rint(scaled)
    shape = cells.T.copy().max(1) + 3
    if np.abs(scaled - cells).max() < 1e-6 and np.prod(shape) < 64 * len(points) + 1e6:
        graph = _lattice_graph(cells.astype(np.int64), shape.astype(np.int64), neighbours)
        if graph is not None:
            return graph
    norm = np.inf if neighbours == 8 else 1
    return Graph.from_edges(_near_pairs(scaled, 1.5 - 1e-6, norm), n=len(points))


def _near_pairs(points: np.ndarray, radius: float, norm: float = 2) -> np.ndarray:
    """(2, pairs) points at most `radius` apart, counted before they are listed: coordinates may be anything."""
    alike = int(np.unique(points, axis=0, return_counts=True)[1].max())  # a tree does not divide them
    tree = cKDTree(points)
    if alike <= _MOST_NEIGHBOURS:
        alike = int(tree.count_neighbors(tree, radius, p=norm)) // len(points)
    if alike > _MOST_NEIGHBOURS:
        raise DataError(
            f"graph: an instance would have {alike:,} neighbours, at most {_MOST_NEIGHBOURS:,} are joined; check its "
            "coordinates, and the radius or step against their unit"
        )
    pairs: np.ndarray = tree.query_pairs(radius, p=norm, output_type="ndarray")
    return pairs.T


def _lattice_graph(cells: np.ndarray, shape: np.ndarray, neighbours: int) -> Graph | None:
    """Neighbours by looking up the surrounding cells in a table with an empty border; None if two share a cell."""
    strides = np.append(np.cumprod(shape[:0:-1])[::-1], 1)
    place = (cells + 1) @ strides
    table = np.full(int(np.prod(shape)), -1, dtype=np.int32)
    table[place] = np.arange(len(cells), dtype=np.int32)
    if not np.array_equal(table[place], np.arange(len(cells))):
        return None
    near = table[place[:, None] + _around(len(shape), neighbours) @ strides]
    found = near >= 0
    indptr = np.concatenate([[0], np.cumsum(found.T.copy().sum(0))])
    indices = near[found].astype(np.int64)
    return Graph(torch.from_numpy(indptr), torch.from_numpy(indices), torch.ones(len(indices), dtype=torch.float64))


@cache
def _around(axes: int, neighbours: int) -> np.ndarray:
    """The surrounding cells of a cell at the origin."""
    cells = np.stack(np.meshgrid(*[[-1, 0, 1]] * axes, indexing="ij"), -1).reshape(-1, axes)
    size = np.abs(cells).sum(1)
    chosen: np.ndarray = cells[(size == 1) if neighbours == 4 else (size > 0)]
    return chosen


def _points(coords: Any) -> np.ndarray:
    points = np.asarray(coords.detach().cpu() if isinstance(coords, Tensor) else coords, dtype=np.float64)
    points = points.reshape(len(points), -1) if points.ndim == 1 else points
    if points.ndim != 2 or len(points) == 0:
        raise DataError(f"coordinates must be (n, k) with n >= 1, got shape {points.shape}")
    if not np.isfinite(points).all():
        raise DataError(f"coordinates: row {int(np.argwhere(~np.isfinite(points))[0, 0])} is not finite")
    return points
