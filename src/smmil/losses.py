"""Losses: cross-entropy of bags, class weights, and smoothness penalties on the scores of neighbouring instances."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from smmil.bag import BagBatch
from smmil.config import PenaltyConfig
from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.segment import segment_mean, segment_softmax, segment_sum

PENALTIES = ("scores", "attention", "attention_squared", "sa_mil", "sa_mil_squared")


def _smoothness_penalty(scores: Tensor, graph: Graph, offsets: Tensor, kind: str = "scores") -> Tensor:
    """Mean over the bags (and over the columns) of how much the scores (n, k) of neighbours differ.

    scores             (1/N) fᵀL̃f, f the scores as they are, L̃ the symmetric normalised Laplacian
    attention          aᵀLa, a the softmax of f in its bag, L = D - A
    attention_squared  aᵀL²a
    sa_mil, sa_mil_squared   the same two with L + I in place of L, as the published program of SA-MIL builds it; they
                       also shrink the largest weights
    graph is as built. Differentiable in the scores; instances without neighbours count with 0 (sa_mil: with a²).
    """
    check_choice(kind, PENALTIES, "penalty kind")
    f = scores if scores.dtype == torch.float64 else scores.float()
    if kind == "scores":
        return segment_mean(f * (f - graph.normalized("sym").propagate(f)), offsets).mean()
    a = segment_softmax(f, offsets)
    rough = graph.degrees.to(a.dtype)[:, None] * a - graph.propagate(a)
    if kind.startswith("sa_mil"):
        rough = rough + a
    energy = rough * rough if kind.endswith("squared") else a * rough
    return segment_sum(energy, offsets).mean()


def bag_loss(
    logits: Tensor, y: Tensor, *, pos_weight: Tensor | None = None, class_weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy of bag logits (b, c) against class indices y (b,), averaged over the bags.

    One logit: binary cross-entropy, positives weighted by `pos_weight`. Several: softmax cross-entropy, each bag
    weighted by `class_weight` of its class. Both divide by the number of bags, so weights change the size of the loss
    but accumulating batches gives the loss of the whole.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if logits.shape[1] == 1:
        if bool(((y < 0) | (y > 1)).any()):
            raise DataError(
                f"a one-logit model needs labels 0 or 1, got {sorted(set(y.tolist()))}; set model.n_classes"
            )
        return F.binary_cross_entropy_with_logits(
            logits[:, 0], y.to(logits.dtype), pos_weight=_like(pos_weight, logits)
        )
    if bool(((y < 0) | (y >= logits.shape[1])).any()):
        raise DataError(f"labels {sorted(set(y.tolist()))} do not fit a model with {logits.shape[1]} classes")
    return F.cross_entropy(logits, y, weight=_like(class_weight, logits), reduction="none").mean()


def _like(weight: Tensor | None, logits: Tensor) -> Tensor | None:
    return None if weight is None else weight.to(logits)


def class_weights(labels: Sequence[int], n_classes: int) -> dict[str, Tensor]:
    """Class weights inverse to class frequency, as keyword arguments of `bag_loss`.

    One logit: pos_weight = negatives / positives. Several: class_weight_c = n / (classes * n_c).
    """
    count = torch.bincount(torch.as_tensor(labels), minlength=max(2, n_classes)).double()
    if bool((count == 0).any()):
        missing = (count == 0).nonzero().flatten().tolist()
        raise DataError(f"class weights: no training bag of class {', '.join(map(str, missing))}; use another split")
    if n_classes == 1:
        return {"pos_weight": count[0] / count[1]}
    return {"class_weight": count.sum() / (len(count) * count)}


def total_loss(
    output: Output,
    y: Tensor,
    *,
    bag_weight: float = 1.0,
    penalty: Tensor | None = None,
    rest: float = 1.0,
    pos_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of the bag loss and the model's own terms, times `rest`, plus the penalty; and these terms by name."""
    bag = bag_loss(output.logits, y, pos_weight=pos_weight, class_weight=class_weight)
    for name in {"bag", "penalty"} & output.losses.keys():
        raise DataError(f"a model's own loss must not be called {name!r}, which is the name of a term of every model")
    parts = {"bag": bag_weight * bag, **output.losses}
    if penalty is not None:
        parts = {name: rest * part for name, part in parts.items()} | {"penalty": penalty}
    return torch.stack([part.reshape(()) for part in parts.values()]).sum(), parts


def penalty_terms(output: Output, batch: BagBatch, settings: PenaltyConfig) -> dict[str, Any]:
    """Weighted smoothness penalty, as keyword arguments of `total_loss`; nothing if its weight is 0."""
    if settings.weight == 0:
        return {}
    if not output.scores.requires_grad:
        raise ConfigError("training.penalty: the scores of this model carry no gradient, so a penalty cannot train it")
    value = _smoothness_penalty(output.scores, batch.need("graph"), batch.offsets, settings.kind)
    return {"penalty": settings.weight * value, "rest": 1 - settings.weight if settings.convex else 1.0}
