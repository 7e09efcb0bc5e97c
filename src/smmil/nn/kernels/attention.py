"""Scaled dot-product attention inside bags, with dropout and pair biases, in memory that grows with n only.

For the queries (heads, m, d), keys and values (heads, n, d) of one bag

    out = dropout(softmax(scale · q kᵀ + b)) v

where b is 0 except for a list of pairs. PyTorch's fused attention computes it where that takes O(n) memory: without
dropout or pairs, on a GPU also with dropout. Small bags are computed from the formula above, which has derivatives of
any order. Large bags with dropout (on a processor) or pairs are computed a few rows at a time; the backward pass
recomputes the weights of a chunk and redraws the same dropout instead of storing them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from smmil.nn import kernels
from smmil.nn.segment import split_bags

CHUNK_ENTRIES = 1 << 21  # attention weights that exist at once
DENSE_ENTRIES = 1 << 18  # bags with at most this many weights are computed without chunks


class Pairs(NamedTuple):
    """Pairs of tokens whose logit gets a bias: pairs starts[i] to starts[i+1] belong to row i; no pair occurs twice.

    row     (p,) the query                  kind    (p,) column of the table of biases
    column  (p,) the key                    starts  m + 1 numbers
    """

    row: Tensor
    column: Tensor
    kind: Tensor
    starts: list[int]

    def of(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Row inside the chunk, column and kind of the pairs of a chunk of rows."""
        mine = slice(self.starts[rows.start], self.starts[rows.stop])
        return self.row[mine] - rows.start, self.column[mine], self.kind[mine]


def bag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    heads: int,
    dropout: float = 0.0,
    key_offsets: Tensor | None = None,
) -> Tensor:
    """Attention of the queries of every bag to its own keys; packed rows (n, heads·d) in and out.

    key_offsets  where the keys and values of each bag start, if not at `offsets`
    """
    key_offsets = offsets if key_offsets is None else key_offsets
    by_bag = zip(split_bags(q, offsets), split_bags(k, key_offsets), split_bags(v, key_offsets), strict=True)
    attended = [attention(*(split_heads(t, heads) for t in bag), dropout=dropout) for bag in by_bag]
    return torch.cat([join_heads(piece) for piece in attended])


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(…, n, heads·d) as (…, heads, n, d)."""
    by_head: Tensor = x.unflatten(-1, (heads, -1))
    return by_head.transpose(-3, -2)


def join_heads(x: Tensor) -> Tensor:
    """(…, heads, n, d) as (…, n, heads·d)."""
    return x.transpose(-3, -2).flatten(-2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    pairs: Pairs | None = None,
    bias: Tensor | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Attended values (heads, m, d) of one bag.

    scale    factor of the logits; None: 1/√d
    dropout  probability with which a weight is set to 0; the others are multiplied by 1 / (1 - dropout). Chunks draw
             it from a seed taken from torch's global generator
    bias     (heads, kinds) what a pair of each kind adds to its logit
    key_bias (n,) what each key adds to all of its logits: ln c for a key that stands for c equal ones
    With dropout or pairs, half precision is computed in single.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if pairs is None and _fused_serves(q, k, v, dropout):
        mask = None if key_bias is None else key_bias[None]
        # Four dimensions: with three PyTorch does not fuse.
        return F.scaled_dot_product_attention(q[None], k[None], v[None], mask, dropout, scale=scale)[0]
    wide = torch.promote_types(q.dtype, torch.float32)
    bias = q.new_zeros(q.shape[0], 1) if bias is None else bias
    with torch.autocast(q.device.type, enabled=False):
        inputs = (*_with_key_bias(q.to(wide) * scale, k.to(wide), key_bias), v.to(wide), bias.to(wide))
        if kernels.enabled("chunked_attention", _entries(q, k) > DENSE_ENTRIES):
            out = _chunked(*inputs, pairs, dropout, _seed() if dropout else 0)
        else:
            out = _dense(*inputs, pairs, dropout)
    return out.to(q.dtype)


def _fused_serves(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether PyTorch's fused attention runs without an m × n matrix, and a second derivative is not within reach."""
    if dropout and not q.is_cuda:
        return False
    if torch.compiler.is_compiling():  # a traced program must not depend on the number of instances
        return True
    taped = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return not taped or _entries(q, k) > DENSE_ENTRIES


def _with_key_bias(q: Tensor, k: Tensor, key_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries and keys with one more channel, 1 and the bias, whose product adds the bias to every logit."""
    if key_bias is None:
        return q, k
    column = key_bias.to(k.dtype)[:, None].expand(*k.shape[:2], 1)
    return torch.cat([q, torch.ones_like(q[..., :1])], -1), torch.cat([k, column], -1)


def _entries(q: Tensor, k: Tensor) -> int:
    return q.shape[0] * q.shape[1] * k.shape[1]


def _seed() -> int:
    return int(torch.randint(2**62, ()))


def _dense(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, pairs: Pairs | None, dropout: float) -> Tensor:
    """The definition, for scaled queries, with all weights stored."""
    return F.dropout(_dense_weights(q, k, bias, pairs), dropout) @ v


def _dense_weights(q: Tensor, k: Tensor, bias: Tensor, pairs: Pairs | None) -> Tensor:
    logits = q @ k.mT
    if pairs is not None:
        place = pairs.row * logits.shape[2] + pairs.column
        logits = logits.flatten(1).index_add(1, place, bias[:, pairs.kind]).view_as(logits)
    return logits.softmax(-1)


class _Dropout:
    """Dropout that can be redrawn: the same seed and the same order of chunks drop the same entries.

    One draw of 64 bits decides four entries, so the probability is a multiple of 2⁻¹⁶. On a processor this takes a
    fifth of the time of torch's own dropout, which would cost more than all the rest.
    """

    def __init__(self, dropout: float, seed: int, device: torch.device):
        self._dropped = round(dropout * 2**16)
        self.factor = 2**16 / (2**16 - self._dropped)
        self._generator = torch.Generator(device).manual_seed(seed)

    def kept(self, like: Tensor) -> Tensor | None:
        """True where an entry stays; None when all stay."""
        if not self._dropped:
            return None
        draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
        draws.random_(-(2**63), None, generator=self._generator)
        return (draws.view(torch.int16)[: like.numel()] >= self._dropped - 2**15).view(like.shape)


class _Chunked(torch.autograd.Function):
    """`_dense` a few rows at a time. Only queries, keys, values and the result are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, pairs: Pairs | None, dropout: float, seed: int
    ) -> Tensor:
        out, drop = q.new_empty(*q.shape[:2], v.shape[2]), _Dropout(dropout, seed, q.device)
        for rows in _chunks(q, k):
            weights = _weights(q, k, bias, pairs, rows)
            kept = drop.kept(weights)
            out[:, rows] = (weights if kept is None else weights.mul_(kept)) @ v
        out *= drop.factor
        ctx.save_for_backward(q, k, v, bias, out)
        ctx.pairs, ctx.dropout, ctx.seed = pairs, dropout, seed
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiable itself: with `create_graph` autograd records it, and keeps the weights of all chunks."""
        *inputs, out = ctx.saved_tensors
        drop = _Dropout(ctx.dropout, ctx.seed, grad.device)
        return *_chunked_gradients(inputs, out, ctx.pairs, drop, grad), None, None, None


_chunked: Callable[..., Tensor] = _Chunked.apply


def _chunked_gradients(
    inputs: list[Tensor], out: Tensor, pairs: Pairs | None, drop: _Dropout, grad: Tensor
) -> tuple[Tensor, ...]:
    q, k, v, bias = inputs
    grad_q, grad_k, grad_v, grad_bias = (torch.zeros_like(t) for t in inputs)
    # Σ_j ∂out/∂w_j w_j of a row, which the slope of a softmax needs, is the row's own ⟨∂out, out⟩.
    shared = (grad * out).sum(-1, keepdim=True)
    grad = grad * drop.factor
    for rows in _chunks(q, k):
        weights = _weights(q, k, bias, pairs, rows)
        slope, kept = grad[:, rows] @ v.mT, drop.kept(weights)
        grad_v += (weights if kept is None else weights * kept).mT @ grad[:, rows]
        slope = (slope if kept is None else slope.mul_(kept)).sub_(shared[:, rows]).mul_(weights)
        grad_q[:, rows] = slope @ k
        grad_k += slope.mT @ q[:, rows]
        if pairs is not None:
            grad_bias += _by_kind(slope, pairs, rows, bias.shape[1])
    return grad_q, grad_k, grad_v, grad_bias


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
    return slope[:, row, column] @ F.one_hot(kind, kinds).to(slope.dtype)


def _chunks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Groups of rows whose weights have at most CHUNK_ENTRIES entries, one row at least."""
    heads, m, _ = q.shape
    step = max(1, CHUNK_ENTRIES // (heads * k.shape[1]))
    return (slice(start, min(start + step, m)) for start in range(0, m, step))
