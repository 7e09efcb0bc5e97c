"""Attention computed a few rows at a time, with dropout and with a bias on few pairs; no n × n tensor is ever built.

For queries, keys and values (heads, n, d)

    out = thin(softmax(scale · q kᵀ + b)) v

where b is 0 but for a list of pairs, and `thin` is dropout. Rows are worked off in chunks; the backward pass computes
the weights of a chunk again, and draws the same dropout again, instead of keeping them: memory grows with n, time with
n².
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot, scaled_dot_product_attention

ENTRIES = 2**22


class Pairs(NamedTuple):
    """Who has a bias for whom: pairs starts[i] to starts[i+1] belong to row i; no pair comes twice.

    row     (p,) the token that looks       kind    (p,) which bias the pair gets
    column  (p,) the token looked at        starts  n + 1 numbers
    """

    row: Tensor
    column: Tensor
    kind: Tensor
    starts: list[int]

    def of(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Row inside the chunk, column and kind of the pairs of a chunk of rows."""
        mine = slice(self.starts[rows.start], self.starts[rows.stop])
        return self.row[mine] - rows.start, self.column[mine], self.kind[mine]


def attend_by_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
    pairs: Pairs | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attended values (heads, n, d). bias (heads, kinds): what a pair of each kind adds to its logit.

    Computed in float32 at least. Dropout is drawn from a seed that torch's global generator gives. Without dropout and
    pairs the fused kernel does the work.
    """
    if not dropout and pairs is None:
        return scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)[0]
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = q.new_zeros(q.shape[0], 1) if bias is None else bias
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, bias = q.to(wide) * scale, k.to(wide), v.to(wide), bias.to(wide)
        seed = int(torch.randint(2**62, ())) if dropout else 0
        return _Attend.apply(q, k, v, bias, pairs, dropout, seed)


class _Thin:
    """Dropout that can be drawn again: the same seed and the same order of chunks silence the same entries.

    Four entries are decided by one draw of 64 bits, so the share is a multiple of 2⁻¹⁶. On a processor this takes a
    fifth of the time of torch's own dropout, which would cost more than all the rest.
    """

    def __init__(self, dropout: float, seed: int, device: torch.device):
        self.steps = round(dropout * 2**16)
        self.factor = 2**16 / (2**16 - self.steps)
        self.generator = torch.Generator(device).manual_seed(seed)

    def kept(self, like: Tensor) -> Tensor | None:
        """True where an entry stays; None when all stay."""
        if not self.steps:
            return None
        draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
        draws.random_(-(2**63), None, generator=self.generator)
        return (draws.view(torch.int16)[: like.numel()] >= self.steps - 2**15).view(like.shape)


class _Attend(torch.autograd.Function):
    """q comes scaled. Only the queries, keys, values and the result are kept for the backward pass."""

    @staticmethod
    def forward(ctx, q, k, v, bias, pairs, dropout, seed):
        out, thin = torch.empty_like(q), _Thin(dropout, seed, q.device)
        for rows in _chunks(q):
            weights = _weights(q, k, bias, pairs, rows)
            kept = thin.kept(weights)
            out[:, rows] = (weights if kept is None else weights.mul_(kept)) @ v
        out *= thin.factor
        ctx.save_for_backward(q, k, v, bias, out)
        ctx.pairs, ctx.dropout, ctx.seed = pairs, dropout, seed
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, bias, out = ctx.saved_tensors
        grad_q, grad_k, grad_v, grad_bias = (torch.zeros_like(t) for t in (q, k, v, bias))
        # Σ_j ∂out/∂w_j w_j of a row, which the slope of a softmax needs, is the row's own ⟨∂out, out⟩.
        shared, thin = (grad * out).sum(-1, keepdim=True), _Thin(ctx.dropout, ctx.seed, q.device)
        grad = grad * thin.factor
        for rows in _chunks(q):
            weights = _weights(q, k, bias, ctx.pairs, rows)
            slope, kept = grad[:, rows] @ v.mT, thin.kept(weights)
            grad_v += (weights if kept is None else weights * kept).mT @ grad[:, rows]
            slope = (slope if kept is None else slope.mul_(kept)).sub_(shared[:, rows]).mul_(weights)
            grad_q[:, rows] = slope @ k
            grad_k += slope.mT @ q[:, rows]
            if ctx.pairs is not None:
                grad_bias += _by_kind(slope, ctx.pairs, rows, bias.shape[1])
        return grad_q, grad_k, grad_v, grad_bias, None, None, None


def _weights(q: Tensor, k: Tensor, bias: Tensor, pairs: Pairs | None, rows: slice) -> Tensor:
    """The rows of the attention matrix that belong to a chunk: (heads, rows, n)."""
    logits = q[:, rows] @ k.mT
    if pairs is not None:
        row, column, kind = pairs.of(rows)
        logits[:, row, column] += bias[:, kind]
    return logits.softmax(-1)


def _by_kind(slope: Tensor, pairs: Pairs, rows: slice, kinds: int) -> Tensor:
    """Sum of the slopes at the pairs of a chunk, separately for every head and kind."""
    row, column, kind = pairs.of(rows)
    return slope[:, row, column] @ one_hot(kind, kinds).to(slope.dtype)


def _chunks(q: Tensor) -> Iterator[slice]:
    """Groups of rows whose weights have at most ENTRIES entries, one row at least."""
    heads, n, _ = q.shape
    step = max(1, ENTRIES // (heads * n))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))
