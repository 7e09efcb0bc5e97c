"""Small bags and graphs for the tests: a lattice with holes, a chain, lonely instances."""

from dataclasses import replace

import numpy as np
import torch

from smmil.bag import Bag
from smmil.frame import Frame
from smmil.graph import Graph, chain_graph, grid_graph

STEP = 512


def grid_coords(n: int, seed: int = 0, fill: float = 0.6) -> np.ndarray:
    """n cells of a square lattice, `fill` of it taken, in raster order, level-0 pixels."""
    side = int(np.ceil((n / fill) ** 0.5)) + 1
    cells = np.sort(np.random.default_rng(seed).choice(side * side, n, replace=False))
    return np.stack([cells % side, cells // side], 1) * STEP


def random_graph(n: int, seed: int = 0, share: float = 0.2) -> Graph:
    """Random weighted edges; some nodes stay lonely."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) < share, 1)
    upper[:, : n // 8] = upper[: n // 8] = False
    index = np.argwhere(upper).T
    return Graph.from_edges(index, rng.uniform(0.2, 3, index.shape[1]), n)


def grid_bag(n: int, *, dim: int = 16, seed: int = 0, y: int = 1, dtype=torch.float32) -> Bag:
    coords = grid_coords(n, seed)
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    labels = torch.zeros(n, dtype=torch.long)
    labels[0] = y
    return Bag(
        f"grid_{n}_{seed}", x, torch.from_numpy(coords), Frame((STEP, STEP)), grid_graph(coords, STEP), y, labels
    )


def chain_bag(n: int, *, dim: int = 16, seed: int = 0, y: int = 1, dtype=torch.float32) -> Bag:
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return Bag(f"scan_{n}_{seed}", x, torch.arange(n)[:, None], Frame((1,), (5.0,), "mm"), chain_graph(n), y)


def woven_bag(n: int, *, dtype=torch.float32) -> Bag:
    """A bag with a random weighted graph and lonely instances."""
    return replace(grid_bag(n, seed=n, dtype=dtype), graph=random_graph(n, seed=n, share=0.3))


def mixed_bags(dtype=torch.float64) -> list[Bag]:
    """One of every kind: tiny, lattice, woven, scan, without edges."""
    tiny = [grid_bag(n, seed=n, dtype=dtype) for n in (1, 2, 3, 30)]
    return [*tiny, woven_bag(16, dtype=dtype), chain_bag(9, dtype=dtype), without_edges(grid_bag(6, dtype=dtype))]


def without_edges(bag: Bag) -> Bag:
    lonely = Graph.from_edges(np.zeros((2, 0), int), n=bag.n)
    return Bag(bag.id, bag.x, bag.coords, bag.frame, lonely, bag.y, bag.y_inst)


def reordered(bag: Bag, order: torch.Tensor) -> Bag:
    """The same case with its instances in another order, coordinates and graph along."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    graph = Graph.from_edges(place[bag.graph.edges()], bag.graph.weight, bag.n)
    labels = None if bag.y_inst is None else bag.y_inst[order]
    return Bag(bag.id, bag.x[order], bag.coords[order], bag.frame, graph, bag.y, labels)
