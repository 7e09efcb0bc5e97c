"""ProbSmAP: attention pooling with the smooth operator as a posterior, whose scores know how sure they are."""

from torch import nn

from smmil.bag import BagBatch
from smmil.models import Output
from smmil.nn.parameters import compute_dtype
from smmil.nn.posterior import PosteriorAttentionPool


class ProbSmAP(nn.Module):
    """SmAP (late, exact) whose strength differs by instance: the more noise it has, the more its neighbours decide.

    noise          variance of each instance's own score: "learned" from its embedding, or one number, which is SmAP
                   (where=late, steps=exact) with alpha = noise · strength / (1 + noise · strength)
    strength       of the smooth prior: "learned" (starts at 1) or a number
    probes         solves for the deviations where the graph is too wide to have them exactly (see sm_posterior)
    normalization  sym (paper) or sym_loop              isolated  as in sm_ap
    Scores are posterior means of the attention logits, `uncertainty` their posterior standard deviation.
    """

    score_kind = "attention logit"
    reads_half = True
    gives_uncertainty = True

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 100,
        noise: float | str = "learned",
        strength: float | str = "learned",
        probes: int = 32,
        gated: bool = False,
        att_bias: bool = True,
        normalization: str = "sym",
        isolated: str = "keep",
    ):
        super().__init__()
        self.embed = nn.Linear(in_dim, dim)
        self.pool = PosteriorAttentionPool(
            dim,
            att_dim,
            noise=noise,
            strength=strength,
            probes=probes,
            gated=gated,
            bias=att_bias,
            normalization=normalization,
            isolated=isolated,
        )
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        h = self.embed(batch.x.to(compute_dtype(self.embed))).relu()
        wanted = self.gives_uncertainty and not self.training
        z, scores, deviation = self.pool(h, batch.offsets, batch.need("graph"), wanted)
        return Output(self.head(z), scores, uncertainty=deviation)
