"""max(y + bias, 0) and its gradient, in place, over a matrix that is worked off a few rows at a time.

Torch makes two passes over the rows for each; on one thread compiled code makes one, where `smmil.nn.compiled` serves.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from smmil.nn import compiled


def shifting(h: Tensor) -> Callable[[Tensor, Tensor], Any]:
    """For rows of h, the function (rows, bias): rows ← max(rows + bias, 0)."""
    if not _fused(h):
        return _shift
    from smmil.nn.relu_kernels import shift

    return partial(_on_arrays, shift)


def masking(h: Tensor) -> Callable[[Tensor, Tensor, Tensor], Any]:
    """For rows of h that come from `shifting`, the function (rows, grad, total).

    grad is the gradient of these rows; it takes their place, but for zeros where they were zero. Its column sums, the
    gradient of the bias, are added to `total`.
    """
    if not _fused(h):
        return _mask
    from smmil.nn.relu_kernels import mask

    return partial(_on_arrays, mask)


def _fused(h: Tensor) -> bool:
    return torch.get_num_threads() == 1 and compiled.serves(h, 1)


def _on_arrays(kernel: Any, *tensors: Tensor) -> None:
    kernel(*(t.detach().numpy() for t in tensors))


def _shift(rows: Tensor, bias: Tensor) -> None:
    rows.add_(bias).relu_()


def _mask(rows: Tensor, grad: Tensor, total: Tensor) -> None:
    torch.ops.aten.threshold_backward.grad_input(grad, rows, 0, grad_input=rows)
    total += rows.T @ rows.new_ones(len(rows))
