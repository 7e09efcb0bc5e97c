"""ACMIL (Zhang, Li, Sun, Zheng, Zhu, Yang, ECCV 2024, arXiv:2311.07125)."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output, need_labels, own_target
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_softmax, split_bags
from smmil.nn.smooth_at import SmoothAt
from smmil.sparse import without_autocast

_SCORES = {"mean": "attention logit", "bag": "log attention"}
_MASKINGS = ("share", "each")


def _similarity(attention: Tensor, offsets: Tensor) -> Tensor:
    """Cosine between the attention (n, m) of two branches: mean over the pairs, then over the bags; needs m > 1."""
    with without_autocast(attention):
        products = weighted_sums(attention, attention, offsets)
        lengths = products.diagonal(dim1=1, dim2=2).sqrt()
        cosines = products / (lengths[:, :, None] * lengths[:, None, :])
        m = attention.shape[1]
        return ((cosines.sum((1, 2)) - m) / (m * (m - 1))).mean()


class ACMIL(nn.Module):
    """Several attention maps that must differ, each denied some of its favourite instances in training.

    branches          attention maps; each has a classifier of its own in training, the bag's reads their mean
    top_k, mask_share in training, of the `top_k` instances that a branch attends most, this share is masked at random
    masking           share: exactly the whole part of mask_share · top_k, as published; each: every one of them with
                      this probability, none if that would leave a branch without instances
    branch_weight     factor of the mean loss of the branches' classifiers
    diversity_weight  factor of the mean cosine between the attention of two branches
    score             mean: attention logits, averaged over the branches; bag: log(n a), a the attention with which the
                      bag is pooled, the mean of the branches' softmaxes: 0 for an average instance of any bag
    sm                {where: early} smooths the embedded instances; {where: late} the attention logits; other options
                      as in `SmoothAt`
    Scores never see the mask. Memory and time grow with n.
    """

    score_kind = _SCORES["mean"]

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 128,
        branches: int = 5,
        top_k: int = 10,
        mask_share: float = 0.6,
        masking: str = "share",
        branch_weight: float = 1.0,
        diversity_weight: float = 1.0,
        score: str = "mean",
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if isinstance(mask_share, str) or not 0 <= mask_share < 1:
            raise ConfigError(f"mask_share must be a number in [0, 1), got {mask_share!r}")
        for option, value in (("branch_weight", branch_weight), ("diversity_weight", diversity_weight)):
            if isinstance(value, str) or not 0 <= value < math.inf:
                raise ConfigError(f"{option} must be a number of at least 0, got {value!r}")
        self.score, self.masking = check_choice(score, _SCORES, "score"), check_choice(masking, _MASKINGS, "masking")
        self.score_kind = _SCORES[score]
        self.top_k, self.mask_share, self.n_classes = top_k, mask_share, n_classes
        self.branch_weight, self.diversity_weight = branch_weight, diversity_weight
        self.embed = nn.Linear(in_dim, dim, bias=False)
        self.attention = GatedAttention(dim, att_dim, branches)
        self.head = nn.Linear(dim, n_classes)
        alone = 0 if branches == 1 else branches  # one branch is the bag itself
        self.branch_heads = nn.ModuleList(nn.Linear(dim, n_classes) for _ in range(alone))
        self.sm = SmoothAt(sm, {"early": (self.attention.project, self.attention.gate), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        h = self.sm("early", self.embed(batch.x.to(dtype)).relu(), batch)
        f = self.sm("late", self.attention(h).to(dtype), batch)
        attention = segment_softmax(self._masked(f, batch.offsets) if self.training else f, batch.offsets)
        z = weighted_sums(h, attention, batch.offsets)
        losses = self._losses(z, attention, batch) if self.training and self.branch_heads else {}
        return Output(self.head(z.mean(1)), self._scores(f, batch), losses)

    def _scores(self, f: Tensor, batch: BagBatch) -> Tensor:
        if self.score == "mean":
            return f.mean(1, keepdim=True)
        parts = split_bags(f, batch.offsets)
        logs = torch.cat([part.log_softmax(0) + torch.ones_like(part[:, :1]).sum().log() for part in parts])
        return logs.logsumexp(1, keepdim=True) - math.log(f.shape[1])

    def _masked(self, f: Tensor, offsets: Tensor) -> Tensor:
        """Attention logits with -∞ for what each branch may not see in this step."""
        hidden = torch.cat([self._hidden(part) for part in split_bags(f.detach(), offsets)])
        return f.masked_fill(hidden, -math.inf)

    def _hidden(self, f: Tensor) -> Tensor:
        """Which instances of a bag (n, m) are masked, drawn from torch's global generator."""
        k = min(self.top_k, len(f))
        best, draw = f.topk(k, dim=0).indices, torch.rand(k, f.shape[1], device=f.device)
        hidden = torch.zeros_like(f, dtype=torch.bool)
        if self.masking == "share":
            chosen = best.gather(0, draw.argsort(0)[: int(k * self.mask_share)])
            return hidden.scatter(0, chosen, True)
        hidden = hidden.scatter(0, best, draw < self.mask_share)
        return hidden & ~hidden.all(0)

    def _losses(self, z: Tensor, attention: Tensor, batch: BagBatch) -> dict[str, Tensor]:
        said = torch.stack([head(z[:, m]) for m, head in enumerate(self.branch_heads)], 1).to(compute_dtype(self))
        return {
            "branches": self.branch_weight * self._branch_loss(said, batch),
            "diversity": self.diversity_weight * _similarity(attention, batch.offsets),
        }

    def _branch_loss(self, said: Tensor, batch: BagBatch) -> Tensor:
        """The bag loss of the logits (b, m, c) of every branch, averaged over both."""
        if (target := own_target(self)) is None:
            return _class_loss(said, need_labels(batch, self.n_classes))
        bag = torch.arange(len(said), device=said.device).repeat_interleave(said.shape[1])
        return target.inherited_loss(said.flatten(0, 1), target.known(batch), bag)


def _class_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the logits (b, m, c) of every branch against the label of its bag, averaged over both."""
    repeated = y.repeat_interleave(logits.shape[1])
    rows = logits.flatten(0, 1)
    if rows.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(rows[:, 0], repeated.to(rows.dtype))
    return nn.functional.cross_entropy(rows, repeated)
