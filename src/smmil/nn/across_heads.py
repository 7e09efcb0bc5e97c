"""Nyström attention whose convolution runs over the heads, as in CAMIL's released program."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from smmil.errors import ConfigError
from smmil.nn.nystrom import NystromAttention


def across_heads(v: Tensor, weight: Tensor) -> Tensor:
    """v (heads, n, d) convolved over its axis of heads with weight (d, d/groups, taps); zeros beyond the last head.

    Output channel c reads the d/groups channels of its own group. The heads are few, so all taps together are one small
    matrix per group, and the rows of v see nothing of each other.
    """
    heads, n, d = v.shape
    inside, reach = weight.shape[1], weight.shape[2] // 2
    rim = max(0, heads - 1 - reach)
    head = torch.arange(heads, device=v.device)
    taps = pad(weight, (rim, rim))[:, :, head - head[:, None] + reach + rim]  # (d, inside, to head, from head)
    mix = taps.unflatten(0, (-1, inside)).permute(0, 4, 2, 3, 1).reshape(-1, heads * inside, heads * inside)
    grouped = v.unflatten(2, (-1, inside)).permute(2, 1, 0, 3).reshape(-1, n, heads * inside)
    return (grouped @ mix).reshape(-1, n, heads, inside).permute(2, 1, 0, 3).reshape(heads, n, d)


class NystromAcrossHeads(NystromAttention):
    """Multi-head Nyström attention that adds to each head's values a mixture of all heads' values of the same instance.

    In the original Nyström attention a convolution of 33 taps runs along the sequence; a port to channels-last layout
    lets it run over the heads instead, in as many groups of channels as there are heads. Only the middle 2·heads - 1
    taps ever meet a head; all are kept, so that weights of that port fit.
    """

    def __init__(self, dim: int, *, heads: int = 8, head_dim: int = 64, kernel: int = 33, **options):
        super().__init__(dim, heads=heads, head_dim=head_dim, kernel=None, **options)
        if head_dim % heads or kernel % 2 == 0:
            given = f"head_dim={head_dim}, heads={heads}, kernel={kernel}"
            raise ConfigError(
                f"a convolution over heads needs head_dim a multiple of heads and an odd kernel, got {given}"
            )
        self.across = nn.Parameter(torch.empty(head_dim, head_dim // heads, kernel))
        nn.init.xavier_uniform_(self.across)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super()._mixed(q, k, v) + across_heads(v, self.across)

    def _first_mixed(self, row: Tensor, v: Tensor) -> Tensor:
        return super()._first_mixed(row, v) + across_heads(v[:, :1], self.across).flatten()
