"""Nyström attention (Xiong et al., 2021, arXiv:2102.03902): self-attention of a bag through a few landmarks.

For one bag with queries q, keys k, values v (heads, n, d) and m landmarks,

    Â = S₁ S₂⁺ S₃,   S₁ = softmax(q k̃ᵀ/√d),   S₂ = softmax(q̃ k̃ᵀ/√d),   S₃ = softmax(q̃ kᵀ/√d)

stands in for softmax(q kᵀ/√d). The sequence is preceded by as many zero rows as make its length a multiple of
m; q̃ and k̃ are the means of m consecutive segments. Zero rows are not masked, as in the public implementations: they
take their share of every softmax. They are never stored, though. Their keys enter S₃ as a number added to the
denominator, and landmarks made of nothing else are equal, so that one stands for all with its count c:

    P₁ = softmax(q k̃ᵀ/√d + ln c),   P₂ = softmax(q̃ k̃ᵀ/√d + ln c),   Â = P₁ P₂⁺ S₃     (over distinct landmarks)

where P₂⁺ is the pseudo-inverse of the whole S₂ expressed by the counts. A scan of 35 slices thus costs 35³, not 256³.
No tensor here has n² entries; whatever the precision of q, k, v, everything is computed in float32 at least.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from smmil.errors import ConfigError
from smmil.nn import kernels
from smmil.nn.kernels.attention import attention, join_heads, split_heads
from smmil.nn.segment import split_bags

_ENTRIES = 2**24


class _Segments(NamedTuple):
    """How n rows, led by `blank` zero rows, fall into landmarks of `size` rows; the first `empty` hold zeros only."""

    size: int
    blank: int
    empty: int

    @classmethod
    def of(cls, n: int, landmarks: int) -> "_Segments":
        size = -(-n // landmarks)
        blank = size * landmarks - n
        return cls(size, blank, blank // size)

    def means(self, x: Tensor) -> Tensor:
        """Distinct landmarks of x (heads, n, d): one of zeros if any is empty, then the means of the segments."""
        first = self.size - self.blank % self.size
        zero = x.new_zeros(x.shape[0], min(self.empty, 1), x.shape[2])
        lead = x[:, :first].sum(1, keepdim=True) / self.size
        rest = x[:, first:].reshape(x.shape[0], (x.shape[1] - first) // self.size, self.size, x.shape[2])
        return torch.cat([zero, lead, rest.mean(2)], dim=1)

    def counts(self, like: Tensor) -> Tensor:
        """How many landmarks each distinct one of `like` (heads, distinct, d) stands for."""
        counts = like.new_ones(like.shape[1])
        counts[0] = max(self.empty, 1)
        return counts


def _pseudo_inverse(x: Tensor, iterations: int = 6, counts: Tensor | None = None) -> Tensor:
    """Moore-Penrose inverse of each x (heads, m, m) by the cubic iteration z ← ¼z(13 − xz(15 − xz(7 − xz))).

    It starts from xᵀ / (largest row sum · largest column sum), both over all heads. With `counts` c, x is the quotient
    of a larger matrix S whose row and column i come c_i times, its columns summed: x_ij = c_j S_ij. What is returned is
    the same quotient of the same iterate of S: the iteration does not notice, only its start does.
    """
    x = _wide(x)
    c = x.new_ones(x.shape[-1]) if counts is None else counts.to(x)
    with torch.autocast(x.device.type, enabled=False):
        size = x.abs()
        scale = size.sum(-1).amax() * ((c[:, None] * size).sum(-2) / c).amax()
        z = x.mT * (c / c[:, None]) / scale
        one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        for _ in range(iterations):
            xz = x @ z
            z = 0.25 * z @ (13 * one - xz @ (15 * one - xz @ (7 * one - xz)))
    return z


class _Landmarks:
    """What the rows of one bag share: its landmarks, how often each comes, and the inverse between them."""

    def __init__(self, q: Tensor, k: Tensor, landmarks: int, iterations: int):
        segments = _Segments.of(q.shape[1], landmarks)
        self.blank = segments.blank
        self.queries = segments.means(q) * q.shape[2] ** -0.5
        self.keys = segments.means(k)
        counts = segments.counts(self.keys)
        self.bias = counts.log()
        self.inverse = _pseudo_inverse((self.queries @ self.keys.mT + self.bias).softmax(-1), iterations, counts)

    def spread(self, q: Tensor, values: Tensor) -> Tensor:
        """P₁ values for all queries q."""
        return attention(q, self.keys, values, key_bias=self.bias)

    def gather(self, k: Tensor, v: Tensor) -> Tensor:
        """S₃ v; S₃ is built for a few heads at a time and not kept for the backward pass."""
        return torch.cat([_recomputed(_gather, *some, self.blank) for some in self._few_heads(self.queries, k, v)])

    def mix(self, weights: Tensor, k: Tensor) -> Tensor:
        """weights S₃ for weights (heads, rows, distinct): rows of Â, in the same way."""
        return torch.cat([_recomputed(_mix, *some, self.blank) for some in self._few_heads(weights, self.queries, k)])

    def _few_heads(self, *parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Groups of heads whose share of S₃ has at most _ENTRIES entries, one head at least."""
        at_once = max(1, _ENTRIES // (self.queries.shape[1] * parts[-1].shape[1]))
        return zip(*(part.split(at_once) for part in parts), strict=True)


def _nystrom_attention(q: Tensor, k: Tensor, v: Tensor, *, landmarks: int = 256, iterations: int = 6) -> Tensor:
    """Â v for the queries, keys and values (heads, n, d) of one bag. Time O(n·m·d + m³), memory O(n·d + n·m)."""
    q, k, v = _wide(q), _wide(k), _wide(v)
    with torch.autocast(q.device.type, enabled=False):
        marks = _Landmarks(q, k, landmarks, iterations)
        return marks.spread(q, marks.inverse @ marks.gather(k, v))


def _nystrom_row(q: Tensor, k: Tensor, *, landmarks: int = 256, iterations: int = 6) -> Tensor:
    """The first row of Â (heads, n): what the first token of one bag takes from each; zero rows are left out.

    Â is not a probability matrix: entries may be slightly negative, and with the share of the zero rows a row sums to
    one only approximately.
    """
    q, k = _wide(q), _wide(k)
    with torch.autocast(q.device.type, enabled=False):
        marks = _Landmarks(q, k, landmarks, iterations)
        first = (q[:, :1] * q.shape[2] ** -0.5 @ marks.keys.mT + marks.bias).softmax(-1)
        return marks.mix(first @ marks.inverse, k)[:, 0]


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _softmax_with_blanks(queries: Tensor, keys: Tensor, blank: int) -> Tensor:
    """Softmax over the keys (heads, n, d) and `blank` zero keys, whose columns are left out."""
    logits = queries @ keys.mT
    total = logits.logsumexp(-1, keepdim=True)
    if blank:
        total = total.logaddexp(total.new_tensor(blank).log())
    return (logits - total).exp()


def _gather(queries: Tensor, k: Tensor, v: Tensor, blank: int) -> Tensor:
    return _softmax_with_blanks(queries, k, blank) @ v


def _mix(weights: Tensor, queries: Tensor, k: Tensor, blank: int) -> Tensor:
    return weights @ _softmax_with_blanks(queries, k, blank)


def _recomputed(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """`function(*args)`, whose inside is computed again for the backward pass instead of kept."""
    if not torch.is_grad_enabled() or not kernels.enabled("recomputed", pays=True):
        return function(*args)
    found: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return found


class _NystromLayers(nn.Module):
    """Parameters of multi-head Nyström self-attention inside each bag.

    kernel   taps of the depth-wise convolution of the values along the sequence that is added to the attended values,
             one filter per head; None leaves it out
    dropout  on what leaves the output layer
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        head_dim: int = 64,
        landmarks: int = 256,
        iterations: int = 6,
        kernel: int | None = 33,
        dropout: float = 0.0,
    ):
        super().__init__()
        if min(heads, head_dim, landmarks) < 1:
            given = f"heads={heads}, head_dim={head_dim}, landmarks={landmarks}"
            raise ConfigError(f"Nyström attention: {given} must all be 1 or more")
        if kernel is not None and kernel % 2 == 0:
            raise ConfigError(f"Nyström attention: kernel must be odd or None, got {kernel}")
        self.heads = heads
        self.shape = {"landmarks": landmarks, "iterations": iterations}
        self.qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.local = None if kernel is None else _sequence_conv(heads, kernel)
        self.out = nn.Linear(heads * head_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _by_bag(self, x: Tensor, offsets: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values (heads, n, d) of each bag."""
        parts = (split_bags(part, offsets) for part in self.qkv(x).chunk(3, dim=-1))
        bags = zip(*([split_heads(bag, self.heads) for bag in part] for part in parts), strict=True)
        return [(q, k, v) for q, k, v in bags]

    def _merged(self, mixed: Tensor) -> Tensor:
        merged: Tensor = self.dropout(self.out(mixed))
        return merged


class NystromAttention(_NystromLayers):
    """Attended rows (n, dim), bag by bag, so that a batch equals its bags one by one; parameters as above."""

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        mixed = [join_heads(self._mixed(*qkv)) for qkv in self._by_bag(x, offsets)]
        return self._merged(torch.cat(mixed).to(x.dtype))

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended = _nystrom_attention(q, k, v, **self.shape)
        return attended if self.local is None else attended + self.local(v[None])[0]


class NystromClassAttention(_NystromLayers):
    """Attended first row of every bag (b, dim), and what it took from each row of its bag (n, heads).

    The same as the first rows of `NystromAttention`, at less cost.
    """

    def forward(self, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        bags = self._by_bag(x, offsets)
        rows = [_nystrom_row(q, k, **self.shape) for q, k, _ in bags]
        mixed = [self._mixed(row, v) for row, (_, _, v) in zip(rows, bags, strict=True)]
        return self._merged(torch.stack(mixed).to(x.dtype)), torch.cat(rows, dim=1).T

    def _mixed(self, row: Tensor, v: Tensor) -> Tensor:
        attended = (row[:, None] @ v.to(row.dtype))[:, 0]
        if self.local is not None:
            reach = self.local.kernel_size[0] // 2 + 1
            attended = attended + self.local(v[None, :, :reach])[0, :, 0]
        return attended.flatten()


def _sequence_conv(heads: int, kernel: int) -> nn.Conv2d:
    return nn.Conv2d(heads, heads, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False)
