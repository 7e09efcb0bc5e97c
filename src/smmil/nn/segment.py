"""Sums, maxima and softmax over the bags of a packed tensor; rows offsets[b] to offsets[b+1] are bag b.

A single bag is the whole tensor: its offsets are never read, so nothing waits for a device and the number of rows may
stay open in a traced program.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smmil.sparse import row_numbers, sum_by_row


def segment_ids(offsets: Tensor, n: int | None = None) -> Tensor:
    """Bag number of every row; given their number n, nothing is read from the device of the offsets."""
    bags = torch.arange(offsets.shape[0] - 1, device=offsets.device)
    return torch.repeat_interleave(bags, offsets.diff(), output_size=n)


def segment_sum(x: Tensor, offsets: Tensor) -> Tensor:
    """Sum of the rows of each bag."""
    if offsets.shape[0] == 2:
        return x.sum(0, keepdim=True)
    if torch.compiler.is_compiling():
        return sum_by_row(row_numbers(offsets, x.shape[0]), x, offsets.shape[0] - 1)
    apply: Callable[..., Tensor] = _SegmentSum.apply
    return apply(x, offsets)


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """Mean of the rows of each bag."""
    if offsets.shape[0] == 2:
        return x.mean(0, keepdim=True)
    counts = offsets.diff().to(x.dtype)
    return segment_sum(x, offsets) / counts.reshape(-1, *[1] * (x.ndim - 1))


def segment_argmax(x: Tensor, offsets: Tensor) -> Tensor:
    """Row number of the largest entry of each bag and column (b, k); the first of several."""
    if offsets.shape[0] == 2:
        return x.argmax(0, keepdim=True)
    starts = offsets[:-1].tolist()
    return torch.stack([part.argmax(0) + start for part, start in zip(split_bags(x, offsets), starts, strict=True)])


def segment_softmax(x: Tensor, offsets: Tensor) -> Tensor:
    """Softmax down the rows of each bag, separately for every column."""
    if offsets.shape[0] == 2:
        return x.softmax(0)
    ids = row_numbers(offsets, x.shape[0])
    e = (x - _segment_max(x.detach(), offsets, ids)[ids]).exp()
    return e / segment_sum(e, offsets)[ids]


def split_bags(x: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
    """The rows of each bag; a single bag is the whole tensor, without reading `offsets` from its device."""
    if offsets.shape[0] == 2:
        return (x,)
    parts: tuple[Tensor, ...] = x.split(offsets.diff().tolist())
    return parts


def weighted_sum(h: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """Σ weights_n h_n over each bag (b, d), for rows h (n, d) and weights (n, 1); in the precision of the weights."""
    parts = zip(split_bags(h, offsets), split_bags(weights, offsets), strict=True)
    return torch.cat([w.T.to(h.dtype) @ rows for rows, w in parts]).to(weights.dtype)


def _segment_max(x: Tensor, offsets: Tensor, ids: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        return torch.segment_reduce(x, "max", offsets=offsets, axis=0)
    lowest = x.new_full((offsets.shape[0] - 1, *x.shape[1:]), torch.finfo(x.dtype).min)
    return lowest.scatter_reduce(0, ids.reshape(-1, *[1] * (x.ndim - 1)).expand_as(x), x, "amax")


class _SegmentSum(torch.autograd.Function):
    """torch.segment_reduce, the fastest sum, has no second derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, offsets: Tensor) -> Tensor:
        ctx.offsets, ctx.n = offsets, x.shape[0]
        return torch.segment_reduce(x, "sum", offsets=offsets, axis=0, initial=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[row_numbers(ctx.offsets, ctx.n)], None
