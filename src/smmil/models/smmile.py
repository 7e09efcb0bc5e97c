"""SMMILe (Gao, Mao, Dong, Clayton, Wu, Liu, Wang, He, Gong, Li, Crispin-Ortuzar, Nature Cancer 2025)."""

import hashlib
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.graph import Graph
from smmil.models import Output, need_labels, own_target
from smmil.models.gtp import _BatchNorm
from smmil.nn.parameters import compute_dtype
from smmil.nn.pool import GatedAttention, weighted_sums
from smmil.nn.segment import segment_softmax, split_bags
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.token_grid import lattice_step
from smmil.sparse import sum_by_row, without_autocast

_NORMS = ("batch", "layer", "none")
_CANDIDATES = ("instance", "superpatch")
_WEIGHTS = ("view_weight", "consistency_weight", "refine_weight", "mrf_weight")
_EQUAL = 1e-5  # relative difference up to which two terms of the energy are equal
_FEWEST = 10  # superpatches that a bag has at least, if it has as many instances


class _Judged(NamedTuple):
    """Attention logits f, log-probabilities log p and log(1 - p) of instances, one column per class."""

    f: Tensor
    log_p: Tensor
    log_q: Tensor

    def logits(self, hidden: Tensor | None = None) -> Tensor:
        """log Y/(1 - Y) of Y = Σ softmax(f) p over the rows; what is hidden has p = 0 and keeps its attention."""
        log_p, log_q = self.log_p, self.log_q
        if hidden is not None:
            log_p, log_q = log_p.masked_fill(hidden, -math.inf), log_q.masked_fill(hidden, 0.0)
        return (self.f + log_p).logsumexp(-2) - (self.f + log_q).logsumexp(-2)

    def shares(self) -> Tensor:
        """softmax(f) p: what each instance adds to Y."""
        return (self.f.log_softmax(-2) + self.log_p).exp().detach()


class SMMILe(nn.Module):
    """Detect and classify every instance; the bag's probability is the sum; then refine the map by its own labels.

    norm, dropout       behind the embedding (batch: over all instances of the step); dropout in the attention too
    superpatch          instances of a superpatch, which is a square on the lattice of coordinates (a stretch of a scan)
    drops, groups       in training, further looks at a bag: `drops` times without some instances, which fall the more
                        often the more they add; `groups` times with one random instance of every superpatch, and if
                        there are drops, without some of these
    view_weight         factor of the mean loss of these looks
    consistency_weight  factor of the variance of the attention logits of bags without any class, which have no further
                        looks then; 0.0: they have
    refiners            layers of stage 2, each taught by the `pseudo_share` of instances of which the last is surest
    warmup              epochs of stage 1 alone, counted by the visits of the first bag that was seen
    candidates          what ranks instances for the first of them: their own share, or the mean of their superpatch's
    refine_weight, mrf_weight   factors of the refiners' loss, and of their energy: the spread inside superpatches and,
                        for the part `pairwise`, between neighbouring ones
    sm                  {where: early} smooths the embedded instances, {where: late} the attention logits; other options
                        as in `SmoothAt`

    Scores, one map per class: in stage 1 attention logit + log p, in stage 2 log-odds of the last refiner. A loop of
    your own calls `after_step` behind the optimiser's step: it counts the visits.
    """

    score_kind = "instance logit"
    head_name = "classifier"
    class_terms = ("instance dropout, the consistency of negative bags, and the refinement by pseudo labels (stage 2)",)

    first: Tensor
    visits: Tensor

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 512,
        att_dim: int = 256,
        norm: str = "batch",
        dropout: float = 0.25,
        superpatch: int = 16,
        drops: int = 1,
        groups: int = 10,
        view_weight: float = 1.0,
        consistency_weight: float = 1.0,
        refiners: int = 3,
        warmup: int = 20,
        pseudo_share: float = 0.1,
        candidates: str = "instance",
        refine_weight: float = 1.0,
        mrf_weight: float = 0.1,
        pairwise: float = 0.2,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        weights = (view_weight, consistency_weight, refine_weight, mrf_weight)
        for option, value in zip(_WEIGHTS, weights, strict=True):
            if isinstance(value, str) or not 0 <= value < math.inf:
                raise ConfigError(f"{option} must be a number of at least 0, got {value!r}")
        if isinstance(pseudo_share, str) or not 0 < pseudo_share <= 0.5:
            raise ConfigError(f"pseudo_share must be a number in (0, 0.5], got {pseudo_share!r}")
        if isinstance(pairwise, str) or not 0 <= pairwise <= 1:
            raise ConfigError(f"pairwise must be a number in [0, 1], got {pairwise!r}")
        self.view_weight, self.consistency_weight, self.refine_weight, self.mrf_weight = weights
        self.n_classes, self.superpatch, self.warmup = n_classes, superpatch, warmup
        self.drops, self.groups, self.pseudo_share, self.pairwise = drops, groups, pseudo_share, pairwise
        self.candidates = check_choice(candidates, _CANDIDATES, "candidates")
        norms = {"batch": _BatchNorm, "layer": nn.LayerNorm, "none": nn.Identity}
        self.embed = nn.Linear(in_dim, dim, bias=False)
        self.norm = norms[check_choice(norm, _NORMS, "norm")](dim)
        self.drop = nn.Dropout(dropout)
        self.attention = GatedAttention(dim, att_dim, n_classes, dropout=dropout)
        self.classifier = nn.Linear(dim, n_classes)
        self.refine = nn.ModuleList(nn.Linear(dim, n_classes + 1) for _ in range(refiners))
        self.register_buffer("first", torch.tensor(-1))
        self.register_buffer("visits", torch.tensor(0))
        self.noted: deque[int] = deque(maxlen=4096)  # a loop may never settle
        self.sm = SmoothAt(sm, {"early": (self.attention.project, self.attention.gate), "late": ()})

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        h = self.drop(self.norm(self.embed(batch.x.to(dtype)).to(dtype)).relu())
        h = self.sm("early", h, batch)
        f = self.sm("late", self.attention(h).to(dtype), batch)
        z = self.classifier(h).to(dtype)
        refined = [layer(h).to(dtype) for layer in self.refine]
        with without_autocast(h):
            rows = _Judged(f, *self._log_probs(z))
            bags = [_Judged(*parts) for parts in zip(*(split_bags(t, batch.offsets) for t in rows), strict=True)]
            losses = self._losses(bags, refined, batch) if self.training else {}
            scores = f + rows.log_p
            if own_target(self) is None:
                scores = torch.where(self._second_stage(), _log_odds(refined[-1])[:, 1:], scores)
            return Output(torch.stack([bag.logits() for bag in bags]), scores, losses)

    def bag_vectors(self, h: Tensor, batch: BagBatch) -> Tensor:
        """The instances weighed by the attention of each class, class after class."""
        f = self.sm("late", self.attention(h).to(compute_dtype(self)), batch)
        return weighted_sums(h, segment_softmax(f, batch.offsets), batch.offsets).flatten(1)

    def bags_seen(self, ids: Sequence[str]) -> None:
        """Note the bags of a step that several processes divided, in place of those that were seen here."""
        self.noted.clear()
        self.noted.extend(map(_fingerprint, ids))

    def after_step(self) -> None:
        """Count the visits of the first bag."""
        if self.noted and self.first < 0:
            self.first.fill_(self.noted[0])
        self.visits += int(int(self.first) in self.noted)
        self.noted.clear()

    def _second_stage(self) -> Tensor:
        """Whether the warm-up is over; without one, from the first step."""
        return self.visits >= self.warmup + (self.warmup > 0)

    def _log_probs(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """log p and log(1 - p) of instances: softmax over several classes; for one, and other targets, sigmoid."""
        odds = z if self.n_classes == 1 or own_target(self) is not None else _log_odds(z)
        return nn.functional.logsigmoid(odds), nn.functional.logsigmoid(-odds)

    def _losses(self, bags: list[_Judged], refined: list[Tensor], batch: BagBatch) -> dict[str, Tensor]:
        self.noted.extend(map(_fingerprint, batch.ids))
        patches = _superpatches(batch, self.superpatch)
        if (target := own_target(self)) is not None:
            if not self.groups:
                return {}
            views = [self._samples(bag, part).logits() for bag, part in zip(bags, patches, strict=True)]
            of = torch.arange(len(bags), device=patches[0].device).repeat_interleave(self.groups)
            return {"views": self.view_weight * target.inherited_loss(torch.cat(views), target.known(batch), of)}
        has = _classes(need_labels(batch, self.n_classes), self.n_classes)
        told = [self._views(*each) for each in zip(bags, patches, has, strict=True)]
        losses = {"views": self.view_weight * torch.stack([loss for loss, _, _ in told]).mean()}
        if self.n_classes == 1 and self.consistency_weight:
            losses["consistency"] = self.consistency_weight * torch.stack([flat for _, flat, _ in told]).mean()
        if self._second_stage():
            losses |= self._refinement([shares for _, _, shares in told], refined, has, patches, batch)
        return losses

    def _views(self, bag: _Judged, patches: Tensor, has: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of the further looks at a bag, variance of its attention if it has no class, shares that rank it."""
        zero, shares = bag.f.new_zeros(()), bag.shares()
        if not has.any() and self.consistency_weight:
            return zero, bag.f.var(0, correction=0).mean(), shares
        columns = has | (self.n_classes == 1)
        whole = _Judged(*(t.expand(self.drops, -1, -1) for t in bag))
        sampled = self._samples(bag, patches)
        looks = [whole.logits(_hidden(whole.shares(), columns)), plain := sampled.logits()]
        if self.drops:
            sure = (plain > 0).all(1) | (self.n_classes > 1)
            looks.append(sampled.logits(_hidden(sampled.shares(), columns))[sure])
        if self.candidates == "superpatch" and self.groups:
            shares = sampled.shares().mean(0)[patches]
        views = torch.cat(looks)
        loss = nn.functional.binary_cross_entropy_with_logits(views, has.to(views).expand_as(views))
        return loss if len(views) else zero, zero, shares

    def _samples(self, bag: _Judged, patches: Tensor) -> _Judged:
        """One random instance of every superpatch, `groups` times: (groups, superpatches, classes)."""
        sizes = patches.bincount()
        draw = torch.rand(self.groups, len(sizes), device=sizes.device)
        place = (draw * sizes).long().minimum(sizes - 1) + sizes.cumsum(0) - sizes
        rows = patches.argsort(stable=True)[place]
        return _Judged(*(t[rows] for t in bag))

    def _refinement(
        self, shares: list[Tensor], refined: list[Tensor], has: Tensor, patches: tuple[Tensor, ...], batch: BagBatch
    ) -> dict[str, Tensor]:
        """Each refiner learns what the one before is surest of; all of them vary little where tissue is one."""
        field = _Field.of(patches, batch.need("graph")) if self.mrf_weight else None
        total, energy = refined[0].new_zeros(()), refined[0].new_zeros(())
        for number, layer in enumerate(refined):
            before = split_bags(refined[number - 1].detach().softmax(1), batch.offsets) if number else None
            for place, part in enumerate(split_bags(layer, batch.offsets)):
                chosen = (
                    _first_candidates(shares[place], has[place], self.pseudo_share)
                    if before is None
                    else _candidates(before[place], has[place], self.pseudo_share)
                )
                if len(chosen[0]):
                    total = total + nn.functional.cross_entropy(part[chosen[0]], chosen[1])
            if field is not None:
                energy = energy + field.energy(layer.softmax(1), self.pairwise) / len(refined)
        losses = {"refinement": self.refine_weight * total / len(shares)}
        return losses if field is None else losses | {"mrf": self.mrf_weight * energy / len(shares)}


class _Field(NamedTuple):
    """Superpatches of a batch: that of every instance, how many there are, and which lie next to each other (e,)."""

    patch: Tensor
    total: int
    one: Tensor
    other: Tensor

    @classmethod
    def of(cls, patches: tuple[Tensor, ...], graph: Graph) -> "_Field":
        counts = [int(part.max()) + 1 for part in patches]
        starts = torch.tensor([0, *counts], device=patches[0].device).cumsum(0).tolist()
        patch, n = torch.cat([part + start for part, start in zip(patches, starts, strict=False)]), starts[-1]
        pairs = (patch[graph.rows] * n + patch[graph.indices]).unique()
        pairs = pairs[pairs // n != pairs % n]
        return cls(patch, n, pairs // n, pairs % n)

    def energy(self, p: Tensor, pairwise: float) -> Tensor:
        """Squared distances of probabilities (n, c) from the mean of their superpatch, and between those of neighbours.

        Each is a mean over the classes and over the instances or neighbours of a superpatch, then a sum over these.
        """
        mean = sum_by_row(self.patch, p, self.total) / self.patch.bincount(minlength=self.total)[:, None].to(p)
        inside = _thinned((p - mean[self.patch]).square().mean(1), self.patch, self.total)
        between = _thinned((mean[self.other] - mean[self.one]).square().mean(1), self.one, self.total)
        return (1 - pairwise) * inside + pairwise * between


def _thinned(terms: Tensor, group: Tensor, count: int) -> Tensor:
    """Sum over groups of the mean of their terms, without some that fall the more often the larger they are.

    Equal ones all fall, as published; the two of a pair are as far from their mean, so rounding must not part them.
    """
    fixed, zero = terms.detach(), terms.new_zeros(count)
    low, high = (zero.scatter_reduce(0, group, fixed, way, include_self=False)[group] for way in ("amin", "amax"))
    kept = torch.rand(len(terms), device=terms.device) * (high - low) > fixed - low
    kept &= high - low > _EQUAL * high
    return (terms * kept / group.bincount(minlength=count).to(terms)[group]).sum()


def _hidden(shares: Tensor, columns: Tensor) -> Tensor:
    """What falls of shares (…, n, c): with probability (s - min)/(max - min), so the largest always; never all."""
    low, high = shares.amin(-2, keepdim=True), shares.amax(-2, keepdim=True)
    draw = torch.rand(shares.shape, device=shares.device)
    hidden = ~(draw * (high - low) > shares - low) & columns
    return hidden & ~hidden.all(-2, keepdim=True)


def _first_candidates(shares: Tensor, has: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Rows of a bag and what they are taken for (0: no class): the top of its classes, the bottom of all."""
    k, low, high = max(1, int(len(shares) * rate)), shares.amin(0), shares.amax(0)
    if not (high > low).all():
        return _joined([])  # nothing tells them apart
    scaled, found = (shares - low) / (high - low), []
    for c in has.nonzero().flatten().tolist():
        top = _highest(scaled[:, c], k)
        found.append((top[scaled[top, c] > 0.5], c + 1))
    if not found:
        return _joined([(_highest(scaled.mean(1), k), 0)])
    lowest = (scaled if len(has) == 1 else shares).mean(1)
    bottom = _highest(-lowest, k)
    return _joined([*found, (bottom[lowest[bottom] < 0.5], 0)])


def _candidates(p: Tensor, has: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Rows of a bag that a refiner with probabilities p (n, 1 + c) is sure of, and what they are taken for."""
    k = max(1, int(len(p) * rate))
    if not has.any():
        return _joined([(_highest(-p[:, 0], k), 0)])
    tops = [(c, _highest(p[:, c], k)) for c in [*(has.nonzero().flatten() + 1).tolist(), 0]]
    return _joined([(top[p[top, c] > 0.5], c) for c, top in tops])


def _highest(values: Tensor, k: int) -> Tensor:
    """Rows of the k highest values (n,); of equal ones the first."""
    return values.argsort(descending=True, stable=True)[:k]


def _joined(found: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    if not found:
        return torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long)
    return torch.cat([rows for rows, _ in found]), torch.cat([torch.full_like(rows, c) for rows, c in found])


def _log_odds(logits: Tensor) -> Tensor:
    """log p/(1 - p) of every class of a softmax."""
    own = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
    return logits - logits[:, None].masked_fill(own, -torch.inf).logsumexp(2)


def _classes(y: Tensor, n_classes: int) -> Tensor:
    """Which classes every bag has (b, c); of a single one, y = 0 has none."""
    return y[:, None] == (1 if n_classes == 1 else torch.arange(n_classes, device=y.device))


def _superpatches(batch: BagBatch, size: int) -> tuple[Tensor, ...]:
    """Number of the superpatch of every instance, from 0 in every bag."""
    if size == 1:
        return tuple(torch.arange(n, device=batch.x.device) for n in batch.sizes)
    coords = split_bags(batch.need("coords"), batch.offsets)
    return tuple(_blocks(c, frame.step if frame else None, size) for c, frame in zip(coords, batch.frames, strict=True))


def _blocks(coords: Tensor, step: tuple[float, ...] | None, size: int) -> Tensor:
    """Numbers (n,) of the cubes of a lattice in which coordinates (n, k) lie, about `size` cells each."""
    n, axes = coords.shape
    edge = max(1, round(min(size, max(1, n / _FEWEST)) ** (1 / axes)))
    away = coords.to(torch.float64) - coords.amin(0)
    steps = step or lattice_step(coords) or (max(float(away.max()), 1.0) / n ** (1 / axes),)
    cells = (away / torch.tensor(steps, dtype=torch.float64, device=away.device) + 0.5).floor().long()
    numbers: Tensor = (cells // edge).unique(dim=0, return_inverse=True)[1]
    return numbers


def _fingerprint(name: str) -> int:
    """Hash of a bag's name: published weights must not name patients."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
