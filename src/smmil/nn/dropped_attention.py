"""Attention with dropout on its weights, without ever holding an n × n matrix.

Dropout keeps the fused kernel from running on a processor, and unfused attention holds all n² weights. Here they are
computed for a few rows at a time in the same few buffers, and once more in the backward pass, from the logarithm of
each row's sum and the seed of its dropout:

    P = exp(s QKᵀ - lse),  M = kept / (1 - p),  O = (P∘M) V
    ∂V = (P∘M)ᵀ ∂O,  ∂S = P ∘ (M ∘ ∂O Vᵀ - rowsum(∂O∘O)),  ∂Q = s ∂S K,  ∂K = s ∂Sᵀ Q
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from smmil.nn.transformer import bag_attention

ENTRIES = 1 << 21  # weights that exist at once


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, heads: int, dropout: float) -> Tensor:
    """Attention of every instance to all of its own bag; each weight is silenced with probability `dropout`.

    q, k, v are (n, heads·d), bags below each other. The weights that stay are multiplied by 1 / (1 - dropout). One seed
    per bag and head is drawn from torch's global generator. Memory grows with n, time with n²; without dropout this is
    the fused kernel. Half precision is computed in single.
    """
    if dropout == 0:
        return bag_attention(q, k, v, offsets, heads)
    wide = torch.promote_types(q.dtype, torch.float32)
    sizes = offsets.diff().tolist()
    by_bag = zip(*(t.to(wide).split(sizes) for t in (q, k, v)), strict=True)
    return torch.cat([_by_head(bag, heads, dropout) for bag in by_bag]).to(q.dtype)


def _by_head(qkv: tuple[Tensor, ...], heads: int, dropout: float) -> Tensor:
    columns = zip(*(t.chunk(heads, dim=1) for t in qkv), strict=True)
    seeds = torch.randint(2**62, (heads,)).tolist()
    return torch.cat([_Dropped.apply(*one, dropout, seed) for one, seed in zip(columns, seeds, strict=True)], 1)


class _Dropped(torch.autograd.Function):
    """One head of one bag: q, k, v (n, d)."""

    @staticmethod
    def forward(ctx, q, k, v, dropout, seed):
        q = q * q.shape[1] ** -0.5
        out, lse = torch.empty_like(v), q.new_empty(len(q), 1)
        with torch.autocast(q.device.type, enabled=False):
            for rows, weights, kept in _chunks(q, k, dropout, seed, buffers=2):
                torch.mm(q[rows], k.T, out=weights)
                lse[rows] = weights.logsumexp(1, keepdim=True)
                torch.mm(weights.sub_(lse[rows]).exp_().mul_(kept), v, out=out[rows])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.dropout, ctx.seed = dropout, seed
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        inner = (grad_out * out).sum(1, keepdim=True)
        for rows, weights, kept, grad in _chunks(q, k, ctx.dropout, ctx.seed, buffers=3):
            torch.mm(q[rows], k.T, out=weights)
            weights.sub_(lse[rows]).exp_()
            torch.mm(grad_out[rows], v.T, out=grad)
            grad.mul_(kept).sub_(inner[rows]).mul_(weights)
            grad_v.addmm_(weights.mul_(kept).T, grad_out[rows])
            torch.mm(grad, k, out=grad_q[rows])
            grad_k.addmm_(grad.T, q[rows])
        return grad_q * q.shape[1] ** -0.5, grad_k, grad_v, None, None


def _chunks(q: Tensor, k: Tensor, dropout: float, seed: int, buffers: int) -> Iterator[tuple]:
    """Slices of rows with their share of the buffers (rows, n); the second holds 0 or 1 / (1 - dropout)."""
    n, step = len(q), max(1, ENTRIES // len(k))
    room = [q.new_empty(min(step, n), len(k)) for _ in range(buffers)]
    generator = torch.Generator(q.device).manual_seed(seed)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        mine = [one[: rows.stop - start] for one in room]
        mine[1].bernoulli_(1 - dropout, generator=generator).mul_(1 / (1 - dropout))
        yield rows, *mine
