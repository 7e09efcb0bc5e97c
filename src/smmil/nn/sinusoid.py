"""Fixed sines and cosines that tell a transformer which token it reads."""

import torch
from torch import Tensor


def sinusoids(n: int, dim: int) -> Tensor:
    """Positions 0 … n−1 as (n, dim) float64: sin(p/10000^(2⌊j/2⌋/dim)) in even channels j, the cosine in odd ones."""
    channel = torch.arange(dim)
    speed = 10000.0 ** (-2 * (channel // 2).to(torch.float64) / dim)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * speed
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())
