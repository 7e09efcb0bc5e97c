"""Bags cut into pseudo-bags of nearly equal size, and the instances that stand out in each."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True)
class Cut:
    """The rows of a packed tensor, regrouped by pseudo-bag.

    order    (n,) row numbers: pseudo-bag after pseudo-bag, those of the first bag first
    offsets  (p+1) start of every pseudo-bag in `order`
    bags     (b+1) start of every bag in the list of pseudo-bags
    """

    order: Tensor
    offsets: Tensor
    bags: Tensor


def even_sizes(n: int, parts: int) -> list[int]:
    """Sizes of `parts` pieces of n instances that differ by at most one, larger ones first; never an empty piece."""
    parts = min(parts, n)
    small, rest = divmod(n, parts)
    return [small + 1] * rest + [small] * (parts - rest)


def cut_bags(orders: Iterable[Tensor], parts: int, device: torch.device | str = "cpu") -> Cut:
    """Cut every bag, its instances in the given order (a permutation per bag), into at most `parts` pseudo-bags."""
    orders = list(orders)
    starts = [0, *accumulate(len(order) for order in orders)]
    pieces = [even_sizes(len(order), parts) for order in orders]
    order = torch.cat([order + start for order, start in zip(orders, starts[:-1], strict=True)])
    offsets = torch.tensor([0, *accumulate(size for piece in pieces for size in piece)])
    bags = torch.tensor([0, *accumulate(len(piece) for piece in pieces)])
    return Cut(order.to(device), offsets.to(device), bags.to(device))


def random_orders(sizes: Sequence[int]) -> list[Tensor]:
    """A random order for every bag, from torch's global generator."""
    return [torch.randperm(n) for n in sizes]


def fixed_orders(n: int, count: int) -> list[Tensor]:
    """`count` shuffled orders of n instances that depend on n alone; fewer are the first of more."""
    generator = torch.Generator().manual_seed(n)
    return [torch.randperm(n, generator=generator) for _ in range(count)]


def extreme_rows(values: Tensor, offsets: Tensor, k: int, *, lowest: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of the k largest values (n,) of every segment, and with `lowest` of the k smallest after them.

    A segment shorter than k gives all it has; one shorter than 2k gives its middle twice, as largest and as smallest.
    Returns the row numbers and how many each segment gave (p,).
    """
    rows = []
    for part, start in zip(values.detach().split(offsets.diff().tolist()), offsets[:-1].tolist(), strict=True):
        ranked = part.argsort(descending=True, stable=True) + start
        rows.append(torch.cat([ranked[:k], ranked[-k:]]) if lowest else ranked[:k])
    return torch.cat(rows), torch.tensor([len(r) for r in rows], device=offsets.device)


def last_class_log_odds(logits: Tensor) -> Tensor:
    """log p/(1-p) (n,) of the last class: the logit itself if there is one, else last minus log Σ exp of the others."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, -1] - logits[:, :-1].logsumexp(1)


def against_the_others(logits: Tensor) -> Tensor:
    """Every column minus the mean of the others: what a softmax can see. Two columns: ± their difference."""
    c = logits.shape[1]
    return logits if c == 1 else (c * logits - logits.sum(1, keepdim=True)) / (c - 1)


def average_probabilities(logits: Tensor) -> Tensor:
    """Logits (b, c) whose probabilities are the mean of those of logits (s, b, c); one of them is returned as it is."""
    if len(logits) == 1:
        return logits[0]
    if logits.shape[2] == 1:
        return logsigmoid(logits).logsumexp(0) - logsigmoid(-logits).logsumexp(0)
    return logits.log_softmax(2).logsumexp(0) - math.log(len(logits))
