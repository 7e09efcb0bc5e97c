"""Where an instance stands, told by convolutions over its neighbours in the sequence."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, pad

from smmil.errors import check_choice

KERNELS = (7, 5, 3)


def square_side(n: int) -> int:
    """Side of the smallest square that holds n ≥ 1 instances."""
    return math.isqrt(n - 1) + 1


def merged_kernel(kernels: list[Tensor]) -> Tensor:
    """One kernel that does the work of several centred ones and of the identity; the first is the largest.

    Each kernel is (channels, 1, *taps) with odd taps; convolutions are linear, so their sum is one convolution.
    """
    whole = kernels[0]
    for kernel in kernels[1:]:
        rim = (whole.shape[-1] - kernel.shape[-1]) // 2
        whole = whole + pad(kernel, [rim] * (2 * (kernel.ndim - 2)))
    taps = whole[0, 0].numel()
    here = torch.zeros(taps, dtype=whole.dtype, device=whole.device)
    here[taps // 2] = 1
    return whole + here.reshape(whole.shape[2:])


class PPEG(nn.Module):
    """Pyramid positional encoding of TransMIL: identity plus depth-wise convolutions of 7, 5 and 3 taps, with bias.

    fold    the rows of a bag, a square number of them, are laid out line by line as s × s: neighbours are those of
            this fold, not of the tissue
    chain   the rows are a line: convolutions along it, for CT slices in their order
    The first row of every bag is its class token and passes unchanged.
    """

    def __init__(self, dim: int, *, form: str = "fold"):
        super().__init__()
        self.folds = check_choice(form, ("fold", "chain"), "ppeg") == "fold"
        layer = nn.Conv2d if self.folds else nn.Conv1d
        self.wide, self.middle, self.narrow = (layer(dim, dim, taps, groups=dim) for taps in KERNELS)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        convs = (self.wide, self.middle, self.narrow)
        weight = merged_kernel([conv.weight for conv in convs])
        bias = torch.stack([conv.bias for conv in convs if conv.bias is not None]).sum(0)
        pieces = []
        for bag in x.split(offsets.diff().tolist()):
            pieces += [bag[:1], self._encode(bag[1:], weight, bias)]
        return torch.cat(pieces)

    def _encode(self, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        convolve, sides = (conv2d, (square_side(len(rows)), -1)) if self.folds else (conv1d, (-1,))
        field = rows.T[None].unflatten(2, sides)
        return convolve(field, weight, bias, padding=KERNELS[0] // 2, groups=len(weight))[0].flatten(1).T
