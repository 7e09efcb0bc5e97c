"""SmAP: attention pooling with the smooth operator (arXiv:2410.03276, section 4.3)."""

from torch import nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn.blocks import RowBlocks
from smmil.nn.pool import SmAttentionPool, embed_and_pool, pool_in_blocks


class SmAP(nn.Module):
    """ABMIL whose attention is smoothed over neighbouring instances, so that the attention map is spatially smooth.

    where          early: Sm on the embedded instances (pooled as well); mid: on the attention layer before its tanh;
                   late: on the scores themselves
    alpha          strength in [0, 1), or "learned" (starts at 0.5); 0 is ABMIL
    steps          rounds of smoothing, or "exact"
    spectral_norm  on the attention layers that follow Sm, as in the paper
    normalization  sym (paper), sym_loop, or rw (keeps constants, and the paper's inequalities hold)
    isolated       keep: patches without neighbours are left alone; shrink: they fade by 1 - alpha, as in torchmil
    Scores are attention logits after smoothing.
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
        where: str = "early",
        alpha: float | str = "learned",
        steps: int | str = 10,
        spectral_norm: bool = True,
        gated: bool = False,
        att_bias: bool = True,
        normalization: str = "sym",
        isolated: str = "keep",
    ):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.pool = SmAttentionPool(
            dim,
            att_dim,
            where=where,
            alpha=alpha,
            steps=steps,
            spectral_norm=spectral_norm,
            gated=gated,
            bias=att_bias,
            normalization=normalization,
            isolated=isolated,
        )
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        z, scores = embed_and_pool(self.embed, self.pool, batch.x, batch.offsets, batch.need("graph"))
        return Output(self.head(z), scores)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        z, scores = pool_in_blocks(self.embed, self.pool, blocks, batch.need("graph"))
        return Output(self.head(z), scores)
