"""Working on a few columns at a time, so that the buffers of an iteration stay in the processor's cache."""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK_BYTES = 8 << 20


def by_columns(u: Tensor, run: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What `run` gives for the matrix u, computed block by block; its results have the shape of what it is given.

    run must treat every column alone and must not keep or change its argument.
    """
    width = max(16, BLOCK_BYTES // (u.shape[0] * u.element_size()))
    if width >= u.shape[1]:
        return run(u)
    starts = range(0, u.shape[1], width)
    results: tuple[Tensor, ...] = ()
    for columns in (slice(start, start + width) for start in starts):
        parts = run(u[:, columns].contiguous())
        results = results or tuple(torch.empty_like(u) for _ in parts)
        for whole, part in zip(results, parts, strict=True):
            whole[:, columns] = part
    return results
