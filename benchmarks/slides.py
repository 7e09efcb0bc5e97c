"""Slides to measure on: tissue-shaped lattices with random features, the same for every competitor."""

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from smmil.bag import Bag
from smmil.graph import grid_graph

STEP = 512


def tissue(n: int, seed: int = 0) -> np.ndarray:
    """Level-0 coordinates of n patches: the highest values of a smooth random field, about a third of its square."""
    side = int(np.ceil((n / 0.35) ** 0.5))
    field = gaussian_filter(np.random.default_rng(seed).normal(size=(side, side)), side / 12, mode="wrap")
    cells = np.sort(np.argsort(field, axis=None)[-n:])
    return np.stack(np.unravel_index(cells, field.shape)[::-1], 1) * STEP


def slide(n: int, width: int, seed: int = 0) -> Bag:
    coords = tissue(n, seed)
    x = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    return Bag(f"slide_{n}", x, torch.from_numpy(coords), graph=grid_graph(coords, STEP), y=1)
