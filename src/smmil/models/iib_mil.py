"""IIB-MIL (Ren, Zhao, He, Wu, Mai, Xu, Huang, He, Huang, Yao, MICCAI 2023, doi:10.1007/978-3-031-43987-2_54)."""

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError, check_choice
from smmil.models import Output, need_labels, own_target
from smmil.nn.parameters import compute_dtype
from smmil.nn.segment import segment_ids, split_bags
from smmil.nn.smooth_at import SmoothAt
from smmil.nn.transformer import PostNormLayer, QueryDecoder, recomputed

_DOUBT = 1e-6
_FALLING = (0.95, 0.8, 200)  # from, to, visits


class IIBMIL(nn.Module):
    """Transformer blocks with a bag classifier and an instance classifier trained on disambiguated soft labels.

    Blocks of a deep MLP, a transformer layer and a look back at the raw features encode the instances. A few learned
    queries read the bag for its logits. A second classifier scores every instance, trained on soft labels that begin at
    the bag's label and, after a warm-up, drift to the class whose prototype the instance resembles (loss `instance`,
    added to the bag loss). Prototypes follow the instances most certainly of the class of their bag.

    Scores are log-odds of the instance classifier: its logit with n_classes=1, else one column per class (two classes:
    ± the difference of its logits). Comparable across bags. The transformer mixes the instances of a bag, so that
    all instances of a positive bag may score high.

    dim, depth        width and number of blocks: 256, 3 (NSCLC), 32, 8 (LUAD) or 256, 4 (RCC) in the authors' settings
    queries           that read the bag
    hidden            inner width of the transformer layers
    dropout           in all transformer layers, also on their attention weights; none in the MLPs, as released
    negatives         both: instances of any bag may become any class, as released; zero: those of class 0 bags stay 0,
                      which is right where class 0 means "nothing there" and wrong for subtypes
    warmup            visits (epochs) of a bag during which its instances keep the bag's label; 0: none, a class then
                      takes part as soon as one step has given it a prototype
    label_ema         share of the old soft label at each visit; "falling": from 0.95 to 0.8 in 200 visits
    prototype_ema     share of the old prototype for each instance that it follows
    instance_weight   factor of the instance loss; the authors' is not published
    sm                {where: early} smooths the features, which every block reads; {where: late} the logits of the
                      instance classifier; other options as in `SmoothAt`
    The instance loss is a mean over the bags of the mean over their instances, so that bags count equally.

    Prototypes and soft labels move in `after_step`, which the training loop calls; in a loop of your own call it behind
    optimizer.step(), or they move at the next forward pass that finds the weights changed. Soft labels are kept for
    every training instance (buffers `memory.q_…`, 8 bytes per instance and a fingerprint per bag with two classes), by
    row: training bags must keep all their instances in order. Only training needs them (`training_state`).

    Bags are whole, of any size. No n × n matrix exists, not with dropout either; time grows with n², memory with n:
    about 0.1 MB per instance in training at dim 256, of which 1 kB waits for `after_step`.
    """

    all_pairs = True
    score_kind = "instance log-odds"
    training_state = ("memory.q_", "memory.visits_")
    remembers_rows = True
    class_terms = ("the soft labels of instances, which then keep what is known of their bag as in the warm-up",)

    def __init__(
        self,
        in_dim: int,
        n_classes: int = 1,
        *,
        dim: int = 256,
        depth: int = 3,
        queries: int = 5,
        hidden: int = 2048,
        dropout: float = 0.1,
        negatives: str = "both",
        warmup: int = 10,
        label_ema: float | str = 0.99,
        prototype_ema: float = 0.99,
        instance_weight: float = 1.0,
        sm: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        check_choice(negatives, ("both", "zero"), "negatives")
        if dim % 4:
            raise ConfigError(f"dim must be a multiple of 4, the number of heads, got {dim}")
        if not instance_weight >= 0:
            raise ConfigError(f"instance_weight must not be negative, got {instance_weight}")
        self.instance_weight = instance_weight
        widths = [in_dim] + [dim] * (depth - 1)
        share = _share(dropout, "dropout")
        self.blocks = nn.ModuleList(_Block(in_dim, width, dim, hidden, share) for width in widths)
        self.instance_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, n_classes))
        self.decoder = QueryDecoder(dim, queries=queries, layers=2, heads=4, hidden=2 * dim, dropout=share)
        self.head = nn.Linear(queries * dim, n_classes)
        self.memory = _LabelMemory(
            dim,
            max(2, n_classes),
            keep_belief=None if label_ema == "falling" else _share(label_ema, "label_ema"),
            keep_prototype=_share(prototype_ema, "prototype_ema"),
            warmup=warmup,
            only_zero=negatives == "zero",
        )
        self.n_classes = n_classes
        self.noted_at, self.rows_of = -1, dict[str, int]()
        first, *_ = self.blocks
        readers = (first.mlp[0], *(block.raw for block in self.blocks))  # type: ignore[index]
        self.sm = SmoothAt(sm, {"early": readers, "late": ()})  # type: ignore[dict-item]

    def forward(self, batch: BagBatch) -> Output:
        dtype = compute_dtype(self)
        x = h = self.sm("early", batch.x.to(dtype), batch)
        for block in self.blocks:
            h = block(h, x, batch.offsets)
        instance_logits = self.sm("late", self.instance_head(h).to(dtype), batch)
        logits = self.head(self.decoder(h, batch.offsets))
        losses = (
            {"instance": self.instance_weight * self._instance_loss(h, instance_logits, batch)} if self.training else {}
        )
        scores = _class_log_odds(instance_logits) if own_target(self) is None else instance_logits
        return Output(logits, scores, losses)

    def after_step(self) -> None:
        """Move prototypes and soft labels by what the batches of this step showed."""
        self.memory.settle()

    def _instance_loss(self, h: Tensor, instance_logits: Tensor, batch: BagBatch) -> Tensor:
        if (target := own_target(self)) is not None:
            return target.inherited_loss(instance_logits, target.known(batch), segment_ids(batch.offsets))
        self._settle_if_weights_changed()
        log_p = _class_log_probs(instance_logits)
        odds = _class_log_odds(log_p)
        losses = []
        self._refuse_changed(batch)
        labels = need_labels(batch, self.n_classes).tolist()
        parts = (split_bags(t, batch.offsets) for t in (h.detach(), log_p, odds))
        cases = zip(batch.ids, labels, *parts, strict=True)
        for name, label, rows, one_log_p, one_odds in cases:
            q = self.memory.beliefs(name, label, rows)
            self.memory.note(name, label, rows, one_odds[:, label], q)
            losses.append(-(q * one_log_p).sum(1).mean())
        return torch.stack(losses).mean()

    def _settle_if_weights_changed(self) -> None:
        """Apply pending prototype updates once the weights have changed, for loops that do not call `after_step`."""
        version = self.head.weight._version
        if version != self.noted_at:
            self.memory.settle()
        self.noted_at = version

    def _refuse_changed(self, batch: BagBatch) -> None:
        """A bag of another size than before is refused at once, not when the warm-up is over and hours are spent."""
        for name, n in zip(batch.ids, batch.sizes, strict=True):
            before = self.rows_of.get(name, n) if self.memory.visits(name) else n
            self.rows_of[name] = n
            if before != n:
                raise DataError(
                    f"bag {name}: has {n:,} instances but had {before:,} earlier in this training; its instances are "
                    "remembered by row, so keep them all and in order"
                )


class _Block(nn.Module):
    """A deep MLP on each instance, a transformer layer over the bag, plus relu(W x) of the raw features."""

    def __init__(self, raw_dim: int, in_dim: int, dim: int, hidden: int, dropout: float):
        super().__init__()
        widths = (in_dim, 2 * dim, 4 * dim, 2 * dim, 2 * dim, dim)
        steps = [(nn.Linear(a, b), nn.Tanh(), nn.LayerNorm(b)) for a, b in pairwise(widths)]
        self.mlp = nn.Sequential(*(layer for step in steps for layer in step))
        self.widest = max(widths[1:])
        self.layer = PostNormLayer(dim, heads=2, hidden=hidden, dropout=dropout)
        self.raw = nn.Linear(raw_dim, dim)

    def forward(self, h: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
        h = recomputed(self.mlp, h, size=h.shape[0] * self.widest)
        encoded: Tensor = self.layer(h, offsets) + self.raw(x).relu()
        return encoded


def _share(value: float | str, option: str) -> float:
    if isinstance(value, str) or not 0 <= value <= 1 or (option == "dropout" and value == 1):
        expected = "a number in [0, 1)" if option == "dropout" else "a number in [0, 1]"
        also = ' or "falling"' if option == "label_ema" else ""
        raise ConfigError(f"{option} must be {expected}{also}, got {value!r}")
    return value


def _initial_beliefs(label: int, n: int, classes: int, like: Tensor) -> Tensor:
    """The bag's label for every instance, less one part in a million for the other classes."""
    q = like.new_full((n, classes), _DOUBT / (classes - 1))
    q[:, label] = 1 - _DOUBT
    return q


def _nearest_prototypes(h: Tensor, prototypes: Tensor, allowed: Tensor) -> Tensor:
    """Class (n,) with the largest ⟨h_n, μ_c⟩ among those allowed (c,); the first of several."""
    return (h @ prototypes.T).masked_fill(~allowed, -torch.inf).argmax(1)


def _updated_soft_labels(q: Tensor, chosen: Tensor, keep: float) -> Tensor:
    """keep·q + (1 - keep)·onehot(chosen)."""
    return keep * q + (1 - keep) * nn.functional.one_hot(chosen, q.shape[1]).to(q)


def _updated_prototype(prototype: Tensor, rows: Tensor, keep: float) -> Tensor:
    """The prototype after μ ← keep·μ + (1 - keep)·row for one row after the other, in one sum."""
    ages = torch.arange(len(rows) - 1, -1, -1, dtype=rows.dtype, device=rows.device)
    return keep ** len(rows) * prototype + (1 - keep) * (keep**ages) @ rows


def _most_certain(odds: Tensor) -> Tensor:
    """Rows of the largest tenth of odds (n,), falling; rounded down, but at least one."""
    return odds.argsort(descending=True, stable=True)[: max(1, len(odds) // 10)]


def _class_log_odds(logits: Tensor) -> Tensor:
    """log p/(1-p) of every class: one logit as it is, else each minus log Σ exp of the others (two: ± difference)."""
    classes = logits.shape[1]
    if classes == 1:
        return logits
    own = torch.eye(classes, dtype=torch.bool, device=logits.device)
    return logits - logits[:, None].masked_fill(own, -torch.inf).logsumexp(2)


def _class_log_probs(logits: Tensor) -> Tensor:
    """log p (n, c) of every class; a single logit is that of class 1 against class 0."""
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits.log_softmax(1)


class _BagUpdate(NamedTuple):
    """What a training step saw of one bag: its class, its embedded instances, their log-odds of it, new beliefs."""

    label: int
    h: Tensor
    odds: Tensor
    beliefs: Tensor | None


class _LabelMemory(nn.Module):
    """Class prototypes, and soft labels ("beliefs") of every instance of every training bag.

    A belief q (n, c) holds the label probabilities of an instance, moved a little at every visit of its bag; prototype
    μ_c is a running mean of the embedded instances most certainly of class c.

    `beliefs` changes nothing and `note` only records what was seen; `settle` writes it into the buffers. So a step that
    is abandoned leaves no trace, and batches noted before one `settle` count as one batch.

    A bag's first `warmup` visits leave its beliefs at its label. Beliefs are kept by bag and row, in a buffer per bag
    under a fingerprint of its name (`q_…`, and `visits_…`): state_dict holds all of them, load_state_dict takes what it
    is given. A class takes part in the choice once it has a prototype, or is the bag's own.

    keep_belief     share of the old belief at each visit; None: falls from 0.95 to 0.8 in 200 visits
    keep_prototype  share of the old prototype for each instance it follows, if all bags of the step are of its class
    only_zero       instances of class 0 bags can only be of class 0
    """

    prototypes: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        keep_belief: float | None = 0.99,
        keep_prototype: float = 0.99,
        warmup: int = 10,
        only_zero: bool = False,
    ):
        super().__init__()
        self.keep_belief, self.keep_prototype = keep_belief, keep_prototype
        self.warmup, self.only_zero = warmup, only_zero
        self.register_buffer("prototypes", torch.zeros(classes, dim))
        self.noted: dict[str, _BagUpdate] = {}

    def visits(self, name: str) -> int:
        """How often the bag was seen in steps that are settled."""
        return int(self._buffers.get(f"visits_{_fingerprint(name)}", torch.tensor(0)))  # type: ignore[arg-type]

    @torch.no_grad()
    def beliefs(self, name: str, label: int, h: Tensor) -> Tensor:
        """What to teach about each instance of a bag at this visit (n, c), given its embedded instances."""
        old, visits = self._stored(name, label, len(h)), self.visits(name)
        if visits < self.warmup:
            return old
        with torch.autocast(h.device.type, enabled=False):
            chosen = _nearest_prototypes(h.to(self.prototypes), self.prototypes, self._candidates(label))
        return _updated_soft_labels(old, chosen, self._keep(visits))

    def note(self, name: str, label: int, h: Tensor, odds: Tensor, beliefs: Tensor) -> None:
        """Record a visit; odds (n,) are the log-odds of the bag's class. A bag noted twice counts once."""
        moved = beliefs if self.visits(name) >= self.warmup else None
        self.noted[name] = _BagUpdate(label, h.detach(), odds.detach(), moved)

    @torch.no_grad()
    def settle(self) -> None:
        """Move prototypes and beliefs by what was noted since the last time."""
        for label in sorted({visit.label for visit in self.noted.values()}):
            self._move_prototype(label)
        for name, visit in self.noted.items():
            self._store(name, visit.beliefs)
        self.noted = {}

    def _move_prototype(self, label: int) -> None:
        seen = [visit for visit in self.noted.values() if visit.label == label]
        rows, odds = torch.cat([visit.h for visit in seen]), torch.cat([visit.odds for visit in seen])
        keep = max(0.0, 1 - (1 - self.keep_prototype) * len(self.noted) / len(seen))
        self.prototypes[label] = _updated_prototype(
            self.prototypes[label], rows[_most_certain(odds)].to(self.prototypes), keep
        )

    def _candidates(self, label: int) -> Tensor:
        allowed = (self.prototypes != 0).any(1)
        if self.only_zero and label == 0:
            allowed = torch.zeros_like(allowed)
        allowed[label] = True
        return allowed

    def _keep(self, visits: int) -> float:
        if self.keep_belief is not None:
            return self.keep_belief
        start, end, span = _FALLING
        return start + (end - start) * min(1.0, visits / span)

    def _stored(self, name: str, label: int, n: int) -> Tensor:
        stored = self._buffers.get(f"q_{_fingerprint(name)}")
        if stored is None:
            return _initial_beliefs(label, n, len(self.prototypes), self.prototypes)
        if len(stored) != n:
            raise DataError(
                f"bag {name}: has {n:,} instances but had {len(stored):,} earlier in this training; its instances are "
                "remembered by row, so keep them all and in order"
            )
        return stored

    def _store(self, name: str, beliefs: Tensor | None) -> None:
        visits = torch.tensor(self.visits(name) + 1, device=self.prototypes.device)
        self.register_buffer(f"visits_{_fingerprint(name)}", visits)
        if beliefs is not None:
            self.register_buffer(f"q_{_fingerprint(name)}", beliefs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Forget every bag and make room for those in the state; then load as usual."""
        self.noted = {}
        for name in [name for name in self._buffers if name != "prototypes"]:
            delattr(self, name)
        for key, value in state_dict.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name.startswith(("q_", "visits_")):
                like = self.prototypes if value.is_floating_point() else value
                self.register_buffer(name, torch.zeros_like(value, dtype=like.dtype, device=self.prototypes.device))
        super()._load_from_state_dict(state_dict, prefix, *others)


def _fingerprint(name: str) -> str:
    """Hash of a bag's name: buffer names may hold no dots, and published weights must not name patients."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
