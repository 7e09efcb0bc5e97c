"""Attention pooling as one differentiable step that never builds the gradient of the embedded instances.

Both functions here compute, for embedded instances h (n, d) and a projection W (a, d),

    v = h Wᵀ,   scores, weights = weigh(v, *params),   z_b = Σ_{n in bag b} weights_n h_n

where `weigh` is any differentiable function of the narrow matrix v (n, a). Since h enters only through v and z,
∂/∂h = weights ⊗ ∂z + ∂v W has rank a + b: it is formed two thousand rows at a time and used up at once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from smmil.nn.segment import segment_ids

Weigh = Callable[..., tuple[Tensor, Tensor]]
ROWS = 2048  # matrix products of a thousand rows at a time lose 2 to 3 %; more than this gains nothing


def attend(h: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
    """Bag vectors z (b, d) and scores (n, 1) from embedded instances h."""
    return _Attend.apply(h, project, weigh, offsets, *params)


def embed_and_attend(
    x: Tensor, embed: Tensor, bias: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for h = relu(x embedᵀ + bias); x may be half precision and is widened two thousand rows at a time."""
    return _EmbedAndAttend.apply(x, embed, bias, project, weigh, offsets, *params)


class _Middle:
    """`weigh` with its own little tape, so that an outer autograd function can run it backward.

    The tape is used up by a backward pass; a second one (retain_graph) winds it anew.
    """

    def __init__(self, weigh: Weigh, v: Tensor, params: tuple[Any, ...], needed: tuple[bool, ...]):
        self.weigh = weigh
        self.leaves = [t.detach().requires_grad_(on) for t, on in zip((v, *params), needed, strict=True)]
        self._wind()

    def _wind(self) -> None:
        taped = any(t.requires_grad for t in self.leaves)
        with torch.set_grad_enabled(taped), torch.autocast(self.leaves[0].device.type, enabled=False):
            self.scores, self.weights = self.weigh(*self.leaves)
        self.fresh = True

    def backward(self, grad_scores: Tensor, grad_weights: Tensor) -> list[Tensor | None]:
        if not self.fresh:
            self._wind()
        self.fresh = False
        wanted = [t for t in self.leaves if t.requires_grad]
        outputs = [o for o in (self.scores, self.weights) if o.requires_grad]
        grads = [g for o, g in ((self.scores, grad_scores), (self.weights, grad_weights)) if o.requires_grad]
        found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in self.leaves]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, project, weigh, offsets, *params):
        v = (h @ project.T.to(h.dtype)).to(project.dtype)
        needs_v = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        ctx.middle = _Middle(weigh, v, params, (needs_v, *ctx.needs_input_grad[4:]))
        ctx.save_for_backward(h, project, offsets)
        return _pool(h, ctx.middle.weights.detach(), offsets), ctx.middle.scores.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z, grad_scores):
        h, project, offsets = ctx.saved_tensors
        grad_v, *grad_params = ctx.middle.backward(grad_scores, _against(h, grad_z, offsets))
        grad_h = grad_project = None
        if ctx.needs_input_grad[0]:
            factors = _Factors(grad_v, ctx.middle.weights.detach(), project, grad_z, offsets, h.dtype)
            grad_h = factors.rows(slice(None), out=torch.empty_like(h))
        if ctx.needs_input_grad[1]:
            grad_project = grad_v.T @ h.to(grad_v.dtype)
        return grad_h, grad_project, None, None, *grad_params


class _EmbedAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, embed, bias, project, weigh, offsets, *params):
        dtype = _compute_dtype(embed)
        h = torch.empty(x.shape[0], embed.shape[0], dtype=dtype, device=x.device)
        v = torch.empty(x.shape[0], project.shape[0], dtype=dtype, device=x.device)
        to_h, shift, to_v = embed.to(dtype).T, bias.to(dtype), project.to(dtype).T
        for rows in _chunks(x.shape[0]):
            part = torch.mm(x[rows].to(dtype), to_h, out=h[rows]).add_(shift).relu_()
            torch.mm(part, to_v, out=v[rows])
        needs_v = any(ctx.needs_input_grad[:4])
        ctx.middle = _Middle(weigh, v.to(project.dtype), params, (needs_v, *ctx.needs_input_grad[6:]))
        ctx.save_for_backward(x, embed, project, offsets, h)
        return _pool(h, ctx.middle.weights.detach(), offsets), ctx.middle.scores.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z, grad_scores):
        x, embed, project, offsets, h = ctx.saved_tensors
        grad_v, *grad_params = ctx.middle.backward(grad_scores, _against(h, grad_z, offsets))
        if grad_v is None:
            return (None,) * 6 + tuple(grad_params)
        factors = _Factors(grad_v, ctx.middle.weights.detach(), project, grad_z, offsets, h.dtype)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grads = _embed_backward(x, embed, h, factors, grad_x)
        return grad_x, *grads, None, None, *grad_params


def _embed_backward(x: Tensor, embed: Tensor, h: Tensor, factors: "_Factors", grad_x: Tensor | None):
    """Gradients of the embedding, its bias and the projection, a chunk of rows at a time (and of x, if wanted)."""
    grad_embed, grad_bias = torch.empty_like(embed), torch.zeros_like(embed[:, 0])
    grad_project = embed.new_empty(factors.grad_v.shape[1], h.shape[1])
    buffer, ones = h.new_empty(min(ROWS, h.shape[0]), h.shape[1]), h.new_ones(ROWS)
    for rows in _chunks(h.shape[0]):
        _accumulate(grad_project, factors.grad_v[rows], h[rows], begin=rows.start == 0)
        grad_h = factors.rows(rows, out=buffer[: rows.stop - rows.start])
        torch.ops.aten.threshold_backward.grad_input(grad_h, h[rows], 0, grad_input=grad_h)
        grad_bias += grad_h.T @ ones[: len(grad_h)]
        _accumulate(grad_embed, grad_h, x[rows].to(h.dtype), begin=rows.start == 0)
        if grad_x is not None:
            grad_x[rows] = grad_h @ embed.to(h.dtype)
    return grad_embed, grad_bias, grad_project


def _accumulate(total: Tensor, left: Tensor, right: Tensor, begin: bool) -> None:
    """total ← total + leftᵀ right, or without what was there to `begin` with."""
    if total.dtype == left.dtype:
        total.addmm_(left.T, right, beta=0 if begin else 1)
    elif begin:
        total.copy_(left.T @ right)
    else:
        total += left.T @ right


class _Factors:
    """∂/∂h = [∂v, weights] [W; ∂z]: two thin factors, multiplied out where rows are asked for.

    `weights` has a column for every bag here. The wide factor is kept column by column: its product is faster.
    """

    def __init__(
        self, grad_v: Tensor, weights: Tensor, project: Tensor, grad_z: Tensor, offsets: Tensor, dtype: torch.dtype
    ):
        self.narrow = torch.empty(len(weights), len(project) + len(grad_z), dtype=dtype, device=weights.device)
        self.grad_v, mine = self.narrow.split([len(project), len(grad_z)], 1)
        self.grad_v.copy_(grad_v)
        mine.zero_().scatter_(1, segment_ids(offsets)[:, None], weights.to(dtype))
        self.wide = torch.cat([project.T, grad_z.T], 1).to(dtype)

    def rows(self, rows: slice, out: Tensor) -> Tensor:
        return torch.mm(self.narrow[rows], self.wide.T, out=out)


def _pool(h: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    parts = zip(h.split(offsets.diff().tolist()), weights.split(offsets.diff().tolist()), strict=True)
    return torch.cat([w.T.to(h.dtype) @ rows for rows, w in parts]).to(weights.dtype)


def _against(h: Tensor, z: Tensor, offsets: Tensor) -> Tensor:
    """⟨h_n, z of its bag⟩ for every row, as a column."""
    parts = zip(h.split(offsets.diff().tolist()), z, strict=True)
    return torch.cat([rows @ one.to(h.dtype) for rows, one in parts])[:, None].to(z.dtype)


def _chunks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + ROWS, n)) for start in range(0, n, ROWS))


def _compute_dtype(like: Tensor) -> torch.dtype:
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
