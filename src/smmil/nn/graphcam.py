"""GraphCAM (Zheng et al., 2022, arXiv:2205.09671): how much each token supports a class, by relevance times gradient.

A small transformer over a fixed number of tokens per bag, led by a class token, returns everything it computed. From
that trace, relevance is propagated layer by layer from a logit to the attention maps, by the rules for transformers of
Chefer, Gur and Wolf (2021, arXiv:2012.09838). Every rule takes the relevance r of a result and the inputs of that
result, and distributes r over them; the first dimension is the bag, and bags never mix. Normalisations, activations and
softmax pass relevance on unchanged.
"""

import copy
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from smmil.nn.kernels.attention import join_heads, split_heads

CAM_STARTS = ("logit", "probability", "one")
_EPS = 1e-9


class _BlockTrace(NamedTuple):
    """What one block computed on the way from x to out; queries, keys, values and attention maps per head."""

    x: Tensor
    normed: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    attention: Tensor
    mixed: Tensor
    attended: Tensor
    middle: Tensor
    middle_normed: Tensor
    hidden: Tensor
    fed: Tensor
    out: Tensor


class TransformerTrace(NamedTuple):
    """What the transformer computed: one trace per block, the class token after the last norm, and the logits."""

    blocks: list[_BlockTrace]
    z: Tensor
    logits: Tensor


class _TokenBlock(nn.Module):
    """Pre-norm transformer block over tokens (b, t, dim): attention, then an MLP, each added to its input."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.merge = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> _BlockTrace:
        normed = self.norm1(x)
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(normed).chunk(3, dim=-1))
        attention = ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1)
        mixed = join_heads(attention @ v)
        attended = self.merge(mixed)
        middle = x + attended
        middle_normed = self.norm2(middle)
        hidden = gelu(self.expand(middle_normed))
        fed = self.contract(hidden)
        out = middle + fed
        return _BlockTrace(x, normed, q, k, v, attention, mixed, attended, middle, middle_normed, hidden, fed, out)


class TokenTransformer(nn.Module):
    """Blocks, a last LayerNorm, and a linear classifier that reads the first token of every bag."""

    def __init__(self, dim: int, n_classes: int, *, layers: int, heads: int, hidden: int):
        super().__init__()
        self.blocks = nn.ModuleList(_TokenBlock(dim, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, tokens: Tensor) -> TransformerTrace:
        traces: list[_BlockTrace] = []
        for block in self.blocks:
            traces.append(block(traces[-1].out if traces else tokens))
        z = self.norm(traces[-1].out[:, 0])
        return TransformerTrace(traces, z, self.head(z))


def graph_cam(transformer: TokenTransformer, tokens: Tensor, start: str = "logit") -> Tensor:
    """How much each token but the first supports each class: (b, t - 1, classes), never negative.

    start  what relevance begins with, and what multiplies the gradient: logit (as published), its probability, or one
    Works under `no_grad` too and leaves the gradients of the weights alone: a copy of the transformer in double
    precision is used, because the rules divide by sums that may nearly cancel. One backward pass per class.
    """
    device = tokens.device.type
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
        wide = copy.deepcopy(transformer).double().requires_grad_(False)
        trace = wide(tokens.detach().to(torch.float64, copy=True).requires_grad_())
        begin = _starts(trace.logits.detach(), start)
        maps = [_class_map(wide, trace, begin[:, c], c) for c in range(begin.shape[1])]
    return torch.stack(maps, -1).to(tokens.dtype)


def _starts(logits: Tensor, start: str) -> Tensor:
    if start == "probability":
        return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)
    return logits if start == "logit" else torch.ones_like(logits)


def _class_map(transformer: TokenTransformer, trace: TransformerTrace, begin: Tensor, c: int) -> Tensor:
    attentions = [block.attention for block in trace.blocks]
    gradients = torch.autograd.grad((begin * trace.logits[:, c]).sum(), attentions, retain_graph=True)
    with torch.no_grad():
        relevances = _attention_relevance(transformer, trace, begin, c)
        pairs = zip(gradients, relevances, strict=True)
        return _rollout([(g * r).clamp_min(0).mean(1) for g, r in pairs])[:, 0, 1:]


def _attention_relevance(transformer: TokenTransformer, trace: TransformerTrace, begin: Tensor, c: int) -> list[Tensor]:
    """Relevance of every block's attention maps (b, heads, t, t) when the logit of class c has relevance `begin`."""
    r = pad(begin[:, None], (c, trace.logits.shape[1] - 1 - c))
    r = _relevance_of_linear(r, trace.z, transformer.head.weight)
    r = trace.z * _divided(r, trace.z)
    r = pad(r[:, None], (0, 0, 0, trace.blocks[0].x.shape[1] - 1))
    found: list[Tensor] = []
    for block, seen in zip(reversed(transformer.blocks), reversed(trace.blocks), strict=True):
        attention, r = _through_block(cast(_TokenBlock, block), seen, r)
        found.insert(0, attention)
    return found


def _through_block(block: _TokenBlock, seen: _BlockTrace, r: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of a block's attention maps and of its input, from that of its output."""
    skipped, fed = _relevance_of_sum(r, seen.middle, seen.fed)
    hidden = _relevance_of_linear(fed, seen.hidden, block.contract.weight)
    middle_normed = _relevance_of_linear(hidden, seen.middle_normed, block.expand.weight)
    middle = _relevance_of_both_uses(skipped, middle_normed, seen.middle)
    skipped, attended = _relevance_of_sum(middle, seen.x, seen.attended)
    mixed = split_heads(_relevance_of_linear(attended, seen.mixed, block.merge.weight), block.heads)
    attention, v = _relevance_of_product(mixed, seen.attention, seen.v)
    q, k = _relevance_of_product(attention, seen.q, seen.k.mT)
    qkv = torch.cat([join_heads(part) for part in (q, k.mT, v)], -1)
    normed = _relevance_of_linear(qkv, seen.normed, block.qkv.weight)
    return attention, _relevance_of_both_uses(skipped, normed, seen.x)


def _divided(r: Tensor, z: Tensor) -> Tensor:
    """r / (z + 1e-9), and 0 where z is 0: the one division under all rules."""
    below = z + _EPS
    return (r / below.masked_fill(below == 0, _EPS)).masked_fill(z == 0, 0)


def _relevance_of_linear(r: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """To the inputs of a linear map, by their positive contributions only (α = 1); the bias gets nothing."""
    x_up, x_down, w_up, w_down = x.clamp_min(0), x.clamp_max(0), weight.clamp_min(0), weight.clamp_max(0)
    s = _divided(r, x_up @ w_up.T + x_down @ w_down.T)
    return x_up * (s @ w_up) + x_down * (s @ w_down)


def _relevance_of_sum(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """To both summands of a + b: entry by entry in proportion, then the total of the bag in proportion to |totals|."""
    s = _divided(r, a + b)
    parts = (a * s, b * s)
    totals = [_total(part) for part in parts]
    weight = totals[0].abs() + totals[1].abs()
    factors = [_divided(_divided(total.abs(), weight) * _total(r), total) for total in totals]
    return parts[0] * factors[0], parts[1] * factors[1]


def _relevance_of_product(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """To both factors of the matrix product a @ b, half to each."""
    s = _divided(r, a @ b) / 2
    return a * (s @ b.mT), b * (a.mT @ s)


def _relevance_of_both_uses(r: Tensor, other: Tensor, x: Tensor) -> Tensor:
    """To an x that was used twice: the sum of what both uses give back (nothing where x is 0)."""
    return x * (_divided(r, x) + _divided(other, x))


def _rollout(maps: list[Tensor]) -> Tensor:
    """Maps (b, t, t) of successive blocks as one: each with the identity for the skip connection, later · earlier."""
    whole = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    for one in maps:
        whole = one @ whole + whole
    return whole


def _total(r: Tensor) -> Tensor:
    """Sum over everything but the bag."""
    return r.sum(tuple(range(1, r.ndim)), keepdim=True)
