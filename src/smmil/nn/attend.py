"""Attention pooling as one differentiable step in little memory.

Both functions here compute, for embedded instances h (n, d) and a projection W (a, d),

    v = h Wᵀ,   scores, weights = weigh(v, *params),   z_b = Σ_{n in bag b} weights_n h_n

where `weigh` is any differentiable function of the narrow matrix v (n, a). Since h enters only through v and z,
∂/∂h = weights ⊗ ∂z + ∂v W has rank a + b. Where h is embedded here, its gradient takes the place of h, a thousand rows
at a time, while they are in the cache.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from smmil.nn.relu import masking, shifting
from smmil.nn.segment import segment_ids

Weigh = Callable[..., tuple[Tensor, Tensor]]
ROWS = 1024  # of h at a time: what is done to them in turn happens in the cache
WIDENED = 2048  # rows of half precision at a time; products of a thousand rows lose 2 to 3 %


def attend(h: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
    """Bag vectors z (b, d) and scores (n, 1) from embedded instances h."""
    h, project, *rest = _in_use(h, project, *params)
    return _Attend.apply(h, project, weigh, offsets, *rest)


def embed_and_attend(
    x: Tensor, embed: Tensor, bias: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for h = relu(x embedᵀ + bias); x may be half precision and is widened a few rows at a time."""
    x, embed, bias, project, *rest = _in_use(x, embed, bias, project, *params)
    return _EmbedAndAttend.apply(x, embed, bias, project, weigh, offsets, *rest)


def _in_use(*tensors: Tensor) -> list[Tensor]:
    """The tensors, detached where no gradients are wanted (no_grad): inside a function of ours nobody can tell."""
    return list(tensors) if torch.is_grad_enabled() else [t.detach() for t in tensors]


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
        ctx.save_for_backward(h, project, offsets, *params)  # params: only to notice if someone changes them
        return _pool(h, ctx.middle.weights.detach(), offsets), ctx.middle.scores.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z, grad_scores):
        h, project, offsets, *_ = ctx.saved_tensors
        grad_v, *grad_params = ctx.middle.backward(grad_scores, _against(h, grad_z, offsets))
        grad_h = grad_project = None
        if ctx.needs_input_grad[0]:
            factors = _Factors(grad_v, ctx.middle.weights.detach(), project, grad_z, offsets, h.dtype)
            grad_h = factors.product()
        if ctx.needs_input_grad[1]:
            grad_project = grad_v.T @ h.to(grad_v.dtype)
        return grad_h, grad_project, None, None, *grad_params


class _EmbedAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, embed, bias, project, weigh, offsets, *params):
        ctx.dtype = _compute_dtype(embed)
        h, v = _embed(x, *(t.to(ctx.dtype) for t in (embed, bias, project)))
        needs_v = any(ctx.needs_input_grad[:4])
        ctx.middle = _Middle(weigh, v.to(project.dtype), params, (needs_v, *ctx.needs_input_grad[6:]))
        ctx.save_for_backward(x, embed, bias, project, offsets, *params)
        ctx.h = h
        return _pool(h, ctx.middle.weights.detach(), offsets), ctx.middle.scores.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_z, grad_scores):
        x, embed, bias, project, offsets, *_ = ctx.saved_tensors
        h, ctx.h = ctx.h, None  # its memory is used up here; a second pass backward (retain_graph) embeds anew
        if h is None:
            h, _ = _embed(x, *(t.to(ctx.dtype) for t in (embed, bias, project)))
        grad_v, *grad_params = ctx.middle.backward(grad_scores, _against(h, grad_z, offsets))
        if grad_v is None:
            return (None,) * 6 + tuple(grad_params)
        if not any(ctx.needs_input_grad[:3]):
            return None, None, None, (grad_v.to(h.dtype).T @ h).to(project.dtype), None, None, *grad_params
        factors = _Factors(grad_v, ctx.middle.weights.detach(), project, grad_z, offsets, h.dtype)
        grad_project, grad_bias = torch.empty_like(project), torch.zeros_like(bias)
        factors.replace(h, grad_project, grad_bias)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_embed = _embed_backward(x, embed, h, grad_x)
        return grad_x, grad_embed, grad_bias, grad_project, None, None, *grad_params


def _embed(x: Tensor, embed: Tensor, bias: Tensor, project: Tensor) -> tuple[Tensor, Tensor]:
    """h = relu(x embedᵀ + bias) and v = h projectᵀ, in the precision of the weights."""
    h, v = embed.new_empty(len(x), len(embed)), embed.new_empty(len(x), len(project))
    for given, part in _split(x, h):
        torch.mm(given.to(h.dtype), embed.T, out=part)
    shift = shifting(h)
    for part, narrow in _blocks(h, v):
        shift(part, bias)
        torch.mm(part, project.T, out=narrow)
    return h, v


def _embed_backward(x: Tensor, embed: Tensor, grad_h: Tensor, grad_x: Tensor | None) -> Tensor:
    """Gradient of the embedding; that of x goes to grad_x, if it is wanted."""
    grad_embed = torch.empty_like(embed)
    for at, (given, part) in enumerate(_split(x, grad_h)):
        _accumulate(grad_embed, part, given.to(part.dtype), begin=at == 0)
    if grad_x is not None:
        for goal, part in _split(grad_x, grad_h):
            _write_product(goal, part, embed.to(part.dtype))
    return grad_embed


def _write_product(goal: Tensor, left: Tensor, right: Tensor) -> None:
    """goal ← left right, without a second matrix of that size if both have the same precision."""
    if goal.dtype == left.dtype:
        torch.mm(left, right, out=goal)
    else:
        goal.copy_(left @ right)


def _split(x: Tensor, h: Tensor) -> zip:
    """Both whole, or if x is in another precision a few rows at a time: all of x is never converted at once."""
    rows = max(1, len(x)) if x.dtype == h.dtype else WIDENED
    return zip(x.split(rows), h.split(rows), strict=True)


def _blocks(*matrices: Tensor) -> zip:
    """A few rows of each at a time, the last ones first: they were written last and are still in the cache."""
    return zip(*(t.split(ROWS)[::-1] for t in matrices), strict=True)


def _accumulate(total: Tensor, left: Tensor, right: Tensor, begin: bool) -> None:
    """total ← total + leftᵀ right, or without what was there to `begin` with."""
    if total.dtype == left.dtype:
        total.addmm_(left.T, right, beta=0 if begin else 1)
    elif begin:
        total.copy_(left.T @ right)
    else:
        total += left.T @ right


class _Factors:
    """∂/∂h = [∂v, weights] [W; ∂z]: two thin factors.

    `weights` has a column for every bag here. The wide factor is kept column by column: its product is faster.
    """

    def __init__(
        self, grad_v: Tensor, weights: Tensor, project: Tensor, grad_z: Tensor, offsets: Tensor, dtype: torch.dtype
    ):
        self.grad_v, weights = grad_v.to(dtype), weights.to(dtype)
        self.weights = weights.new_zeros(len(weights), len(grad_z)).scatter_(1, segment_ids(offsets)[:, None], weights)
        self.wide = torch.cat([project.T, grad_z.T], 1).to(dtype).T

    def product(self) -> Tensor:
        """∂/∂h, all of it."""
        return torch.cat([self.grad_v, self.weights], 1) @ self.wide

    def replace(self, h: Tensor, grad_project: Tensor, grad_bias: Tensor) -> None:
        """h ← ∂/∂y where h = relu(y); the gradients of the projection and of what was added to y come along."""
        mask, narrow, wide = masking(h), *(h.new_empty(min(ROWS, len(h)), k) for k in self.wide.shape)
        for at, (part, *thin) in enumerate(_blocks(h, self.grad_v, self.weights)):
            _accumulate(grad_project, thin[0], part, begin=at == 0)
            left = torch.cat(thin, 1, out=narrow[: len(part)])
            mask(part, torch.mm(left, self.wide, out=wide[: len(part)]), grad_bias)


def _pool(h: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    parts = zip(h.split(offsets.diff().tolist()), weights.split(offsets.diff().tolist()), strict=True)
    return torch.cat([w.T.to(h.dtype) @ rows for rows, w in parts]).to(weights.dtype)


def _against(h: Tensor, z: Tensor, offsets: Tensor) -> Tensor:
    """⟨h_n, z of its bag⟩ for every row, as a column."""
    parts = zip(h.split(offsets.diff().tolist()), z, strict=True)
    return torch.cat([rows @ one.to(h.dtype) for rows, one in parts])[:, None].to(z.dtype)


def _compute_dtype(like: Tensor) -> torch.dtype:
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
