"""Sums, maxima and softmax over the bags of a packed tensor; rows offsets[b] to offsets[b+1] are bag b."""

import torch
from torch import Tensor


def segment_ids(offsets: Tensor) -> Tensor:
    """Bag number of every row."""
    return torch.repeat_interleave(torch.arange(offsets.numel() - 1, device=offsets.device), offsets.diff())


def segment_sum(x: Tensor, offsets: Tensor) -> Tensor:
    """Sum of the rows of each bag."""
    return torch.segment_reduce(x, "sum", offsets=offsets, axis=0)


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """Mean of the rows of each bag."""
    return torch.segment_reduce(x, "mean", offsets=offsets, axis=0)


def segment_argmax(x: Tensor, offsets: Tensor) -> Tensor:
    """Row number of the largest entry of each bag and column (b, k); the first of several."""
    starts = offsets[:-1].tolist()
    parts = x.split(offsets.diff().tolist())
    return torch.stack([part.argmax(0) + start for part, start in zip(parts, starts, strict=True)])


def segment_softmax(x: Tensor, offsets: Tensor) -> Tensor:
    """Softmax down the rows of each bag, separately for every column."""
    if offsets.numel() == 2:
        return x.softmax(0)
    ids = segment_ids(offsets)
    top = torch.segment_reduce(x.detach(), "max", offsets=offsets, axis=0)
    e = (x - top[ids]).exp()
    total = torch.zeros_like(top).index_add(0, ids, e)
    return e / total[ids]


def split_bags(x: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
    """The rows of each bag; a single bag is the whole tensor, without reading `offsets` from its device."""
    if offsets.numel() == 2:
        return (x,)
    return x.split(offsets.diff().tolist())
