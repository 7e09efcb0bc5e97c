"""Bayes-MIL (Cui, Liu, Liu, Liu, Wang, Kuo, Xue, Chan, ICLR 2023)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, softplus

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output, need_labels, own_target
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import segment_mean, segment_softmax, weighted_sum
from smmil.sparse import without_autocast

# Mean and variance of the attention logits of a negative and of a positive bag, as released.
_PRIOR_MEAN, _PRIOR_LOG_VARIANCE = (-5.0, 0.0), (-1.0, 3.0)
# The fit of Molchanov, Ashukha, Vetrov (2017, arXiv:1701.05369) to the divergence from the log-uniform prior.
_FIT = (0.63576, 1.87320, 1.48695)
_KINDS = ("total", "data", "model")


def _weight_divergence(log_alpha: Tensor) -> Tensor:
    """KL(N(w, α w²) ‖ log-uniform) of each weight, but for its constant: 0 for α → ∞, positive below."""
    k1, k2, k3 = _FIT
    return k1 * (1 - (k2 + k3 * log_alpha).sigmoid()) + softplus(-log_alpha) / 2


def _attention_divergence(mean: Tensor, log_variance: Tensor, positive: Tensor) -> Tensor:
    """KL (n, 1) between N(mean, variance) and the prior of the bag's kind: attention near 0 in negative bags.

    The same for the attention σ(f) itself, since the sigmoid is one-to-one.
    """
    prior_mean, prior_log = (
        torch.where(positive, mean.new_tensor(known[1]), mean.new_tensor(known[0]))
        for known in (_PRIOR_MEAN, _PRIOR_LOG_VARIANCE)
    )
    apart = (log_variance.exp() + (mean - prior_mean) ** 2) / prior_log.exp()
    return (apart - 1 + prior_log - log_variance) / 2


def _log_mean_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """log E[σ(f)] for f ~ N(mean, variance), by MacKay's approximation σ(mean / √(1 + π variance / 8))."""
    return logsigmoid(mean * (1 + math.pi / 8 * variance).rsqrt())


class _BayesLinear(nn.Linear):
    """A linear layer whose weights are N(w, α w²), α learned for each: variational dropout.

    In training every row meets weights drawn for it (local reparametrisation); in use all weights are their means.
    """

    def __init__(self, in_features: int, out_features: int, log_alpha: float):
        super().__init__(in_features, out_features)
        self.log_alpha = nn.Parameter(torch.full_like(self.weight, log_alpha))

    def forward(self, x: Tensor) -> Tensor:
        mean = super().forward(x)
        if not self.training:
            return mean
        with without_autocast(x):
            deviation = (self.variance(x.to(self.weight.dtype)) + 1e-12).sqrt()
            return mean + deviation * torch.randn_like(deviation)

    def variance(self, x: Tensor, spread: Tensor | None = None) -> Tensor:
        """Variance of the output from that of the weights and, where given, of independent inputs around x."""
        noisy = linear(x * x, self.log_alpha.exp() * self.weight**2)
        return noisy if spread is None else noisy + linear(spread, (1 + self.log_alpha.exp()) * self.weight**2)

    def divergence(self) -> Tensor:
        return _weight_divergence(self.log_alpha).sum()


class BayesMIL(nn.Module):
    """Attention as a random number in (0, 1) per instance, with weights that are distributions themselves.

    patch_weight   of the patch regularizer, the mean over the instances of KL(q(f_n) ‖ prior of the bag's kind), which
                   holds attention near 0 in negative bags; 0 switches it off
    weights_kl     factor of the divergence of the weights, summed over all of them
    crf            share in [0, 1) that the mean of its neighbours has in an instance's own mean; 0 is without, 0.38 the
                   published filter
    uncertainty    total; data: the variance that the network tells for an instance; model: that from its weights
    Scores are means of the attention logits f, `uncertainty` their standard deviation. In training one f and one set of
    weights is drawn per step; in use nothing is, and bags are pooled with the expected attention.
    """

    score_kind = "attention logit"
    reads_half = True
    gives_uncertainty = True
    class_terms = ("the patch regularizer, which knows attention in negative and in positive bags",)

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 256,
        dropout: float = 0.25,
        patch_weight: float = 0.01,
        weights_kl: float = 1e-6,
        crf: float = 0.0,
        uncertainty: str = "total",
    ):
        super().__init__()
        for option, value in (("patch_weight", patch_weight), ("weights_kl", weights_kl)):
            if isinstance(value, str) or not 0 <= value < math.inf:
                raise ConfigError(f"{option} must be a number of at least 0, got {value!r}")
        if isinstance(crf, str) or not 0 <= crf < 1:
            raise ConfigError(f"crf must be a number in [0, 1), got {crf!r}")
        self.kind = check_choice(uncertainty, _KINDS, "uncertainty")
        self.patch_weight, self.weights_kl, self.crf, self.n_classes = patch_weight, weights_kl, crf, n_classes
        self.embed = nn.Linear(in_dim, dim)
        self.drop = nn.Dropout(dropout)
        self.project = _BayesLinear(dim, att_dim, -4.0)
        self.gate = _BayesLinear(dim, att_dim, -4.0)
        self.score = _BayesLinear(att_dim, 2, -4.0)
        self.head = _BayesLinear(dim, n_classes, -3.0)

    def forward(self, batch: BagBatch) -> Output:
        h = self.drop(self.embed(batch.x.to(compute_dtype(self.embed))).relu())
        value, gate = self.project(h).tanh(), self.gate(h).sigmoid()
        parameters = self.score(value * gate).to(compute_dtype(self))
        own, log_variance = parameters[:, :1], parameters[:, 1:]
        mean = self._agreed(own, batch)
        if self.training:
            drawn = mean + (log_variance / 2).exp() * torch.randn_like(mean)
            return Output(self._classified(h, logsigmoid(drawn), batch), mean, self._losses(own, log_variance, batch))
        logits = self._classified(h, _log_mean_sigmoid(mean, log_variance.exp()), batch)
        deviation = self._deviation(h, value, gate, log_variance) if self.gives_uncertainty else None
        return Output(logits, mean, uncertainty=deviation)

    def _agreed(self, mean: Tensor, batch: BagBatch) -> Tensor:
        """The means after one step of agreement with the neighbours; those without any stay as they are."""
        if self.crf == 0:
            return mean
        neighbours: Tensor = batch.need("graph").normalized("rw").propagate(mean)
        return (1 - self.crf) * mean + self.crf * neighbours

    def _classified(self, h: Tensor, log_attention: Tensor, batch: BagBatch) -> Tensor:
        """Logits of the bags, pooled with the attention divided by its sum: the softmax of its logarithm."""
        weights = segment_softmax(log_attention, batch.offsets)
        logits: Tensor = self.head(weighted_sum(h, weights, batch.offsets))
        return logits

    def _losses(self, mean: Tensor, log_variance: Tensor, batch: BagBatch) -> dict[str, Tensor]:
        patches = {}
        if own_target(self) is None:
            positive = (need_labels(batch, self.n_classes) > 0).repeat_interleave(batch.offsets.diff())
            parts = segment_mean(_attention_divergence(mean, log_variance, positive[:, None]), batch.offsets)
            patches = {"patches": self.patch_weight * parts.mean()}
        layers = (self.project, self.gate, self.score, self.head)
        weights = torch.stack([layer.divergence() for layer in layers]).sum()
        return {**patches, "weights": self.weights_kl * weights}

    def _deviation(self, h: Tensor, value: Tensor, gate: Tensor, log_variance: Tensor) -> Tensor:
        """Standard deviation of f: variances through tanh and sigmoid to first order, through the rest exactly."""
        with torch.no_grad(), without_autocast(h):
            h, value, gate = (t.to(compute_dtype(self)) for t in (h, value, gate))
            shaken = (1 - value**2) ** 2 * self.project.variance(h)
            opened = (gate * (1 - gate)) ** 2 * self.gate.variance(h)
            spread = value**2 * opened + gate**2 * shaken + shaken * opened
            model = self.score.variance(value * gate, spread)[:, :1]
            data = log_variance.detach().exp()
            return {"total": data + model, "data": data, "model": model}[self.kind].sqrt()
