"""SmInstance: the smooth operator on instance logits, and a bag that is pooled from them."""

import math

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output
from smmil.nn.blocks import RowBlocks
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import segment_mean, segment_sum, split_bags
from smmil.nn.smooth import Sm

_POOLS = ("mean", "log_sum_exp", "noisy_or")


def _log_mean_exp(logits: Tensor, offsets: Tensor, sharpness: float) -> Tensor:
    """(1/r) log mean exp(r s) over each bag and column: the mean for r → 0, the maximum for r → ∞."""
    parts = [(part * sharpness).logsumexp(0) for part in split_bags(logits, offsets)]
    counts = segment_sum(torch.ones_like(logits[:, :1]), offsets)
    return (torch.stack(parts) - counts.log()) / sharpness


def _noisy_or(logits: Tensor, offsets: Tensor) -> Tensor:
    """Log-odds that at least one instance of a bag is positive, instances being positive independently with σ(s).

    With q = Σ softplus(s), the bag is negative with probability e^-q and its log-odds are log(e^q - 1), written so that
    neither end loses digits.
    """
    q = segment_sum(nn.functional.softplus(logits), offsets)
    least = torch.finfo(q.dtype).tiny
    small = torch.expm1(q.clamp(min=least, max=1.0)).log()
    return torch.where(q < 1, small, q + torch.log1p(-torch.exp(-q.clamp(min=1.0))))


class SmInstance(nn.Module):
    """Classify each instance, smooth the logits over the graph, pool the smooth map into those of the bag.

    pool           mean: of the logits; log_sum_exp: (1/r) log mean exp(r s), between mean and maximum; noisy_or: a bag
                   is positive if any instance is, each with probability σ(s) by itself
    sharpness      r of log_sum_exp
    prior          probability that noisy_or starts with for an instance; a bag of n instances starts near n · prior
    alpha, steps, normalization, isolated   those of Sm; rw keeps constants: smoothing moves evidence and does not
                   weaken it
    Scores are the smoothed instance logits, one map per class: the bag knows nothing but this map. With several classes
    each is pooled by itself, and the pooled values are the logits of a softmax. Memory and time grow with n.
    """

    score_kind = "instance logit"

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        pool: str = "log_sum_exp",
        sharpness: float = 1.0,
        prior: float = 0.01,
        alpha: float | str = "learned",
        steps: int | str = 10,
        normalization: str = "rw",
        isolated: str = "keep",
    ):
        super().__init__()
        self.pool = check_choice(pool, _POOLS, "pool")
        if isinstance(sharpness, str) or not 0 < sharpness < math.inf:
            raise ConfigError(f"sharpness must be a number above 0, got {sharpness!r}")
        if isinstance(prior, str) or not 0 < prior < 1:
            raise ConfigError(f"prior must be a number between 0 and 1, got {prior!r}")
        self.sharpness = sharpness
        self.embed = nn.Linear(in_dim, dim)
        self.head = nn.Linear(dim, n_classes)
        self.sm = Sm(alpha, steps, normalization=normalization, isolated=isolated)
        if pool == "noisy_or":
            nn.init.constant_(self.head.bias, math.log(prior / (1 - prior)))

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        h = self.embed(batch.x.to(dtype)).relu()
        scores = self.sm(self.head(h).to(dtype), batch.need("graph"))
        return Output(self._pooled(scores, batch.offsets), scores)

    def in_blocks(self, blocks: RowBlocks, batch: BagBatch) -> Output:
        scores = self.sm(blocks.map(lambda x: self.head(self.embed(x).relu())), batch.need("graph"))
        return Output(self._pooled(scores, batch.offsets), scores)

    def bag_vectors(self, h: Tensor, batch: BagBatch) -> Tensor:
        """The mean of the smoothed embedded instances; with pool=mean the head of it gives the logits."""
        return segment_mean(self.sm(h, batch.need("graph")), batch.offsets)

    def _pooled(self, scores: Tensor, offsets: Tensor) -> Tensor:
        if self.pool == "mean":
            return segment_mean(scores, offsets)
        if self.pool == "noisy_or":
            return _noisy_or(scores, offsets)
        return _log_mean_exp(scores, offsets, self.sharpness)
