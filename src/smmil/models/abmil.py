"""ABMIL (Ilse, Tomczak, Welling, 2018, arXiv:1802.04712)."""

from torch import nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn.blocks import RowBlocks
from smmil.nn.pool import AttentionPool, embed_and_pool, pool_in_blocks


class ABMIL(nn.Module):
    """Embed each instance, average the bag by learned attention, classify the average.

    Scores are attention logits: comparable across bags, unlike softmaxed weights. Widths and the single tanh layer are
    those of the Sm paper's protocol; `gated` is the gated attention of the ABMIL article.
    """

    score_kind = "attention logit"
    reads_half = True

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 100,
        gated: bool = False,
        att_bias: bool = True,
        spectral_norm: bool = False,
    ):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.pool = AttentionPool(dim, att_dim, gated=gated, bias=att_bias, spectral_norm=spectral_norm)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        z, scores = embed_and_pool(self.embed, self.pool, batch.x, batch.offsets)
        return Output(self.head(z), scores)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        z, scores = pool_in_blocks(self.embed, self.pool, blocks)
        return Output(self.head(z), scores)
