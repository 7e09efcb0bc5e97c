"""Losses: cross-entropy of bags, class weights, smoothness penalties on neighbours, and experts' marks on instances."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smmil.bag import BagBatch
from smmil.config import PenaltyConfig
from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import Graph
from smmil.models import Output
from smmil.nn.segment import segment_ids, segment_mean, segment_softmax, segment_sum

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
    y: Tensor | None,
    *,
    bag: Tensor | None = None,
    bag_weight: float = 1.0,
    marks: Tensor | None = None,
    penalty: Tensor | None = None,
    rest: float = 1.0,
    pos_weight: Tensor | None = None,
    class_weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of the bag loss, the model's own terms and the marks, times `rest`, plus the penalty; and these by name.

    bag  the bag loss of a target that is no class; None: the cross-entropy of y
    """
    if bag is None:
        if y is None:
            raise DataError("the bag loss needs labels; give y, or the loss of another target")
        bag = bag_loss(output.logits, y, pos_weight=pos_weight, class_weight=class_weight)
    for name in {"bag", "marks", "penalty"} & output.losses.keys():
        raise DataError(f"a model's own loss must not be called {name!r}, which is the name of a term of every model")
    parts = {"bag": bag_weight * bag, **output.losses, **({} if marks is None else {"marks": marks})}
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


# Kinds of scores: log-odds have a zero of their own; attention weights sum to 1 over a case; others are logits.
_LOG_ODDS, _WEIGHTS = ("instance logit", "instance log-odds"), ("class token attention", "GraphCAM")
_BEND = 10.0  # attention of a tenth of the average and less counts by its size, more of it by its logarithm


class InstanceLoss(nn.Module):
    """Binary cross-entropy of the scores of marked instances, for experts' corrections; unmarked ones take no part.

    marks  {id of a training bag: (n,) labels, 1 lesion, 0 none, -1 not marked}
    kind   what the scores are (`score_kind` of a model); decides how a score becomes log-odds z:
           log-odds with one column   z = s
           attention weights          z = asinh(10 n s) - offset: like log(20 n s), but finite for weights of 0
           any other                  z = s - offset
           any other, where all marks are of one kind: z = s - mean of the scores of its bag

    An attention logit has no zero: adding a number to all of a case changes nothing but the map. So the offset is
    learned, one for all cases: marks on both sides of it are what a single threshold on maps needs. Its unit is fixed,
    because a difference of attention logits is the log of the ratio of two weights: odds that grow as the weights do.
    With marks of one kind an offset would learn to explain them all, and the map nothing; so it is not learned then.
    Marked lesions are to score above the average of their bag, marked others below.

    The loss of a bag is the mean over the marks of each class, then over the classes that were marked in it; that of a
    batch the mean over its bags, 0 for those without marks. So every bag carries its bag loss plus `weight` times this,
    however many marks it has, and batches accumulate to the loss of the whole.
    """

    def __init__(self, weight: float, kind: str, marks: Mapping[str, Tensor]):
        super().__init__()
        self.weight, self.kind, self.marks = weight, kind, marks
        start = math.asinh(_BEND) if kind in _WEIGHTS else 0.0  # the weight of an average instance
        self.one_kind = len({int(label) for m in marks.values() for label in m.unique() if label >= 0}) == 1
        self.offset = nn.Parameter(torch.tensor(start), requires_grad=not self.one_kind)

    def terms(self, output: Output, batch: BagBatch) -> dict[str, Tensor]:
        """Weighted loss of a batch, as keyword arguments of `total_loss`."""
        if not output.scores.requires_grad:
            raise ConfigError(
                "training.instance_loss: the scores of this model carry no gradient, so marks cannot train"
            )
        unknown = (torch.full((n,), -1) for n in batch.sizes)
        labels = torch.cat([self.marks.get(id_, rest) for id_, rest in zip(batch.ids, unknown, strict=True)])
        return {"marks": self.weight * self(output.scores, labels.to(output.scores.device), batch.offsets)}

    def forward(self, scores: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
        """Loss of scores (n, k) of packed bags against labels (n,), of which -1 are unknown."""
        rows = (labels >= 0).nonzero().flatten()
        bag = segment_ids(offsets)[rows]
        z = self._log_odds(scores if scores.dtype == torch.float64 else scores.float(), offsets, rows, bag)
        each = F.binary_cross_entropy_with_logits(z, labels[rows].to(z.dtype), reduction="none")
        bags, group = len(offsets) - 1, 2 * bag + labels[rows]  # group: the marks of one class in one bag
        count = torch.bincount(group, minlength=2 * bags)
        classes = (count.view(-1, 2) > 0).sum(1)
        return (each / (count[group] * classes[bag] * bags)).sum()

    def _log_odds(self, scores: Tensor, offsets: Tensor, rows: Tensor, bag: Tensor) -> Tensor:
        if scores.shape[1] > 2:
            raise ConfigError(
                f"training.instance_loss: the model has {scores.shape[1]} maps, one per class, and marks say lesion or "
                "not; train it on two classes"
            )
        s = scores[rows, -1]  # the column that evaluation reads
        if self.kind in _LOG_ODDS and scores.shape[1] == 1:
            return s
        if self.kind in _WEIGHTS:
            s = torch.asinh(_BEND * offsets.diff()[bag] * s)
        elif self.one_kind:
            return s - segment_mean(scores[:, -1:], offsets)[bag, 0]
        return s - self.offset
