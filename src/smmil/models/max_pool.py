"""Max pooling: a bag is as suspicious as its most suspicious instance."""

from torch import nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn.segment import segment_argmax


class MaxPool(nn.Module):
    """Classify each embedded instance; the bag's logit of a class is the largest of its instances.

    Scores are instance logits (one map per class when there are several classes).
    """

    score_kind = "instance logit"

    def __init__(self, in_dim: int, n_classes: int = 1, *, dim: int = 512):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        scores = self.head(self.embed(batch.x.to(self.embed.weight.dtype)).relu())
        return Output(scores.gather(0, segment_argmax(scores, batch.offsets)), scores)
