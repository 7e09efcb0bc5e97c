"""ProbSA (Castro-Macías, Morales-Álvarez, Wu, Molina, Katsaggelos, 2025, arXiv:2507.14932)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.graph import Graph
from smmil.models import Output, need_labels, own_target
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import AttentionPool, weighted_sums
from smmil.nn.segment import segment_mean, segment_softmax, segment_sum
from smmil.sparse import without_autocast


def _divergence(mean: Tensor, log_variance: Tensor | None, graph: Graph, strength: float, ridge: float) -> Tensor:
    """Each instance's part (n, 1) of KL(q ‖ p) for q = N(mean, diag σ²) and the prior p = N(0, Λ⁻¹) on its graph.

    ½[Λ_nn σ_n² + μ_n (Λμ)_n - 1 - log(strength σ_n²)] with Λ = strength (L + ridge I), L = I - P of the normalised
    graph: the divergence but for -½ log det (L + ridge I), which is the same for every q. Without a variance q is a
    point, and only ½ μ_n (Λμ)_n is left.
    """
    rough = strength * ((1 + ridge) * mean - graph.propagate(mean))
    if log_variance is None:
        return mean * rough / 2
    loops = graph.weight.to(mean.dtype) * (graph.rows == graph.indices)
    own = torch.zeros_like(mean[:, 0]).index_add(0, graph.rows, loops)
    precision = strength * (1 + ridge - own)[:, None]
    return (precision * log_variance.exp() + mean * rough - 1 - log_variance - math.log(strength)) / 2


def _log_likelihood(logits: Tensor, y: Tensor) -> Tensor:
    """log p(y | logits) (b, s) of labels y (b,), for logits (b, s, c)."""
    if logits.shape[-1] == 1:
        return logsigmoid(logits[..., 0] * (2 * y[:, None] - 1).to(logits.dtype))
    classes = y[:, None, None].expand(*logits.shape[:2], 1)
    return log_softmax(logits, -1).gather(-1, classes)[..., 0]


class _VariationalPool(AttentionPool):
    """Attention logits as a distribution: mean w·tanh(W h + b) as in ABMIL, log variance from the same units."""

    def __init__(self, dim: int, att_dim: int, *, spread: bool, gated: bool, bias: bool):
        super().__init__(dim, att_dim, gated=gated, bias=bias)
        self.log_variance = nn.Linear(att_dim, 1) if spread else None

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        v, gate = self.project(h), None if self.gate is None else self.gate(h)
        dtype = compute_dtype(self.score)
        with without_autocast(v):
            hidden = v.to(dtype).tanh() if gate is None else v.to(dtype).tanh() * gate.to(dtype).sigmoid()
            return self.score(hidden), None if self.log_variance is None else self.log_variance(hidden)


class ProbSmooth(nn.Module):
    """ABMIL with uncertain attention: a Gaussian per instance, trained by an evidence bound with a smooth prior.

    covariance  diag: a variance per instance; zero: none, which is ABMIL with the smoothness penalty on its scores
    strength    of the prior exp(-½ strength fᵀ(L + ridge)f); 2 is exp(-fᵀLf), the Dirichlet energy as published
    ridge       0 leaves the level of a map free, as published; more draws the logits to 0 and makes the prior proper
    kl_weight   factor of the divergence; kl_per instance divides it by the number of instances (as the authors'
                library); bag does not, which is the evidence bound to the letter: on large slides the prior decides
    samples     maps drawn per training step; the likelihood is averaged over them
    The graph is normalised as in sm_ap, but an instance without neighbours has its own prior N(0, 1 / strength).
    Scores are means of the attention logits, `uncertainty` their standard deviation. In use nothing is drawn, no graph
    is read, and attention is the softmax of the means.
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
        covariance: str = "diag",
        strength: float = 2.0,
        ridge: float = 0.0,
        kl_weight: float = 0.1,
        kl_per: str = "instance",
        samples: int = 16,
        gated: bool = False,
        att_bias: bool = True,
    ):
        super().__init__()
        for option, value in (("strength", strength), ("ridge", ridge), ("kl_weight", kl_weight)):
            if isinstance(value, str) or not 0 <= value < math.inf or (option == "strength" and value == 0):
                least = "above 0" if option == "strength" else "of at least 0"
                raise ConfigError(f"{option} must be a number {least}, got {value!r}")
        spread = check_choice(covariance, ("diag", "zero"), "covariance") == "diag"
        self.gives_uncertainty = spread
        self.strength, self.ridge, self.kl_weight, self.samples = strength, ridge, kl_weight, samples
        self.kl_per = check_choice(kl_per, ("instance", "bag"), "kl_per")
        self.n_classes = n_classes
        self.embed = nn.Linear(in_dim, dim)
        self.pool = _VariationalPool(dim, att_dim, spread=spread, gated=gated, bias=att_bias)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, batch: BagBatch) -> Output:
        h = self.embed(batch.x.to(compute_dtype(self.embed))).relu()
        mean, log_variance = self.pool(h)
        if not self.training:
            logits = self._classified(h, mean, batch.offsets)[:, 0]
            known = self.gives_uncertainty and log_variance is not None
            return Output(logits, mean, uncertainty=(log_variance / 2).exp().detach() if known else None)
        losses, maps = {"kl": self._kl(mean, log_variance, batch)}, mean
        if log_variance is not None:
            noise = torch.randn(mean.shape[0], self.samples, dtype=mean.dtype, device=mean.device)
            maps = mean + (log_variance / 2).exp() * noise
        logits = self._classified(h, maps, batch.offsets)
        average = logits.mean(1, keepdim=True)
        if logits.shape[1] > 1:
            losses["samples"] = self._excess(logits, average, batch)
        return Output(average[:, 0], mean, losses)

    def _excess(self, logits: Tensor, average: Tensor, batch: BagBatch) -> Tensor:
        """By how much the mean loss of the maps exceeds the loss of their mean logits, which training adds."""
        if (target := own_target(self)) is None:
            y = need_labels(batch, self.n_classes)
            return (_log_likelihood(average, y) - _log_likelihood(logits, y)).mean()
        known = target.known(batch)
        each = torch.stack([target.loss(one, known) for one in logits.unbind(1)])
        return each.mean() - target.loss(average[:, 0], known)

    def _classified(self, h: Tensor, maps: Tensor, offsets: Tensor) -> Tensor:
        """Logits (b, s, c) of the bags under each map of attention logits (n, s)."""
        pooled = weighted_sums(h, segment_softmax(maps, offsets).to(h.dtype), offsets)
        logits: Tensor = self.head(pooled)
        return logits.to(maps.dtype)

    def _kl(self, mean: Tensor, log_variance: Tensor | None, batch: BagBatch) -> Tensor:
        graph = batch.need("graph").normalized("sym", "shrink")
        parts = _divergence(mean, log_variance, graph, self.strength, self.ridge)
        over = segment_mean if self.kl_per == "instance" else segment_sum
        return self.kl_weight * over(parts, batch.offsets).mean()
