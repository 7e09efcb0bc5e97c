"""GraphCAM (Zheng et al., 2022, arXiv:2205.09671): which tokens speak for a class, by relevance times gradient."""

import copy

import torch
from torch import Tensor
from torch.nn.functional import pad

from smmil.nn import relevance
from smmil.nn.token_transformer import BlockTrace, TokenBlock, TokenTransformer, Trace, join_heads, split_heads

STARTS = ("logit", "probability", "one")


def graph_cam(transformer: TokenTransformer, tokens: Tensor, start: str = "logit") -> Tensor:
    """How much each token but the first speaks for each class: (b, t - 1, classes), never negative.

    start  what relevance begins with, and what multiplies the gradient: logit (as published), its probability, or one
    Works under `no_grad` too and leaves the gradients of the weights alone: a copy of the transformer in double
    precision is asked, because the rules divide by sums that may nearly cancel. One backward pass per class.
    """
    device = tokens.device.type
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device, enabled=False):
        wide = copy.deepcopy(transformer).double().requires_grad_(False)
        seen = wide.trace(tokens.detach().to(torch.float64, copy=True).requires_grad_())
        begin = _starts(seen.logits.detach(), start)
        maps = [_class_map(wide, seen, begin[:, c], c) for c in range(begin.shape[1])]
    return torch.stack(maps, -1).to(tokens.dtype)


def _starts(logits: Tensor, start: str) -> Tensor:
    if start == "probability":
        return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)
    return logits if start == "logit" else torch.ones_like(logits)


def _class_map(transformer: TokenTransformer, seen: Trace, begin: Tensor, c: int) -> Tensor:
    attentions = [block.attention for block in seen.blocks]
    gradients = torch.autograd.grad((begin * seen.logits[:, c]).sum(), attentions, retain_graph=True)
    with torch.no_grad():
        relevances = attention_relevance(transformer, seen, begin, c)
        pairs = zip(gradients, relevances, strict=True)
        return relevance.rollout([(g * r).clamp_min(0).mean(1) for g, r in pairs])[:, 0, 1:]


def attention_relevance(transformer: TokenTransformer, seen: Trace, begin: Tensor, c: int) -> list[Tensor]:
    """Relevance of every block's attention maps (b, heads, t, t) when the logit of class c has relevance `begin`."""
    r = pad(begin[:, None], (c, seen.logits.shape[1] - 1 - c))
    r = relevance.of_linear(r, seen.z, transformer.head.weight)
    r = seen.z * relevance.share(r, seen.z)
    r = pad(r[:, None], (0, 0, 0, seen.blocks[0].x.shape[1] - 1))
    found: list[Tensor] = []
    for block, trace in zip(reversed(transformer.blocks), reversed(seen.blocks), strict=True):
        attention, r = _through(block, trace, r)  # type: ignore[arg-type]
        found.insert(0, attention)
    return found


def _through(block: TokenBlock, seen: BlockTrace, r: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of a block's attention maps and of its input, from that of its output."""
    kept, thought = relevance.of_sum(r, seen.middle, seen.thought)
    hidden = relevance.of_linear(thought, seen.hidden, block.contract.weight)
    reread = relevance.of_linear(hidden, seen.reread, block.expand.weight)
    kept, heard = relevance.of_sum(relevance.of_both_uses(kept, reread, seen.middle), seen.x, seen.heard)
    mixed = split_heads(relevance.of_linear(heard, seen.mixed, block.merge.weight), block.heads)
    attention, v = relevance.of_product(mixed, seen.attention, seen.v)
    q, k = relevance.of_product(attention, seen.q, seen.k.mT)
    read = torch.cat([join_heads(part) for part in (q, k.mT, v)], -1)
    return attention, relevance.of_both_uses(kept, relevance.of_linear(read, seen.read, block.qkv.weight), seen.x)
