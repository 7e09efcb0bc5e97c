"""DTFD-MIL (Zhang, Meng, Zhao, Qiao, Yang, Coupland, Zheng, CVPR 2022, arXiv:2203.12081)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output, need_labels
from smmil.nn.attention import GatedAttention, weighted_sums
from smmil.nn.pseudo_bags import (
    Cut,
    against_the_others,
    average_probabilities,
    cut_bags,
    extreme_rows,
    fixed_orders,
    last_class_log_odds,
    random_orders,
)
from smmil.nn.segment import segment_ids, segment_mean, segment_softmax
from smmil.nn.smooth_at import SmoothAt

DISTILL = ("afs", "maxs", "maxmins", "mas")
SCORES = {"class_activation": "class activation", "instance": "instance logit"}


class DTFDMIL(nn.Module):
    """Cut a bag at random into pseudo-bags, classify each by attention, then classify the bag from what they yield.

    Tier 1 embeds the instances, pools every pseudo-bag by gated attention and classifies it; each pseudo-bag inherits
    the label of its bag (term `tier1` of the losses). It hands a few vectors per pseudo-bag to tier 2, a second
    attention pool with its own classifier, whose logits are those of the bag.

    distill          afs: the pooled vector; maxs: the k instances of highest class activation; maxmins: and the k
                     lowest; mas: the k of highest attention (described in the article, absent from its code)
    pseudo_bags      how many (M); a bag with fewer instances has as many as instances
    k                instances per pseudo-bag; afs takes none, so it leaves k at 1
    joint            False: tier 2 does not train tier 1, as the authors' two optimisers work out; True: it does
    splits           in eval mode the bag's probability is the mean over this many cuts, which depend on the number of
                     instances alone; training draws one cut from torch's global generator
    score            class_activation: N·a_n⟨W₁-W₀, h_n⟩, W the tier-1 classifier, a the attention over the whole bag
                     as one pseudo-bag; instance: ⟨W₁-W₀, h_n⟩
    residual_blocks  extra layers h + relu(B relu(A h)) in the embedding
    sm               SmDTFD: {where: early} smooths the embedded instances inside each pseudo-bag, over the edges that
                     lie in it, with degrees counted anew (a random cut leaves few: a quarter for 4 pseudo-bags), and
                     over the whole bag for the scores; {where: bag} once over the whole bag, before the cut;
                     {where: late} the attention logits of tier 1, over the whole bag; other options as in `SmoothAt`

    Scores come from tier 1 and do not depend on the cut. The factor N makes them comparable between bags of different
    size; their mean over a bag is its tier-1 logit without the bias. With C > 1 classes there is one column per class,
    its W against the mean of the others (two classes: ±(W₁-W₀)). maxs and maxmins look at the last class.

    Bag logits depend a little on the order in which instances are stored, through the cut; scores do not.

    The authors clip the gradient of four modules separately, which `before_step` does in the training loop:
    `clip_modules` names them (together they hold every parameter but Sm's), `clip_norm_per_module` is the largest norm
    for each.

    Cost: n × dim memory and time; nothing grows with n².
    """

    score_kind = SCORES["class_activation"]
    clip_norm_per_module = 5.0
    clip_modules = ("embed", "attention", "classifier", "tier2")

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 128,
        distill: str = "afs",
        pseudo_bags: int = 4,
        k: int = 1,
        joint: bool = False,
        splits: int = 1,
        score: str = "class_activation",
        residual_blocks: int = 0,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.distill = check_choice(distill, DISTILL, "distill")
        self.score = check_choice(score, SCORES, "score")
        self.score_kind = SCORES[score]
        self.pseudo_bags = _at_least(1, pseudo_bags, "pseudo_bags")
        self.k = _at_least(1, k, "k")
        self.splits = _at_least(1, splits, "splits")
        self.joint, self.n_classes = joint, n_classes
        if distill == "afs" and k != 1:
            raise ConfigError(f"k={k} has no effect with distill=afs; leave it out, or choose maxs, maxmins or mas")
        blocks = [_Residual(dim) for _ in range(_at_least(0, residual_blocks, "residual_blocks"))]
        self.embed = nn.Sequential(nn.Linear(in_dim, dim, bias=False), nn.ReLU(), *blocks)
        self.attention = GatedAttention(dim, att_dim)
        self.classifier = nn.Linear(dim, n_classes)
        self.tier2 = _Tier2(dim, att_dim, n_classes)
        readers = (self.attention.project, self.attention.gate)
        self.sm = SmoothAt(sm, {"early": readers, "bag": readers, "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        h = self.sm("bag", self.embed(batch.x.to(self.classifier.weight.dtype)), batch)
        rows = self._judge(self.sm("early", h, batch), batch)
        scores = self._scores(rows, batch.offsets)
        if not self.training:
            return Output(self._mean_over_cuts(h, rows, batch), scores)
        cut = cut_bags(random_orders(batch.sizes), self.pseudo_bags, h.device)
        logits, pseudo_logits = self._both_tiers(self._inside(cut, h, rows, batch), cut)
        y = need_labels(batch, self.n_classes)
        return Output(logits, scores, {"tier1": _pseudo_bag_loss(pseudo_logits, y, cut.bags)})

    def before_step(self) -> None:
        """Clip the gradient of each module by itself."""
        for name in self.clip_modules:
            nn.utils.clip_grad_norm_(self.get_submodule(name).parameters(), self.clip_norm_per_module)

    def _judge(self, h: Tensor, batch: BagBatch) -> "_Rows":
        dtype = self.classifier.weight.dtype
        f = self.sm("late", self.attention(h).to(dtype), batch)
        return _Rows(h, f, F.linear(h, self.classifier.weight).to(dtype))

    def _inside(self, cut: Cut, h: Tensor, rows: "_Rows", batch: BagBatch) -> "_Rows":
        """The instances as tier 1 sees them in their pseudo-bags: other than in the bag only if smoothed there."""
        if self.sm.where != "early":
            return rows
        pseudo_bag = torch.empty_like(cut.order)
        pseudo_bag[cut.order] = segment_ids(cut.offsets)
        return self._judge(self.sm("early", h, batch.need("graph").within(pseudo_bag)), batch)

    def _scores(self, rows: "_Rows", offsets: Tensor) -> Tensor:
        contrast = against_the_others(rows.evidence)
        if self.score == "instance":
            return contrast
        n = offsets.diff()[segment_ids(offsets)][:, None]
        return n * segment_softmax(rows.f, offsets) * contrast

    def _mean_over_cuts(self, h: Tensor, rows: "_Rows", batch: BagBatch) -> Tensor:
        orders = zip(*(fixed_orders(n, self.splits) for n in batch.sizes), strict=True)
        cuts = [cut_bags(order, self.pseudo_bags, h.device) for order in orders]
        found = [self._both_tiers(self._inside(cut, h, rows, batch), cut)[0] for cut in cuts]
        return average_probabilities(torch.stack(found))

    def _both_tiers(self, rows: "_Rows", cut: Cut) -> tuple[Tensor, Tensor]:
        """Logits of the bags (b, c), and of the pseudo-bags (p, c)."""
        h, f, evidence = rows
        a = segment_softmax(f[cut.order], cut.offsets)
        z = weighted_sums(h.index_select(0, cut.order), a, cut.offsets)[:, 0]
        if self.distill == "afs":
            tokens, offsets = z, cut.bags
        else:
            by = f[cut.order, 0] if self.distill == "mas" else last_class_log_odds(a * evidence[cut.order])
            tokens, offsets = self._selected(h, by, cut)
        return self.tier2(tokens if self.joint else tokens.detach(), offsets), self.classifier(z)

    def _selected(self, h: Tensor, by: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
        """The instances that stand out in their pseudo-bag, and where those of each bag start."""
        rows, counts = extreme_rows(by, cut.offsets, self.k, lowest=self.distill == "maxmins")
        ends = F.pad(counts.cumsum(0), (1, 0))
        return h.index_select(0, cut.order[rows]), ends[cut.bags]


class _Rows(NamedTuple):
    """Instances of tier 1: embedded (n, d), their attention logits (n, 1), the classifier on each of them (n, c)."""

    h: Tensor
    f: Tensor
    evidence: Tensor


class _Tier2(nn.Module):
    """Gated attention over the distilled vectors of each bag, and a classifier of their average."""

    def __init__(self, dim: int, att_dim: int, n_classes: int):
        super().__init__()
        self.attention = GatedAttention(dim, att_dim)
        self.classifier = nn.Linear(dim, n_classes)

    def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        f = self.attention(tokens).to(self.classifier.weight.dtype)
        return self.classifier(weighted_sums(tokens, segment_softmax(f, offsets), offsets)[:, 0])


class _Residual(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.inner = nn.Linear(dim, dim, bias=False)
        self.outer = nn.Linear(dim, dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.outer(self.inner(h).relu()).relu()


def _pseudo_bag_loss(logits: Tensor, y: Tensor, bags: Tensor) -> Tensor:
    """Cross-entropy of every pseudo-bag against the label of its bag: mean over each bag's, then over the bags."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    inherited = y[segment_ids(bags)]
    if logits.shape[1] == 1:
        each = F.binary_cross_entropy_with_logits(logits[:, 0], inherited.to(logits.dtype), reduction="none")
    else:
        each = F.cross_entropy(logits, inherited, reduction="none")
    return segment_mean(each, bags).mean()


def _at_least(least: int, value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what} must be a whole number >= {least}, got {value!r}")
    return value
