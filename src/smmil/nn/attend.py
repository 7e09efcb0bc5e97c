"""Attention pooling as one differentiable step that never builds the gradient of the embedded instances.

Both functions here compute, for embedded instances h (n, d) and a projection W (a, d),

    v = h Wᵀ,   scores, weights = weigh(v, *params),   z_b = Σ_{n in bag b} weights_n h_n

where `weigh` is any differentiable function of the narrow matrix v (n, a). Since h enters only through v and z,
∂/∂h = weights ⊗ ∂z + ∂v W has rank a + b: it is formed a thousand rows at a time and used up at once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from smmil.nn.segment import segment_ids

Weigh = Callable[..., tuple[Tensor, Tensor]]
ROWS = 1024


def attend(h: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
    """Bag vectors z (b, d) and scores (n, 1) from embedded instances h."""
    return _Attend.apply(h, project, weigh, offsets, *params)


def embed_and_attend(
    x: Tensor, embed: Tensor, bias: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for h = relu(x embedᵀ + bias); x may be half precision and is widened a thousand rows at a time."""
    return _EmbedAndAttend.apply(x, embed, bias, project, weigh, offsets, *params)


class _Middle:
    """`weigh` with its own little tape, so that an outer autograd function can run it backward."""

    def __init__(self, weigh: Weigh, v: Tensor, params: tuple[Any, ...], needed: tuple[bool, ...]):
        with torch.set_grad_enabled(any(needed)), torch.autocast(v.device.type, enabled=False):
            self.leaves = [t.detach().requires_grad_(on) for t, on in zip((v, *params), needed, strict=True)]
            self.scores, self.weights = weigh(*self.leaves)

    def backward(self, grad_scores: Tensor, grad_weights: Tensor) -> list[Tensor | None]:
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
            left, right = _factors(grad_v, ctx.middle.weights.detach(), project, grad_z, offsets)
            grad_h = left.to(h.dtype) @ right.to(h.dtype)
        if ctx.needs_input_grad[1]:
            grad_project = grad_v.T @ h.to(grad_v.dtype)
        return grad_h, grad_project, None, None, *grad_params


class _EmbedAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, embed, bias, project, weigh, offsets, *params):
        dtype = _compute_dtype(embed)
        h = torch.empty(x.shape[0], embed.shape[0], dtype=dtype, device=x.device)
        table = embed.detach().to(dtype).T
        for rows in _chunks(x.shape[0]):
            torch.addmm(bias.detach().to(dtype), x[rows].to(dtype), table, out=h[rows]).relu_()
        v = (h @ project.detach().to(dtype).T).to(project.dtype)
        needs_v = any(ctx.needs_input_grad[:4])
        ctx.middle = _Middle(weigh, v, params, (needs_v, *ctx.needs_input_grad[6:]))
        ctx.save_for_backward(x, embed, project, offsets, h)
        return _pool(h, ctx.middle.weights.detach(), offsets), ctx.middle.scores.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z, grad_scores):
        x, embed, project, offsets, h = ctx.saved_tensors
        grad_v, *grad_params = ctx.middle.backward(grad_scores, _against(h, grad_z, offsets))
        left, right = _factors(grad_v, ctx.middle.weights.detach(), project, grad_z, offsets)
        grad_x, grad_embed, grad_bias = _embed_backward(x, embed, h, left.to(h.dtype), right.to(h.dtype), ctx)
        grad_project = grad_v.T @ h.to(grad_v.dtype) if ctx.needs_input_grad[3] else None
        return grad_x, grad_embed, grad_bias, grad_project, None, None, *grad_params


def _embed_backward(x, embed, h, left, right, ctx):
    """Gradients of x, the embedding and its bias from ∂/∂h = left @ right, a chunk of rows at a time."""
    grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
    grad_embed, grad_bias = torch.zeros_like(embed), embed.new_zeros(embed.shape[0])
    buffer = h.new_empty(min(ROWS, h.shape[0]), h.shape[1])
    for rows in _chunks(h.shape[0]):
        grad_h = torch.mm(left[rows], right, out=buffer[: rows.stop - rows.start])
        torch.ops.aten.threshold_backward.grad_input(grad_h, h[rows], 0, grad_input=grad_h)
        _accumulate(grad_embed, grad_h, x[rows].to(h.dtype))
        grad_bias += grad_h.sum(0)
        if grad_x is not None:
            grad_x[rows] = grad_h @ embed.to(h.dtype)
    return grad_x, grad_embed, grad_bias


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left.T, right)
    else:
        total += left.T @ right


def _factors(
    grad_v: Tensor, weights: Tensor, project: Tensor, grad_z: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor]:
    """Two thin factors of ∂/∂h = weights ⊗ ∂z + ∂v W: one column per projection and per bag."""
    mine = torch.zeros(weights.shape[0], grad_z.shape[0], dtype=weights.dtype, device=weights.device)
    mine.scatter_(1, segment_ids(offsets)[:, None], weights)
    return torch.cat([grad_v, mine], 1), torch.cat([project.to(grad_z.dtype), grad_z])


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
