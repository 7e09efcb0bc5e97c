"""Mean pooling: the simplest bag classifier, the baseline."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn.blocks import RowBlocks, layers_in_blocks
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import segment_mean
from smmil.nn.smooth_at import SmoothAt


class MeanPool(nn.Module):
    """Classify each embedded instance; the bag's logits are the mean.

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
        return Output(segment_mean(scores, batch.offsets), scores)

    def bag_vectors(self, h: Tensor, batch: BagBatch) -> Tensor:
        """The mean of the embedded instances, of which the head gives the bag's logits (unless Sm is late)."""
        return segment_mean(h, batch.offsets)
