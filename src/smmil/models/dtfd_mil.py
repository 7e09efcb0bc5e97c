"""DTFD-MIL (Zhang, Meng, Zhao, Qiao, Yang, Coupland, Zheng, CVPR 2022, arXiv:2203.12081)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import Output, need_labels, own_target
from smmil.nn.parameters import compute_dtype, linear_bias
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_ids, segment_mean, segment_softmax, split_bags
from smmil.nn.smooth_at import SmoothAt

_DISTILL = ("afs", "maxs", "maxmins", "mas")
_SCORES = {"class_activation": "class activation", "instance": "instance logit"}


class DTFDMIL(nn.Module):
    """Attention pooling in two tiers: over random pseudo-bags, then over the vectors distilled from each of them.

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
                     lie in it, with degrees recomputed (a random cut leaves few: a quarter for 4 pseudo-bags), and
                     over the whole bag for the scores; {where: bag} once over the whole bag, before the cut;
                     {where: late} the attention logits of tier 1, over the whole bag; other options as in `SmoothAt`

    Scores come from tier 1 and do not depend on the cut. The factor N makes them comparable between bags of different
    size; their mean over a bag is its tier-1 logit without the bias. With C > 1 classes there is one column per class,
    its W against the mean of the others (two classes: ±(W₁-W₀)). maxs and maxmins use the last class.

    Bag logits depend a little on the order in which instances are stored, through the cut; scores do not.

    The authors clip the gradient of four modules separately, which `before_step` does in the training loop:
    `clip_modules` names them (together they hold every parameter but Sm's), `clip_norm_per_module` is the largest norm
    for each.

    Cost: n × dim memory and time; nothing grows with n².
    """

    score_kind = _SCORES["class_activation"]
    head_name = "tier2.classifier"
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
        self.distill = check_choice(distill, _DISTILL, "distill")
        self.score = check_choice(score, _SCORES, "score")
        self.score_kind = _SCORES[score]
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
        h = self.sm("bag", self.embed(batch.x.to(compute_dtype(self))), batch)
        rows = self._judge(self.sm("early", h, batch), batch)
        scores = self._scores(rows, batch.offsets)
        if not self.training:
            return Output(self._mean_over_cuts(h, rows, batch), scores)
        cut = _cut_bags(_random_orders(batch.sizes), self.pseudo_bags, h.device)
        logits, pseudo_logits = self._both_tiers(self._inside(cut, h, rows, batch), cut)
        return Output(logits, scores, {"tier1": self._tier1_loss(pseudo_logits, batch, cut.bags)})

    def _tier1_loss(self, logits: Tensor, batch: BagBatch, bags: Tensor) -> Tensor:
        """Loss of the pseudo-bags (p, c), each of which inherits what is known of its bag."""
        if (target := own_target(self)) is not None:
            return target.inherited_loss(logits, target.known(batch), segment_ids(bags))
        return _pseudo_bag_loss(logits, need_labels(batch, self.n_classes), bags)

    def before_step(self) -> None:
        """Clip the gradient of each module by itself."""
        for name in self.clip_modules:
            nn.utils.clip_grad_norm_(self.get_submodule(name).parameters(), self.clip_norm_per_module)

    def _judge(self, h: Tensor, batch: BagBatch) -> "_Rows":
        dtype = compute_dtype(self)
        f = self.sm("late", self.attention(h).to(dtype), batch)
        return _Rows(h, f, (self.classifier(h) - linear_bias(self.classifier)).to(dtype))

    def _inside(self, cut: "_PseudoBags", h: Tensor, rows: "_Rows", batch: BagBatch) -> "_Rows":
        """The instances as tier 1 sees them in their pseudo-bags: other than in the bag only if smoothed there."""
        if self.sm.where != "early":
            return rows
        pseudo_bag = torch.empty_like(cut.order)
        pseudo_bag[cut.order] = segment_ids(cut.offsets)
        return self._judge(self.sm("early", h, batch.need("graph").within(pseudo_bag)), batch)

    def _scores(self, rows: "_Rows", offsets: Tensor) -> Tensor:
        contrast = _contrast_to_others(rows.evidence) if own_target(self) is None else rows.evidence
        if self.score == "instance":
            return contrast
        n = offsets.diff()[segment_ids(offsets)][:, None]
        return n * segment_softmax(rows.f, offsets) * contrast

    def _mean_over_cuts(self, h: Tensor, rows: "_Rows", batch: BagBatch) -> Tensor:
        orders = zip(*(_fixed_orders(n, self.splits) for n in batch.sizes), strict=True)
        cuts = [_cut_bags(order, self.pseudo_bags, h.device) for order in orders]
        found = [self._both_tiers(self._inside(cut, h, rows, batch), cut)[0] for cut in cuts]
        return _average_probabilities(torch.stack(found)) if own_target(self) is None else torch.stack(found).mean(0)

    def _both_tiers(self, rows: "_Rows", cut: "_PseudoBags") -> tuple[Tensor, Tensor]:
        """Logits of the bags (b, c), and of the pseudo-bags (p, c)."""
        h, f, evidence = rows
        a = segment_softmax(f[cut.order], cut.offsets)
        z = weighted_sums(h.index_select(0, cut.order), a, cut.offsets)[:, 0]
        if self.distill == "afs":
            tokens, offsets = z, cut.bags
        else:
            by = f[cut.order, 0] if self.distill == "mas" else self._leading(a * evidence[cut.order])
            tokens, offsets = self._selected(h, by, cut)
        kept = self.joint or not self.training  # in use a gradient is that of the whole function
        return self.tier2(tokens if kept else tokens.detach(), offsets), self.classifier(z)

    def _leading(self, activation: Tensor) -> Tensor:
        """What instances (n,) are ranked by for maxs and maxmins: the last class, or the map of another target."""
        target = own_target(self)
        return _last_class_log_odds(activation) if target is None else target.maps(activation).amax(1)

    def _selected(self, h: Tensor, by: Tensor, cut: "_PseudoBags") -> tuple[Tensor, Tensor]:
        """The instances that stand out in their pseudo-bag, and where those of each bag start."""
        rows, counts = _extreme_rows(by, cut.offsets, self.k, lowest=self.distill == "maxmins")
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
        f = self.attention(tokens).to(compute_dtype(self))
        logits: Tensor = self.classifier(weighted_sums(tokens, segment_softmax(f, offsets), offsets)[:, 0])
        return logits


class _Residual(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.inner = nn.Linear(dim, dim, bias=False)
        self.outer = nn.Linear(dim, dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        added: Tensor = self.outer(self.inner(h).relu()).relu()
        return h + added


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


@dataclass(frozen=True)
class _PseudoBags:
    """The rows of a packed tensor, regrouped by pseudo-bag.

    order    (n,) row numbers: pseudo-bag after pseudo-bag, those of the first bag first
    offsets  (p+1) start of every pseudo-bag in `order`
    bags     (b+1) start of every bag in the list of pseudo-bags
    """

    order: Tensor
    offsets: Tensor
    bags: Tensor


def _even_sizes(n: int, parts: int) -> list[int]:
    """Sizes of `parts` pieces of n instances that differ by at most one, larger ones first; never an empty piece."""
    parts = min(parts, n)
    small, rest = divmod(n, parts)
    return [small + 1] * rest + [small] * (parts - rest)


def _cut_bags(orders: Iterable[Tensor], parts: int, device: torch.device | str = "cpu") -> _PseudoBags:
    """Cut every bag, its instances in the given order (a permutation per bag), into at most `parts` pseudo-bags."""
    orders = list(orders)
    starts = [0, *accumulate(len(order) for order in orders)]
    pieces = [_even_sizes(len(order), parts) for order in orders]
    order = torch.cat([order + start for order, start in zip(orders, starts[:-1], strict=True)])
    offsets = torch.tensor([0, *accumulate(size for piece in pieces for size in piece)])
    bags = torch.tensor([0, *accumulate(len(piece) for piece in pieces)])
    return _PseudoBags(order.to(device), offsets.to(device), bags.to(device))


def _random_orders(sizes: Sequence[int]) -> list[Tensor]:
    """A random order for every bag, from torch's global generator."""
    return [torch.randperm(n) for n in sizes]


def _fixed_orders(n: int, count: int) -> list[Tensor]:
    """`count` shuffled orders of n instances that depend on n alone; fewer are the first of more."""
    generator = torch.Generator().manual_seed(n)
    return [torch.randperm(n, generator=generator) for _ in range(count)]


def _extreme_rows(values: Tensor, offsets: Tensor, k: int, *, lowest: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of the k largest values (n,) of every segment, and with `lowest` of the k smallest after them.

    A segment shorter than k gives all it has; one shorter than 2k gives its middle twice, as largest and as smallest.
    Returns the row numbers and how many each segment gave (p,).
    """
    rows = []
    for part, start in zip(split_bags(values.detach(), offsets), offsets[:-1], strict=True):
        ranked = part.argsort(descending=True, stable=True) + start
        rows.append(torch.cat([ranked[:k], ranked[-k:]]) if lowest else ranked[:k])
    return torch.cat(rows), torch.tensor([len(r) for r in rows], device=offsets.device)


def _last_class_log_odds(logits: Tensor) -> Tensor:
    """log p/(1-p) (n,) of the last class: the logit itself if there is one, else last minus log Σ exp of the others."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, -1] - logits[:, :-1].logsumexp(1)


def _contrast_to_others(logits: Tensor) -> Tensor:
    """Every column minus the mean of the others: what a softmax can see. Two columns: ± their difference."""
    c = logits.shape[1]
    return logits if c == 1 else (c * logits - logits.sum(1, keepdim=True)) / (c - 1)


def _average_probabilities(logits: Tensor) -> Tensor:
    """Logits (b, c) whose probabilities are the mean of those of logits (s, b, c); one of them is returned as it is."""
    if len(logits) == 1:
        return logits[0]
    if logits.shape[2] == 1:
        return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)
    return logits.log_softmax(2).logsumexp(0) - math.log(len(logits))
