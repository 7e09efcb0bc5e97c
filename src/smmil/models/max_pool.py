"""Max pooling: the bag logit is the largest of the instance logits."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn.blocks import RowBlocks, layers_in_blocks
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import segment_argmax
from smmil.nn.smooth_at import SmoothAt


class MaxPool(nn.Module):
    """Classify each embedded instance; the bag's logit of a class is the largest of its instances.

    Scores are instance logits (one map per class when there are several classes). sm: {where: early} smooths the
    embedded instances, {where: late} the logits; other options as in `SmoothAt`.
    """

    score_kind = "instance logit"

    def __init__(self, in_dim: int, n_classes: int = 1, *, dim: int = 512, sm: Mapping[str, Any] | None = None):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.head = nn.Linear(dim, n_classes)
        self.sm = SmoothAt(sm, {"early": (), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        h = self.sm("early", self.embed(batch.x.to(compute_dtype(self))).relu(), batch)
        return self._pooled(self.head(h), batch)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        (logits,) = layers_in_blocks(self.sm, [self.head], lambda x: self.embed(x).relu(), blocks, batch)
        return self._pooled(logits, batch)

    def _pooled(self, logits: Tensor, batch: BagBatch) -> Output:
        scores = self.sm("late", logits.to(compute_dtype(self)), batch)
        return Output(scores.gather(0, segment_argmax(scores, batch.offsets)), scores)

    def bag_vectors(self, h: Tensor, batch: BagBatch) -> Tensor:
        """The embedded instance whose logit is the bag's, class after class."""
        scores = self.sm("late", self.head(h).to(compute_dtype(self)), batch)
        return h[segment_argmax(scores, batch.offsets)].flatten(1)
