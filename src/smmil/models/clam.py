"""CLAM (Lu, Williamson, Chen, Chen, Barbieri, Mahmood, 2021, arXiv:2004.09666)."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output, need_labels, own_target
from smmil.nn.blocks import RowBlocks, layers_in_blocks
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_softmax, split_bags
from smmil.nn.smooth_at import SmoothAt

_SIZES = {"small": 256, "big": 384}
# From this lead of the best class over the second on, the authors take the hinge instead of its smooth form.
_HARD_FROM = math.log(1000)


def _smooth_svm(logits: Tensor, target: Tensor) -> Tensor:
    """Smooth support vector loss, top-1 form (Berrada, Zisserman, Kumar, 2018, arXiv:1802.07595).

    Mean over the rows of log Σ_c exp(s_c + [c ≠ target] - s_target), the hinge with margin 1 and rounded corner.
    logits (m, c) with c >= 2, target (m,) class indices. Rows in which one class leads all others by ln 1000 or more
    give max_c of the exponents instead. With two classes: log(1 + exp(1 + s_wrong - s_true)) and max(0, the same).
    """
    best = logits.detach().topk(2, dim=1).values
    true = target[:, None]
    margin = torch.ones_like(logits).scatter(1, true, 0.0)
    excess = logits + margin - logits.gather(1, true)
    hard = best[:, 0] - best[:, 1] >= _HARD_FROM
    return torch.where(hard, excess.amax(1), excess.logsumexp(1)).mean()


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"svm": _smooth_svm, "ce": cross_entropy}


class CLAM(nn.Module):
    """Gated attention pooling with a loss that separates the most attended instances from the least attended ones.

    branches    single: one attention map for all classes; multi: a map, a bag vector and a classifier per class
    inst_loss   svm (smooth SVM, as in the article) or ce (cross-entropy, the default of the released program)
    subtyping   classes exclude each other: the most attended instances are also shown to the other classes as negatives
    size        width of the attention network: small 256, big 384
    dropout     behind the embedding; any value but 0 also drops a quarter of the attention units, as released
    k           instances taken from either end, at most half of the bag, so that no instance is both; none if n = 1
    bag_weight  share of the bag loss in the total; the instance loss has the rest
    sm          SmCLAM: {where: early} smooths the embedded instances, which attention, pooling and instance classifiers
                read; {where: late} the attention logits; other options as in `SmoothAt`

    Scores are attention logits before the softmax. A single branch has one map. Several branches have one per class;
    with n_classes=1 there are two branches inside, the logit is the difference of theirs and the map that of class 1.
    Instance classifiers (two outputs per class, two classes if n_classes=1) serve in training only.
    Time and memory grow with n; the instance loss sorts the scores of each bag.
    """

    score_kind = "attention logit"
    class_terms = ("the clustering of the most and the least attended instances",)

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        branches: str = "single",
        inst_loss: str = "svm",
        subtyping: bool = False,
        size: str = "small",
        dropout: float = 0.25,
        k: int = 8,
        bag_weight: float = 0.7,
        dim: int = 512,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.multi = check_choice(branches, ("single", "multi"), "branches") == "multi"
        self.inst_loss = check_choice(inst_loss, _LOSSES, "inst_loss")
        att_dim = _SIZES[check_choice(size, _SIZES, "size")]
        self.subtyping, self.k, self.bag_weight = subtyping, k, _share(bag_weight)
        classes = max(2, n_classes)
        self.one_logit, self.n_classes = n_classes == 1, n_classes
        self.embed = nn.Linear(in_dim, dim)
        self.drop = nn.Dropout(dropout)
        self.attention = GatedAttention(dim, att_dim, classes if self.multi else 1, dropout=0.25 if dropout else 0.0)
        self.head = nn.Linear(dim, classes if self.multi else n_classes)
        self.instance_heads = nn.ModuleList(nn.Linear(dim, 2) for _ in range(classes))
        readers = (self.attention.project, self.attention.gate, *self.instance_heads)
        self.sm = SmoothAt(sm, {"early": readers, "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        h = self.sm("early", self.drop(self.embed(batch.x.to(dtype)).relu()), batch)
        scores = self.sm("late", self.attention(h).to(dtype), batch)
        z = weighted_sums(h, segment_softmax(scores, batch.offsets), batch.offsets)
        losses = {}
        if self.training and own_target(self) is None:
            losses = {"instance": (1 - self.bag_weight) * self._instance_loss(h, scores, batch)}
        return self._output(z, scores, losses)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        def embedded(x: Tensor) -> Tensor:
            h: Tensor = self.embed(x).relu()
            return h

        attention, weigh = self.attention, self.sm.across
        if self.sm.where == "early":
            seen = layers_in_blocks(self.sm, [attention.project, attention.gate], embedded, blocks, batch)
            parts = zip(*(t.split(blocks.size) for t in seen), strict=True)
            logits = torch.cat([attention.score(v.tanh() * gate.sigmoid()) for v, gate in parts])
        else:
            logits = blocks.map(lambda x: attention(embedded(x)))
        scores = self.sm("late", logits, batch)
        z = blocks.weighted_sums(embedded, weigh("early", scores.softmax(0), batch))
        return self._output(z[None], scores, {})

    def _output(self, z: Tensor, scores: Tensor, losses: dict[str, Tensor]) -> Output:
        return Output(self._classify(z), scores[:, 1:] if self.multi and self.one_logit else scores, losses)

    def _classify(self, z: Tensor) -> Tensor:
        """Bag logits; with several branches each class reads its own bag vector."""
        if not self.multi:
            single: Tensor = self.head(z[:, 0])
            return single
        logits: Tensor = self.head(z).diagonal(dim1=1, dim2=2)
        return logits[:, 1:] - logits[:, :1] if self.one_logit else logits

    def _instance_loss(self, h: Tensor, scores: Tensor, batch: BagBatch) -> Tensor:
        """Mean over the bags; a bag of one instance counts with 0."""
        labels = need_labels(batch, self.n_classes).tolist()
        cases = zip(split_bags(h, batch.offsets), split_bags(scores.detach(), batch.offsets), labels, strict=True)
        return torch.stack([self._cluster(*case) for case in cases]).mean()

    def _cluster(self, h: Tensor, scores: Tensor, label: int) -> Tensor:
        """Loss of the instance classifiers on the most and the least attended instances of one bag."""
        k = min(self.k, len(h) // 2)
        total = h.new_zeros((), dtype=compute_dtype(self))
        if k == 0:
            return total
        # One sort for both ends: with equal scores, two searches could name the same instance at either end.
        order = scores.argsort(dim=0, descending=True, stable=True).T.expand(len(self.instance_heads), -1)
        for c, (head, ranked) in enumerate(zip(self.instance_heads, order, strict=True)):
            if c == label:
                total = total + self._judge(head, h[torch.cat([ranked[:k], ranked[-k:]])], positives=k)
            elif self.subtyping:
                total = total + self._judge(head, h[ranked[:k]], positives=0)
        return total / len(self.instance_heads) if self.subtyping else total

    def _judge(self, head: nn.Module, rows: Tensor, positives: int) -> Tensor:
        """Loss of one instance classifier on rows of which the first `positives` belong to its class."""
        target = (torch.arange(len(rows), device=rows.device) < positives).long()
        return _LOSSES[self.inst_loss](head(rows).to(compute_dtype(self)), target)


def _share(bag_weight: float) -> float:
    if not 0 <= bag_weight <= 1:
        raise ConfigError(f"bag_weight must lie in [0, 1], got {bag_weight}")
    return bag_weight
