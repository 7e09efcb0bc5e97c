"""Layer-wise relevance propagation: how much of a result each input deserves, rule by rule, from the end backwards.

The rules for transformers of Chefer, Gur and Wolf (2021, arXiv:2012.09838). Every rule takes the relevance r of a
result and what entered it, and shares r out; the first dimension is the bag, and bags never mix. Normalisations,
activations and softmax hand relevance through unchanged.
"""

import torch
from torch import Tensor

EPS = 1e-9


def share(r: Tensor, z: Tensor) -> Tensor:
    """r / (z + 1e-9), and 0 where z is 0: the one division under all rules."""
    below = z + EPS
    return (r / below.masked_fill(below == 0, EPS)).masked_fill(z == 0, 0)


def of_linear(r: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """To the inputs of a linear map, by their positive contributions only (α = 1); the bias gets nothing."""
    x_up, x_down, w_up, w_down = x.clamp_min(0), x.clamp_max(0), weight.clamp_min(0), weight.clamp_max(0)
    s = share(r, x_up @ w_up.T + x_down @ w_down.T)
    return x_up * (s @ w_up) + x_down * (s @ w_down)


def of_sum(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """To both summands of a + b: entry by entry in proportion, then the total of the bag in proportion to |totals|."""
    s = share(r, a + b)
    parts = (a * s, b * s)
    totals = [_total(part) for part in parts]
    weight = totals[0].abs() + totals[1].abs()
    factors = [share(share(total.abs(), weight) * _total(r), total) for total in totals]
    return parts[0] * factors[0], parts[1] * factors[1]


def of_product(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """To both factors of the matrix product a @ b, half to each."""
    s = share(r, a @ b) / 2
    return a * (s @ b.mT), b * (a.mT @ s)


def of_both_uses(r: Tensor, other: Tensor, x: Tensor) -> Tensor:
    """To an x that was used twice: what both uses give back (nothing where x is 0)."""
    return x * (share(r, x) + share(other, x))


def rollout(maps: list[Tensor]) -> Tensor:
    """Maps (b, t, t) of successive blocks as one: each with the identity for the skip connection, later · earlier."""
    whole = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    for one in maps:
        whole = one @ whole + whole
    return whole


def _total(r: Tensor) -> Tensor:
    """Sum over everything but the bag."""
    return r.sum(tuple(range(1, r.ndim)), keepdim=True)
