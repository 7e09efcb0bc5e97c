"""T+AP: a transformer over the instances, then attention pooling (the plain variant in arXiv:2410.03276, table 3)."""

from torch import nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn import AttentionPool
from smmil.nn.transformer import TransformerEncoder


class TransformerABMIL(nn.Module):
    """Transformer over the instances of a bag, then attention pooling.

    trans_dim  width inside the transformer (the paper's key, query and value dimension, over all heads)
    head_dim   width of one head instead, for the reading "128 per head" (then set trans_dim=512)
    mlp, norm  alternative readings of the layer: without its MLP, or normalised after instead of before
    Scores are attention logits. Never builds an n × n matrix; time grows with n².
    """

    all_pairs = True
    score_kind = "attention logit"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 100,
        trans_dim: int = 128,
        layers: int = 2,
        heads: int = 8,
        head_dim: int | None = None,
        mlp: bool = True,
        norm: str = "pre",
        gated: bool = False,
        spectral_norm: bool = False,
    ):
        super().__init__()
        self.encoder = TransformerEncoder(
            in_dim, dim, dim=trans_dim, layers=layers, heads=heads, head_dim=head_dim, mlp=mlp, norm=norm
        )
        self.pool = AttentionPool(dim, att_dim, gated=gated, spectral_norm=spectral_norm)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        z, scores = self.pool(self.encoder(batch.x, batch.offsets), batch.offsets)
        return Output(self.head(z), scores)
