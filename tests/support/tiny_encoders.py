"""Small encoders whose features can be worked out by hand."""

import numpy as np
import torch
from torch import Tensor, nn

from smmil.encoders import Encoder


def tiles(n: int, side: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


class MeanColour(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


def encoder(network: nn.Module, dim: int = 3, pixels: int = 8, **more) -> Encoder:
    """An encoder around `network` without normalisation."""
    facts = {"id": "tiny@0", "mean": (0.0,) * 3, "std": (1.0,) * 3, "mpp": None, "licence": "none", "source": "here"}
    return Encoder(dim=dim, pixels=pixels, network=network, device=torch.device("cpu"), **facts | more)
