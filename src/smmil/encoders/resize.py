"""Tiles of any size -> the size a network expects, without aliasing and without a shift."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def resize(images: Tensor, pixels: int) -> Tensor:
    """Square images (n, 3, side, side) as (n, 3, pixels, pixels).

    Shrinking gives each pixel the mean over exactly the area it covers, fractions of source pixels included;
    enlarging interpolates linearly between pixel centres. Both keep the mean colour of an even area.
    """
    side = images.shape[-1]
    if side == pixels:
        return images
    weights = torch.from_numpy(resampling(side, pixels)).to(images.device)
    return weights @ images @ weights.T


@lru_cache(maxsize=16)
def resampling(side: int, pixels: int) -> np.ndarray:
    """(pixels, side): the share of each source pixel in each pixel of the result; every row adds up to 1."""
    weights = _areas(side, pixels) if side > pixels else _interpolation(side, pixels)
    return weights.astype(np.float32)


def _areas(side: int, pixels: int) -> np.ndarray:
    edges = np.arange(pixels + 1) * (side / pixels)
    sources = np.arange(side)
    overlap = np.minimum(edges[1:, None], sources + 1) - np.maximum(edges[:-1, None], sources)
    overlap = np.clip(overlap, 0, None)
    return overlap / overlap.sum(1, keepdims=True)


def _interpolation(side: int, pixels: int) -> np.ndarray:
    """Beyond the outermost centres the border pixel goes on."""
    centres = np.clip((np.arange(pixels) + 0.5) * side / pixels - 0.5, 0, side - 1)
    return np.clip(1 - np.abs(centres[:, None] - np.arange(side)), 0, None)
