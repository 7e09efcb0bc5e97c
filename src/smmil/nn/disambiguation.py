"""Which label an instance really deserves: beliefs that begin at the bag's label and follow class prototypes.

q      belief: probabilities (n, c) of an instance's label, moved a little at every visit of its bag
μ_c    prototype of class c: a running mean of the embedded instances most surely of class c
"""

import hashlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smmil.errors import DataError

DOUBT = 1e-6
FALLING = (0.95, 0.8, 200)  # from, to, visits


def first_beliefs(label: int, n: int, classes: int, like: Tensor) -> Tensor:
    """The bag's label for every instance, less one part in a million for the other classes."""
    q = like.new_full((n, classes), DOUBT / (classes - 1))
    q[:, label] = 1 - DOUBT
    return q


def nearest_prototypes(h: Tensor, prototypes: Tensor, allowed: Tensor) -> Tensor:
    """Class (n,) with the largest ⟨h_n, μ_c⟩ among those allowed (c,); the first of several."""
    return (h @ prototypes.T).masked_fill(~allowed, -torch.inf).argmax(1)


def pulled(q: Tensor, chosen: Tensor, keep: float) -> Tensor:
    """keep·q + (1 - keep)·onehot(chosen)."""
    return keep * q + (1 - keep) * nn.functional.one_hot(chosen, q.shape[1]).to(q)


def followed(prototype: Tensor, rows: Tensor, keep: float) -> Tensor:
    """The prototype after μ ← keep·μ + (1 - keep)·row for one row after the other, in one sum."""
    ages = torch.arange(len(rows) - 1, -1, -1, dtype=rows.dtype, device=rows.device)
    return keep ** len(rows) * prototype + (1 - keep) * (keep**ages) @ rows


def surest(odds: Tensor) -> Tensor:
    """Rows of the largest tenth of odds (n,), falling; rounded down, but at least one."""
    return odds.argsort(descending=True, stable=True)[: max(1, len(odds) // 10)]


def class_log_odds(logits: Tensor) -> Tensor:
    """log p/(1-p) of every class: one logit as it is, else each minus log Σ exp of the others (two: ± difference)."""
    classes = logits.shape[1]
    if classes == 1:
        return logits
    own = torch.eye(classes, dtype=torch.bool, device=logits.device)
    return logits - logits[:, None].masked_fill(own, -torch.inf).logsumexp(2)


def class_log_probs(logits: Tensor) -> Tensor:
    """log p (n, c) of every class; a single logit is that of class 1 against class 0."""
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    return logits.log_softmax(1)


class Visit(NamedTuple):
    """What a training step saw of one bag: its class, its embedded instances, their log-odds of it, new beliefs."""

    label: int
    h: Tensor
    odds: Tensor
    beliefs: Tensor | None


class LabelMemory(nn.Module):
    """Prototypes of the classes, and the beliefs about every instance of every training bag.

    Asking for `beliefs` changes nothing and `note` only takes down what was seen; `settle` puts it into the buffers. So
    a step that is given up leaves no trace, and batches noted before one `settle` count as one batch.

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
        self.noted: dict[str, Visit] = {}

    def visits(self, name: str) -> int:
        """How often the bag was seen in steps that are settled."""
        return int(self._buffers.get(f"visits_{_key(name)}", torch.tensor(0)))  # type: ignore[arg-type]

    @torch.no_grad()
    def beliefs(self, name: str, label: int, h: Tensor) -> Tensor:
        """What to teach about each instance of a bag at this visit (n, c), given its embedded instances."""
        old, visits = self._stored(name, label, len(h)), self.visits(name)
        if visits < self.warmup:
            return old
        with torch.autocast(h.device.type, enabled=False):
            chosen = nearest_prototypes(h.to(self.prototypes), self.prototypes, self._candidates(label))
        return pulled(old, chosen, self._keep(visits))

    def note(self, name: str, label: int, h: Tensor, odds: Tensor, beliefs: Tensor) -> None:
        """Take down a visit; odds (n,) are the log-odds of the bag's class. A bag noted twice counts once."""
        moved = beliefs if self.visits(name) >= self.warmup else None
        self.noted[name] = Visit(label, h.detach(), odds.detach(), moved)

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
        self.prototypes[label] = followed(self.prototypes[label], rows[surest(odds)].to(self.prototypes), keep)

    def _candidates(self, label: int) -> Tensor:
        allowed = (self.prototypes != 0).any(1)
        if self.only_zero and label == 0:
            allowed = torch.zeros_like(allowed)
        allowed[label] = True
        return allowed

    def _keep(self, visits: int) -> float:
        if self.keep_belief is not None:
            return self.keep_belief
        start, end, span = FALLING
        return start + (end - start) * min(1.0, visits / span)

    def _stored(self, name: str, label: int, n: int) -> Tensor:
        stored = self._buffers.get(f"q_{_key(name)}")
        if stored is None:
            return first_beliefs(label, n, len(self.prototypes), self.prototypes)
        if len(stored) != n:
            raise DataError(
                f"bag {name}: has {n:,} instances but had {len(stored):,} earlier in this training; its instances are "
                "remembered by row, so keep them all and in order"
            )
        return stored

    def _store(self, name: str, beliefs: Tensor | None) -> None:
        visits = torch.tensor(self.visits(name) + 1, device=self.prototypes.device)
        self.register_buffer(f"visits_{_key(name)}", visits)
        if beliefs is not None:
            self.register_buffer(f"q_{_key(name)}", beliefs)

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


def _key(name: str) -> str:
    """A fingerprint: names of buffers may hold no dots, and weights that are handed on should not name patients."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
