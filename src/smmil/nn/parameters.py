"""Facts about a module's parameters that also hold when its layers are quantized or wrapped by an adapter."""

from typing import Any

import torch
from torch import Tensor, nn


def compute_dtype(module: nn.Module) -> torch.dtype:
    """Precision a module computes in: that of its first floating point parameter.

    A module whose layers are all quantized has no parameters left and takes torch's default precision.
    """
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())


def linear_bias(layer: nn.Module) -> Tensor:
    """The bias of a linear layer; quantized layers offer it as a method."""
    bias: Any = layer.bias
    found: Tensor = bias() if callable(bias) else bias
    return found
