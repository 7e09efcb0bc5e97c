"""SmTAP: transformer and attention pooling, both with the smooth operator (arXiv:2410.03276, section 4.3)."""

from typing import Any

from torch import nn

from smmil.bag import BagBatch
from smmil.errors import check_choice
from smmil.models import Output
from smmil.nn import AttentionPool, SmAttentionPool
from smmil.nn.transformer import TransformerEncoder

VARIANTS = ("both", "encoder", "pool", "none")


class SmTAP(nn.Module):
    """Global interactions from a transformer, local ones from Sm: in its layers, in the pool, or in both.

    smooth      both (SmTAP, the paper's ST+SAP), encoder (ST+AP), pool (T+SAP), none (T+AP)
    sm_encoder  layers: Sm on the attended values of every layer (the paper's equation); output: one behind the encoder
    where       place of Sm in the pool: early, mid or late
    alpha       strength in [0, 1), or "learned": one scalar per Sm, each starting at 0.5
    trans_dim, head_dim, mlp, norm as in transformer_abmil.
    Scores are attention logits after smoothing. Never builds an n × n matrix; time grows with n².
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
        smooth: str = "both",
        sm_encoder: str = "layers",
        where: str = "early",
        alpha: float | str = "learned",
        steps: int | str = 10,
        spectral_norm: bool = True,
        normalization: str = "sym",
        trans_dim: int = 128,
        layers: int = 2,
        heads: int = 8,
        head_dim: int | None = None,
        mlp: bool = True,
        norm: str = "pre",
        gated: bool = False,
    ):
        super().__init__()
        check_choice(smooth, VARIANTS, "smooth")
        check_choice(sm_encoder, ("layers", "output"), "sm_encoder")
        operator: dict[str, Any] = {"alpha": alpha, "steps": steps, "normalization": normalization}
        shape: dict[str, Any] = {
            "dim": trans_dim,
            "layers": layers,
            "heads": heads,
            "head_dim": head_dim,
            "mlp": mlp,
            "norm": norm,
        }
        inside = sm_encoder if smooth in ("both", "encoder") else None
        self.encoder = TransformerEncoder(in_dim, dim, smooth=inside, **shape, **operator)
        self.needs_graph = smooth != "none"
        self.smooth_pool = smooth in ("both", "pool")
        self.pool: AttentionPool
        if self.smooth_pool:
            self.pool = SmAttentionPool(dim, att_dim, where=where, spectral_norm=spectral_norm, gated=gated, **operator)
        else:
            self.pool = AttentionPool(dim, att_dim, gated=gated, spectral_norm=spectral_norm)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        graph = batch.need("graph") if self.needs_graph else None
        h = self.encoder(batch.x, batch.offsets, graph)
        z, scores = self.pool(h, batch.offsets, *([graph] if self.smooth_pool else []))
        return Output(self.head(z), scores)
