"""Attention pooling, and the embedding before it, as one differentiable step in little memory.

For embedded instances h (n, d) and a projection W (a, d) both functions here compute

    v = h Wᵀ,   scores, weights = weigh(v, *params),   z_b = Σ_{n in bag b} weights_n h_n

where `weigh` is any differentiable function of the narrow matrix v (n, a). Since h enters only through v and z,
∂/∂h = weights ⊗ ∂z + ∂v W has rank a + b. Where h is embedded here, its gradient takes the place of h, a thousand rows
at a time, while they are in the cache. Where a second derivative is wanted, backward repeats the step in plain torch.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from smmil.graph import Graph
from smmil.nn import kernels
from smmil.nn.segment import segment_ids, segment_softmax, split_bags, weighted_sum

Weigh = Callable[..., tuple[Tensor, Tensor]]
MANY = 16  # rows: time is even at about a thousand, but memory is saved and results repeat from a few on
ROWS = 1024  # of h at a time: what is done to them in turn happens in the cache
WIDENED = 2048  # rows of half precision at a time; products of a thousand rows lose 2 to 3 %


def is_applicable(pool: Any, rows: Tensor, embed: nn.Module | None = None) -> bool:
    """Whether the pool of `rows`, after `embed` if given, is computed here."""
    if kernels.tracing() or not kernels.enabled("fused_pool", pays=len(rows) >= MANY):
        return False
    linear_layers = [layer for layer in (embed, pool.project, pool.gate, pool.score) if layer is not None]
    if any(type(layer).forward is not nn.Linear.forward for layer in linear_layers):
        return False
    if embed is not None and embed.bias is None:
        return False
    smoother = getattr(pool, "sm", None)
    return kernels.replaceable([pool, *linear_layers, *([] if smoother is None else [smoother])], rows)


def attend(pool: Any, h: Tensor, offsets: Tensor, graph: Graph | None = None) -> tuple[Tensor, Tensor]:
    """Bag vectors z (b, d) and scores (n, 1) from embedded instances h: what `pool(h, offsets, graph)` gives."""
    h, project, *params = _in_use(h, _projection(pool), *_params(pool))
    apply: Callable[..., tuple[Tensor, Tensor]] = _Attend.apply
    return apply(h, project, _weigh_with(pool, offsets, graph), offsets, *params)


def embed_and_attend(
    pool: Any, embed: nn.Linear, x: Tensor, offsets: Tensor, graph: Graph | None = None
) -> tuple[Tensor, Tensor]:
    """The same for h = relu(embed(x)); x may be half precision and is widened a few rows at a time."""
    weigh = _weigh_with(pool, offsets, graph)
    x, weight, bias, project, *params = _in_use(x, embed.weight, embed.bias, _projection(pool), *_params(pool))
    apply: Callable[..., tuple[Tensor, Tensor]] = _EmbedAndAttend.apply
    return apply(x, weight, bias, project, weigh, offsets, *params)


def _projection(pool: Any) -> Tensor:
    """W, with the gate's V below it."""
    return pool.project.weight if pool.gate is None else torch.cat([pool.project.weight, pool.gate.weight])


def _params(pool: Any) -> tuple[Tensor, ...]:
    """What `weigh` takes besides v: the bias of the projection, the weights of the score, and α if it is learned."""
    bias = pool.project.bias
    if bias is None:
        bias = next(pool.parameters()).new_zeros(())
    elif pool.gate is not None:
        bias = torch.cat([bias, pool.gate.bias])
    learned = (pool.sm.alpha,) if pool.where is not None and pool.sm.learned else ()
    return bias, pool.score.weight, *learned


def _weigh_with(pool: Any, offsets: Tensor, graph: Graph | None) -> Weigh:
    """Scores and pooling weights of a bag as a function of v = h Wᵀ, without the bias, and of `_params`."""
    p = None if graph is None else pool.sm.normalize(graph)

    tanh_scores: Callable[..., Tensor] = _TanhScores.apply

    def score(v: Tensor, bias: Tensor, w: Tensor, spare: bool) -> Tensor:
        if pool.gate is None and kernels.enabled("tanh_scores", pays=True):
            return tanh_scores(v, bias, w, spare)
        v = v + bias
        if pool.gate is None:
            return v.tanh() @ w.T
        return (v[:, : pool.att_dim].tanh() * v[:, pool.att_dim :].sigmoid()) @ w.T

    def weigh(v: Tensor, bias: Tensor, w: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        if p is None:
            scores = score(v, bias, w, spare=False)
            return scores, segment_softmax(scores, offsets)
        if pool.where == "late":
            scores = pool.sm(score(v, bias, w, spare=False), p, *learned)
            return scores, segment_softmax(scores, offsets)
        smooth = pool.sm(v if pool.where == "early" else v + bias, p, *learned)
        spare = smooth is not v and pool.sm.steps != "exact"  # the closed form needs its result in the backward pass
        scores = score(smooth, bias if pool.where == "early" else torch.zeros_like(bias), w, spare)
        weights = segment_softmax(scores, offsets)
        return scores, pool.sm(weights, p.transposed(), *learned) if pool.where == "early" else weights

    return weigh


def _in_use(*tensors: Tensor) -> list[Tensor]:
    """The tensors, detached where no gradients are wanted: an autograd function cannot see whether they are."""
    return list(tensors) if torch.is_grad_enabled() else [t.detach() for t in tensors]


class _TanhScores(torch.autograd.Function):
    """Scores tanh(v + bias) wᵀ (n, 1) of v (n, a) with two matrices less than autograd; a `spare` v is overwritten."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, bias: Tensor, w: Tensor, spare: bool) -> Tensor:
        t = (v.detach().add_(bias) if spare else v + bias).tanh_()
        ctx.save_for_backward(t, w)
        return t @ w.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, w = ctx.saved_tensors
        grad_v = grad @ w
        torch.ops.aten.tanh_backward.grad_input(grad_v, t, grad_input=grad_v)
        grad_bias = grad_v.T @ grad_v.new_ones(len(grad_v)) if ctx.needs_input_grad[1] else None
        return grad_v, grad_bias, grad.T @ t, None


class _Tape:
    """`weigh`, recorded on its own so that an outer autograd function can run it backward.

    The record is used up by a backward pass; a second one (retain_graph) computes it again.
    """

    def __init__(self, weigh: Weigh, v: Tensor, params: tuple[Any, ...], needed: tuple[bool, ...]):
        self.weigh = weigh
        self.leaves = [t.detach().requires_grad_(on) for t, on in zip((v, *params), needed, strict=True)]
        self.fresh = False

    def record(self) -> None:
        recorded = any(t.requires_grad for t in self.leaves)
        with torch.set_grad_enabled(recorded), torch.autocast(self.leaves[0].device.type, enabled=False):
            self.scores, self.weights = self.weigh(*self.leaves)
        self.fresh = True

    def backward(self, grad_scores: Tensor, grad_weights: Tensor) -> list[Tensor | None]:
        if not self.fresh:
            self.record()
        self.fresh = False
        wanted = [t for t in self.leaves if t.requires_grad]
        outputs = [o for o in (self.scores, self.weights) if o.requires_grad]
        grads = [g for o, g in ((self.scores, grad_scores), (self.weights, grad_weights)) if o.requires_grad]
        found = iter(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in self.leaves]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, project: Tensor, weigh: Weigh, offsets: Tensor, *params: Tensor
    ) -> tuple[Tensor, Tensor]:
        v = (h @ project.T.to(h.dtype)).to(project.dtype)
        needs_v = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        ctx.tape = _Tape(weigh, v, params, (needs_v, *ctx.needs_input_grad[4:]))
        ctx.tape.record()
        ctx.save_for_backward(h, project, offsets, *params)  # params: to notice if they are changed, and to repeat
        return weighted_sum(h, ctx.tape.weights.detach(), offsets), ctx.tape.scores.detach()

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_scores: Tensor) -> Any:
        h, project, offsets, *params = ctx.saved_tensors
        weigh = ctx.tape.weigh
        if torch.is_grad_enabled():

            def plain(h: Tensor, project: Tensor, *params: Tensor) -> tuple[Tensor, Tensor]:
                scores, weights = weigh(linear(h, project), *params)
                return weighted_sum(h, weights, offsets), scores

            needs = (*ctx.needs_input_grad[:2], *ctx.needs_input_grad[4:])
            grads = _repeat(plain, [h, project, *params], needs, (grad_z, grad_scores))
            return *grads[:2], None, None, *grads[2:]
        grad_v, *grad_params = ctx.tape.backward(grad_scores, _against(h, grad_z, offsets))
        grad_h = grad_project = None
        if ctx.needs_input_grad[0]:
            factors = _Factors(grad_v, ctx.tape.weights.detach(), project, grad_z, offsets, h.dtype)
            grad_h = factors.product()
        if ctx.needs_input_grad[1]:
            grad_project = grad_v.T @ h.to(grad_v.dtype)
        return grad_h, grad_project, None, None, *grad_params


class _EmbedAndAttend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        embed: Tensor,
        bias: Tensor,
        project: Tensor,
        weigh: Weigh,
        offsets: Tensor,
        *params: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.dtype = _compute_dtype(embed)
        h, v = _embed(x, *(t.to(ctx.dtype) for t in (embed, bias, project)))
        needs_v = any(ctx.needs_input_grad[:4])
        ctx.tape = _Tape(weigh, v.to(project.dtype), params, (needs_v, *ctx.needs_input_grad[6:]))
        ctx.tape.record()
        ctx.save_for_backward(x, embed, bias, project, offsets, *params)
        ctx.h = h
        return weighted_sum(h, ctx.tape.weights.detach(), offsets), ctx.tape.scores.detach()

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_scores: Tensor) -> Any:
        x, embed, bias, project, offsets, *params = ctx.saved_tensors
        weigh = ctx.tape.weigh
        if torch.is_grad_enabled():

            def plain(
                x: Tensor, embed: Tensor, bias: Tensor, project: Tensor, *params: Tensor
            ) -> tuple[Tensor, Tensor]:
                h = linear(x.to(embed.dtype), embed, bias).relu()
                scores, weights = weigh(linear(h, project), *params)
                return weighted_sum(h, weights, offsets), scores

            needs = (*ctx.needs_input_grad[:4], *ctx.needs_input_grad[6:])
            grads = _repeat(plain, [x, embed, bias, project, *params], needs, (grad_z, grad_scores))
            return *grads[:4], None, None, *grads[4:]
        h, ctx.h = ctx.h, None  # its memory is used up here; a second pass backward (retain_graph) embeds again
        if h is None:
            h, _ = _embed(x, *(t.to(ctx.dtype) for t in (embed, bias, project)))
        grad_v, *grad_params = ctx.tape.backward(grad_scores, _against(h, grad_z, offsets))
        if grad_v is None:
            return (None,) * 6 + tuple(grad_params)
        if not any(ctx.needs_input_grad[:3]):
            return None, None, None, (grad_v.to(h.dtype).T @ h).to(project.dtype), None, None, *grad_params
        factors = _Factors(grad_v, ctx.tape.weights.detach(), project, grad_z, offsets, h.dtype)
        grad_project, grad_bias = torch.empty_like(project), torch.zeros_like(bias)
        factors.replace(h, grad_project, grad_bias)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_embed = _embed_backward(x, embed, h, grad_x)
        return grad_x, grad_embed, grad_bias, grad_project, None, None, *grad_params


def _repeat(
    plain: Callable[..., tuple[Tensor, Tensor]],
    inputs: list[Tensor],
    needs: tuple[bool, ...],
    grads: tuple[Tensor, ...],
) -> list[Tensor | None]:
    """Gradients of the inputs that need one, by plain torch, such that they can be differentiated again."""
    with torch.enable_grad(), kernels.disabled():
        wanted = [t for t, on in zip(inputs, needs, strict=True) if on]
        found = iter(torch.autograd.grad(plain(*inputs), wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if on else None for on in needs]


def _embed(x: Tensor, embed: Tensor, bias: Tensor, project: Tensor) -> tuple[Tensor, Tensor]:
    """h = relu(x embedᵀ + bias) and v = h projectᵀ, in the precision of the weights."""
    h, v = embed.new_empty(len(x), len(embed)), embed.new_empty(len(x), len(project))
    for given, part in _split(x, h):
        torch.mm(given.to(h.dtype), embed.T, out=part)
    for part, narrow in _blocks(h, v):
        part.add_(bias).relu_()
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


def _split(x: Tensor, h: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Both whole, or if x is in another precision a few rows at a time: all of x is never converted at once."""
    rows = max(1, len(x)) if x.dtype == h.dtype else WIDENED
    return zip(x.split(rows), h.split(rows), strict=True)


def _blocks(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
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
        narrow, wide = (h.new_empty(min(ROWS, len(h)), k) for k in self.wide.shape)
        for at, (part, *thin) in enumerate(_blocks(h, self.grad_v, self.weights)):
            _accumulate(grad_project, thin[0], part, begin=at == 0)
            left = torch.cat(thin, 1, out=narrow[: len(part)])
            grad = torch.mm(left, self.wide, out=wide[: len(part)])
            torch.ops.aten.threshold_backward.grad_input(grad, part, 0, grad_input=part)
            grad_bias += part.T @ part.new_ones(len(part))


def _against(h: Tensor, z: Tensor, offsets: Tensor) -> Tensor:
    """⟨h_n, z of its bag⟩ for every row, as a column."""
    parts = zip(split_bags(h, offsets), z, strict=True)
    return torch.cat([rows @ one.to(h.dtype) for rows, one in parts])[:, None].to(z.dtype)


def _compute_dtype(like: Tensor) -> torch.dtype:
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
