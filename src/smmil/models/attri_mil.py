"""AttriMIL (Cai, Huang, Zhang, Lu, Zhang, Medical Image Analysis 2025, arXiv:2404.00351)."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.graph import Graph
from smmil.models import Output, need_labels, own_target
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_argmax, segment_mean, segment_softmax, segment_sum
from smmil.nn.smooth_at import SmoothAt
from smmil.sparse import without_autocast


def _salient_neighbour(scores: Tensor, graph: Graph) -> Tensor:
    """Of each instance and its neighbours, column by column, the score that is farthest from 0."""
    near, rows = scores[graph.indices], graph.rows[:, None].expand(-1, scores.shape[1])
    highest = scores.scatter_reduce(0, rows, near, "amax")
    lowest = scores.scatter_reduce(0, rows, near, "amin")
    return torch.where(highest > -lowest, highest, lowest)


def _ranking_terms(value: Tensor, other: Tensor, positive: Tensor, first: Tensor) -> Tensor:
    """How far the top attribute of a bag and that of one from the other side are from their places, pair by pair.

    value     (k,) highest attribute of a class in a bag     positive  (k,) whether the bag has this class
    other     (k,) that of a bag of the other kind           first     (k,) whether the class is the background
    What belongs to a positive bag should be above 0, what belongs to a negative one below, and (but for the background)
    the positive one above the negative one. As published, a negative bag asks nothing of a stored positive instance
    but to lie above it; for the background, which has no order, it must be above 0.
    """
    high, low = torch.where(positive, value, other), torch.where(positive, other, value)
    order = torch.where(first, torch.zeros_like(value), (low - high).relu())
    return order + low.relu() + torch.where(positive | first, (-high).relu(), torch.zeros_like(high))


class AttriMIL(nn.Module):
    """Score every instance by attention times instance classifier, with constraints on neighbours and on other bags.

    dim             units inside the residual adaptor of the features (None: half the width of the features)
    att_dim         hidden units of the gated attention that each class has (None: the same)
    spatial_weight  factor of the spatial constraint: an instance should resemble the most salient one next to it
    ranking_weight  factor of the ranking constraint: the top instance of a bag with a class should be above that of one
                    without it
    queue           top instances of each kind that are remembered for the ranking constraint
    sm              {where: early} smooths the adapted features, {where: late} the attention logits; other options as in
                    `SmoothAt`; remembered instances are scored without neighbours

    Scores are attributes, exp(attention logit) times instance logit: above 0 they speak for the class, and they do not
    depend on the rest of the bag. One map per class; with n_classes=1 there are two classes inside, the logit is the
    difference of theirs and the map that of class 1.
    Remembered features wait in buffers (`queue.…`), which only training needs; `after_step` moves them there, which a
    loop of your own calls behind the optimiser's step: without it bags of one batch alone are compared.
    """

    score_kind = "attribute score"
    head_name = "classifier"
    class_terms = ("the ranking of the top instances of bags with a class and without it",)
    training_state = ("queue.",)

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int | None = None,
        att_dim: int | None = None,
        spatial_weight: float = 1.0,
        ranking_weight: float = 5.0,
        queue: int = 4,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        for option, value in (("spatial_weight", spatial_weight), ("ranking_weight", ranking_weight)):
            if isinstance(value, str) or not 0 <= value < math.inf:
                raise ConfigError(f"{option} must be a number of at least 0, got {value!r}")
        self.spatial_weight, self.ranking_weight, self.n_classes = spatial_weight, ranking_weight, n_classes
        classes, half = max(2, n_classes), max(1, in_dim // 2)
        self.adaptor = nn.Sequential(nn.Linear(in_dim, dim or half), nn.ReLU(), nn.Linear(dim or half, in_dim))
        attentions = [GatedAttention(in_dim, att_dim or half) for _ in range(classes)]
        self.attentions = nn.ModuleList(attentions)
        self.classifier = nn.Linear(in_dim, classes)
        self.bias = nn.Parameter(torch.zeros(classes))
        self.queue = _Queues(classes, queue)
        readers = [layer for attention in attentions for layer in (attention.project, attention.gate)]
        self.sm = SmoothAt(sm, {"early": readers, "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        x = batch.x.to(compute_dtype(self))
        h = self.sm("early", x + self.adaptor(x), batch)
        f, said = self._judged(h)
        f = self.sm("late", f, batch)
        logits = segment_sum(segment_softmax(f, batch.offsets) * said, batch.offsets) + self.bias
        scores = f.exp() * said
        losses = self._losses(x, scores, batch) if self.training else {}
        if self.n_classes == 1:
            return Output(logits[:, 1:] - logits[:, :1], scores[:, 1:], losses)
        return Output(logits, scores, losses)

    def bag_vectors(self, h: Tensor, batch: BagBatch) -> Tensor:
        """The instances weighed by the attention of each class, class after class."""
        f = self.sm("late", self._judged(h)[0], batch)
        return weighted_sums(h, segment_softmax(f, batch.offsets), batch.offsets).flatten(1)

    def after_step(self) -> None:
        """Remember the instances seen since the last step."""
        self.queue.settle()

    def _judged(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Attention logits and instance logits, one column per class."""
        dtype = compute_dtype(self)
        f = torch.cat([attention(h) for attention in self.attentions], 1)
        return f.to(dtype), self.classifier(h).to(dtype)

    def _losses(self, x: Tensor, scores: Tensor, batch: BagBatch) -> dict[str, Tensor]:
        classes, losses = own_target(self) is None, {}
        labels = need_labels(batch, self.n_classes) if classes else None
        foreground = scores[:, 1:] if classes or self.n_classes == 1 else scores
        with without_autocast(scores):
            if self.spatial_weight:
                losses["spatial"] = self.spatial_weight * _spatial(foreground, batch)
            if self.ranking_weight and labels is not None:
                losses["ranking"] = self.ranking_weight * self._ranking(x.detach(), scores, labels, batch.offsets)
        return losses

    def _ranking(self, x: Tensor, scores: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
        """Mean over bags and classes; where nothing of the other kind is remembered yet, a class counts with 0."""
        best, (bags, classes) = segment_argmax(scores, offsets), (len(labels), scores.shape[1])
        positive = labels[:, None] == torch.arange(classes, device=labels.device)
        met = self.queue(x[best.reshape(-1)].reshape(bags, classes, -1), positive)
        if not met:
            return scores.new_zeros(())
        rows = torch.stack([one.rows for one in met])
        f, said = self._judged(rows + self.adaptor(rows))
        bag, column = torch.tensor([[one.bag, one.column] for one in met], device=x.device).T
        other = (f.exp() * said).gather(1, column[:, None])[:, 0]
        value = scores[best[bag, column], column]
        return _ranking_terms(value, other, positive[bag, column], column == 0).sum() / (bags * classes)


def _spatial(scores: Tensor, batch: BagBatch) -> Tensor:
    """Sum over the classes but the background: how far instances are from the most salient ones next to them."""
    apart = (scores - _salient_neighbour(scores, batch.need("graph"))).tanh().abs()
    return segment_mean(apart, batch.offsets).sum(1).mean()


class _Met(NamedTuple):
    """A remembered instance (d,) that the top instance of a bag is compared with, in one class."""

    bag: int
    column: int
    rows: Tensor


class _Event(NamedTuple):
    """A row to be added to a queue of a class (side 1: of bags that have it), or its first row to be put last."""

    column: int
    side: int
    row: Tensor | None


class _Queues(nn.Module):
    """Features of the top instances of the last bags with each class, and of those without it, oldest first.

    A call changes nothing: it notes what is to be moved, and `settle` moves it, so that a step which is repeated leaves
    no trace. There is a buffer for each class and side that holds anything.
    """

    def __init__(self, classes: int, length: int):
        super().__init__()
        self.classes, self.length = classes, length
        self.noted: deque[_Event] = deque(maxlen=4096)  # a loop may never settle

    def forward(self, top: Tensor, positive: Tensor) -> list[_Met]:
        """For the top instances (b, c, d) of bags that have a class or not (b, c): whom each is compared with."""
        lists, met = self._lists(), []
        for bag, flags in enumerate(positive.tolist()):
            for column, side in enumerate(map(int, flags)):
                self._note(lists, _Event(column, side, top[bag, column].clone()))
                if lists[column][1 - side]:
                    met.append(_Met(bag, column, lists[column][1 - side][0].to(top)))
                    self._note(lists, _Event(column, 1 - side, None))
        return met

    def settle(self) -> None:
        """Move what was noted."""
        lists = self._lists()
        for event in self.noted:
            _move(lists, self.length, event)
        self.noted.clear()
        for column, sides in enumerate(lists):
            for side, rows in enumerate(sides):
                if rows:
                    self.register_buffer(f"rows_{column}_{side}", torch.stack(rows))

    def _note(self, lists: list[list[list[Tensor]]], event: _Event) -> None:
        _move(lists, self.length, event)
        self.noted.append(event)

    def _lists(self) -> list[list[list[Tensor]]]:
        """The rows by class and side, oldest first."""
        names = [[f"rows_{column}_{side}" for side in range(2)] for column in range(self.classes)]
        return [[[] if (rows := self._buffers.get(name)) is None else list(rows) for name in pair] for pair in names]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Forget everything and make room for what the state holds; then load as usual."""
        self.noted.clear()
        for name in list(self._buffers):
            delattr(self, name)
        for key, value in state_dict.items():
            if key.startswith(f"{prefix}rows_"):
                self.register_buffer(key.removeprefix(prefix), torch.zeros_like(value))
        super()._load_from_state_dict(state_dict, prefix, *others)


def _move(lists: list[list[list[Tensor]]], length: int, event: _Event) -> None:
    """Add a row behind the others, the oldest going if there are too many; without one, the first goes to the end."""
    rows, row = lists[event.column][event.side], event.row
    if row is None:
        rows.append(rows.pop(0))
        return
    rows.append(row)
    del rows[:-length]
