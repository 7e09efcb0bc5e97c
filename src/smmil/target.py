"""What is predicted of a case where it is no class: width of the head, loss, and what becomes of the logits.

multilabel  one logit per label, sigmoid cross-entropy over the known labels
ordinal     K levels, K - 1 logits l: cumulative links η_0 = l_0, η_k = η_{k-1} - softplus(l_k), P(y > k) = σ(η_k). They
            fall by construction, so no level has a negative probability
regression  one logit: the number, standardised by mean and deviation of the training cases; squared error
survival    one logit per interval of time: its hazard h_j, the probability of an event in it given none before
cox         one logit: the log hazard ratio η; negative log partial likelihood of the batch, ties as Breslow's

**Censoring inside an interval.** An event in interval j (edge_{j-1} < t <= edge_j) has the likelihood h_j Π_{i<j}
(1 - h_i). A case censored at c in interval j was seen for a part f = (c - edge_{j-1}) / (edge_j - edge_{j-1}) of it.
With a constant hazard inside the interval it survives that part with probability (1 - h_j)^f, so its likelihood is
(1 - h_j)^f Π_{i<j} (1 - h_i). Counting the interval as survived (f = 1) makes hazards too small, leaving it out (f = 0)
too large; this is right to first order in h_j (an event's own moment inside its interval is not used): where every case
leaves before the end of an interval with h = 0.49 it finds 0.45, the others 0.27 and 1. What happens after the last
edge is not modelled: such cases have survived all intervals.

**Ties of Cox's model.** With continuous times two events at once are a matter of rounding; Breslow's form keeps the
risk set of each whole, and its baseline hazard is Breslow's. It also allows cases that count in part (pseudo-bags
of one bag), where Efron's would correct for ties of a case with itself.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from smmil.bag import BagBatch
from smmil.config import TargetConfig
from smmil.errors import ConfigError, DataError, check_choice

_MOST_LOGITS = 1000


@dataclass(frozen=True)
class Target(ABC):
    """A target that is no class, with what was fitted on the training cases: all that a model's logits mean.

    columns  of the manifest         kind, metric  its name, and the name of the metric that selects weights
    """

    columns: tuple[str, ...]
    kind: ClassVar[str]
    metric: ClassVar[str]
    needs_baseline: ClassVar[bool] = False

    @property
    @abstractmethod
    def n_logits(self) -> int:
        """Width of the head."""

    @classmethod
    @abstractmethod
    def fitted(cls, columns: tuple[str, ...], rows: np.ndarray, config: TargetConfig, levels: int) -> Self:
        """The target of training cases whose rows (n, t) are known; `levels` of an ordinal one."""

    @abstractmethod
    def _each(self, logits: Tensor, known: Tensor, share: Tensor, weight: Tensor | None) -> Tensor:
        """Loss (b,) of every case."""

    @abstractmethod
    def predicted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Probabilities (b, p) and the number (b,), None where there is none; in double precision."""

    def known(self, batch: BagBatch) -> Tensor:
        """What is known of the cases of a batch (b, t)."""
        rows: Tensor = batch.need("target")
        return rows

    def loss(
        self, logits: Tensor, known: Tensor, *, share: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """Mean loss of logits (b, c) against what is known (b, t).

        share   (b,) how much of a case each row is, where a case has several (pseudo-bags, instances); 1 by default
        weight  of `class_weights`
        """
        if logits.shape[1] != self.n_logits:
            raise ConfigError(
                f"the model gives {logits.shape[1]} logits, but a target of kind {self.kind} needs {self.n_logits}; "
                f"create it with n_classes={self.n_logits}, or leave model.n_classes out"
            )
        logits = logits if logits.dtype == torch.float64 else logits.float()
        share = torch.ones_like(logits[:, 0]) if share is None else share.to(logits)
        weight = None if weight is None else weight.to(logits)
        return (share * self._each(logits, known.to(logits.device), share, weight)).sum() / share.sum()

    def inherited_loss(self, logits: Tensor, known: Tensor, of: Tensor) -> Tensor:
        """Mean over the cases of the mean over their parts, each of which inherits what is known of case `of` (p,)."""
        count = torch.bincount(of, minlength=len(known))
        return self.loss(logits, known[of], share=1 / count[of])

    def maps(self, scores: Tensor) -> Tensor:
        """The map of the target (n, 1), or one per label, from scores with a column per logit, or one."""
        return scores

    def shown(self, logits: Tensor) -> Tensor:
        """The numbers (b, m) whose course shows how faithful a map is: one, or one per label."""
        probs, value = self.predicted(logits)
        return probs if value is None else value[:, None]

    def with_baseline(self, logits: Tensor, known: Tensor) -> "Target":
        """The same target with what is fitted on logits (n, c) of the training cases, where it `needs_baseline`."""
        return self

    def class_weights(self, rows: np.ndarray) -> Tensor:
        """Weights against imbalance, for `loss`, from the rows of the training cases."""
        raise ConfigError(f"training.class_weights: a target of kind {self.kind} has no classes; leave it out")

    def facts(self) -> dict[str, Any]:
        """Plain JSON with which `target_of` makes it again; stored with the weights."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"kind": self.kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in held.items()}

    def stated(self) -> dict[str, Any]:
        """What every prediction says about it (`meta["target"]`); the same for all models of one split."""
        return {key: value for key, value in self.facts().items() if key in ("kind", "columns", "edges")}


@dataclass(frozen=True)
class _Multilabel(Target):
    """Several labels, each 0, 1 or unknown (nan); every known one counts the same."""

    kind = "multilabel"
    metric = "auroc"

    @property
    def n_logits(self) -> int:
        return len(self.columns)

    @classmethod
    def fitted(cls, columns: tuple[str, ...], rows: np.ndarray, config: TargetConfig, levels: int) -> Self:
        for name, values in zip(columns, rows.T, strict=True):
            if len(found := np.unique(values[~np.isnan(values)])) < 2:
                what = "no known value" if not len(found) else f"only {found[0]:g}"
                raise DataError(f"label {name}: {what} among the training cases; leave it out or use another split")
        return cls(columns)

    def _each(self, logits: Tensor, known: Tensor, share: Tensor, weight: Tensor | None) -> Tensor:
        truth = known.to(logits)
        told = ~truth.isnan()
        each = F.binary_cross_entropy_with_logits(
            logits, truth.where(told, torch.zeros_like(truth)), pos_weight=weight, reduction="none"
        )
        return (each * told).mean(1)

    def predicted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return logits.double().sigmoid(), None

    def class_weights(self, rows: np.ndarray) -> Tensor:
        """Negatives / positives of each label."""
        return torch.from_numpy((rows == 0).sum(0) / (rows == 1).sum(0))


@dataclass(frozen=True)
class _Ordinal(Target):
    """Ordered levels 0 to K - 1."""

    levels: int = 2
    kind = "ordinal"
    metric = "kappa"

    def __post_init__(self) -> None:
        if not 2 <= self.levels <= _MOST_LOGITS:
            raise DataError(f"an ordinal target has 2 to {_MOST_LOGITS} levels, got {self.levels}")

    @property
    def n_logits(self) -> int:
        return self.levels - 1

    @classmethod
    def fitted(cls, columns: tuple[str, ...], rows: np.ndarray, config: TargetConfig, levels: int) -> Self:
        if missing := sorted(set(range(levels)) - {int(level) for level in rows[:, 0]}):
            raise DataError(f"no training case of level {missing[0]}; levels must be 0 to {levels - 1} without gaps")
        return cls(columns, levels)

    def known(self, batch: BagBatch) -> Tensor:
        level: Tensor = batch.need("y")
        return level[:, None]

    def _each(self, logits: Tensor, known: Tensor, share: Tensor, weight: Tensor | None) -> Tensor:
        level = known.long()
        if bool(((level < 0) | (level >= self.levels)).any()):
            found = sorted(set(level.flatten().tolist()))
            raise DataError(f"levels {found} do not fit a model with levels 0 to {self.levels - 1}")
        each = -self._log_probs(logits).gather(1, level)[:, 0]
        return each if weight is None else each * weight[level[:, 0]]

    def _log_probs(self, logits: Tensor) -> Tensor:
        """log P(y = k) (b, K); log(σ(η_{k-1}) - σ(η_k)) = log σ(η_{k-1}) + log σ(-η_k) + log σ(l_k)."""
        eta = logits[:, :1] - F.pad(F.softplus(logits[:, 1:]).cumsum(1), (1, 0))
        above, below = F.pad(F.logsigmoid(eta), (1, 0)), F.pad(F.logsigmoid(-eta), (0, 1))
        return above + below + F.pad(F.logsigmoid(logits[:, 1:]), (1, 1))

    def predicted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        probs = self._log_probs(logits.double()).exp()
        return probs, probs @ torch.arange(self.levels, dtype=probs.dtype, device=probs.device)

    def maps(self, scores: Tensor) -> Tensor:
        return scores[:, :1]  # of l_0, which moves all levels; the others are distances between levels

    def class_weights(self, rows: np.ndarray) -> Tensor:
        """n / (K n_k) of each level."""
        count = np.bincount(rows[:, 0].astype(int), minlength=self.levels)
        return torch.from_numpy(count.sum() / (self.levels * count))


@dataclass(frozen=True)
class _Regression(Target):
    """A number."""

    mean: float = 0.0
    deviation: float = 1.0
    kind = "regression"
    metric = "spearman"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and 0 < self.deviation < math.inf):
            raise DataError(f"a regression needs a finite mean and a deviation, got {self.mean} and {self.deviation}")

    @property
    def n_logits(self) -> int:
        return 1

    @classmethod
    def fitted(cls, columns: tuple[str, ...], rows: np.ndarray, config: TargetConfig, levels: int) -> Self:
        with np.errstate(over="ignore"):
            spread = float(rows.std())
        if not spread > 0:
            raise DataError(f"column {columns[0]}: all training cases have {rows[0, 0]:g}; nothing can be learned")
        return cls(columns, float(rows.mean()), spread)

    def _each(self, logits: Tensor, known: Tensor, share: Tensor, weight: Tensor | None) -> Tensor:
        return (logits[:, 0] - ((known[:, 0] - self.mean) / self.deviation).to(logits)).square()

    def predicted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        value = logits[:, 0].double()
        return value.new_zeros(len(value), 0), self.mean + self.deviation * value


@dataclass(frozen=True)
class _Survival(Target):
    """Time until an event, by hazards of intervals that end at `edges`."""

    edges: tuple[float, ...] = ()
    kind = "survival"
    metric = "cindex"

    def __post_init__(self) -> None:
        steps = np.diff((0.0, *self.edges))
        if not 0 < len(steps) <= _MOST_LOGITS or not (steps > 0).all() or not np.isfinite(steps).all():
            raise DataError(f"edges of intervals must be rising times above 0, got {list(self.edges)[:5]}")

    @property
    def n_logits(self) -> int:
        return len(self.edges)

    @classmethod
    def fitted(cls, columns: tuple[str, ...], rows: np.ndarray, config: TargetConfig, levels: int) -> Self:
        return cls(columns, edges=_event_quantiles(rows, config.intervals))

    def _each(self, logits: Tensor, known: Tensor, share: Tensor, weight: Tensor | None) -> Tensor:
        edges = torch.tensor((0.0, *self.edges), dtype=torch.float64, device=logits.device)
        time, event = known[:, :1].double(), known[:, 1] > 0
        seen = ((time - edges[:-1]) / edges.diff()).clamp(0, 1)  # part of each interval
        ended = (time > edges[:-1]) & (time <= edges[1:]) & event[:, None]
        survived = seen.masked_fill(ended, 0.0).to(logits)
        return (survived * F.softplus(logits) + ended * F.softplus(-logits)).sum(1)

    def predicted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        curve = (-F.softplus(logits.double()).cumsum(1)).exp()
        edges = torch.tensor((0.0, *self.edges), dtype=curve.dtype, device=curve.device)
        ends = F.pad(curve, (1, 0), value=1.0)
        return 1 - curve, -(edges.diff() * (ends[:, 1:] + ends[:, :-1]) / 2).sum(1)

    def maps(self, scores: Tensor) -> Tensor:
        return scores if scores.shape[1] == 1 else scores.mean(1, keepdim=True)


@dataclass(frozen=True)
class _Cox(Target):
    """Time until an event, by proportional hazards.

    edges         times for which probabilities are given
    log_baseline  log of Breslow's cumulative hazard until each of them, of a case with log hazard ratio 0; empty until
                  a model is selected
    """

    edges: tuple[float, ...] = ()
    log_baseline: tuple[float, ...] = ()
    kind = "cox"
    metric = "cindex"
    needs_baseline = True

    def __post_init__(self) -> None:
        _Survival.__post_init__(self)  # type: ignore[arg-type]
        if len(self.log_baseline) not in (0, len(self.edges)) or not np.isfinite(self.log_baseline).all():
            raise DataError("a Cox target needs the log baseline hazard at each of its edges")

    @property
    def n_logits(self) -> int:
        return 1

    @classmethod
    def fitted(cls, columns: tuple[str, ...], rows: np.ndarray, config: TargetConfig, levels: int) -> Self:
        return cls(columns, edges=_event_quantiles(rows, config.intervals))

    def _each(self, logits: Tensor, known: Tensor, share: Tensor, weight: Tensor | None) -> Tensor:
        return known[:, 1].to(logits) * (_log_risk_sets(logits[:, 0] + share.log(), known[:, 0]) - logits[:, 0])

    def predicted(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        value = logits[:, 0].double()
        if not self.log_baseline:
            return value.new_zeros(len(value), len(self.edges)), value
        baseline = torch.tensor(self.log_baseline, dtype=value.dtype, device=value.device)
        return -torch.expm1(-(baseline + value[:, None]).exp()), value

    def with_baseline(self, logits: Tensor, known: Tensor) -> Target:
        """The same target with Breslow's baseline for these log hazard ratios (n, 1) of the training cases."""
        value, (time, event) = logits[:, 0].double().cpu(), known.double().cpu().T
        steps = -_log_risk_sets(value, time)
        until = [((event > 0) & (time <= edge)).nonzero().flatten() for edge in self.edges]
        return replace(self, log_baseline=tuple(float(steps[rows].logsumexp(0)) for rows in until))


def _log_risk_sets(value: Tensor, time: Tensor) -> Tensor:
    """log Σ_{j: time_j >= time_i} exp(value_j) (n,) of every case i."""
    falling, order = time.sort(descending=True, stable=True)
    summed = value[order].logcumsumexp(0)
    last = torch.searchsorted(-falling, -time.contiguous(), right=True) - 1
    return summed[last]


def _event_quantiles(rows: np.ndarray, intervals: int) -> tuple[float, ...]:
    """Times of events that divide the events of the training cases evenly; the last is the largest."""
    times = rows[rows[:, 1] > 0, 0]
    if not len(times):
        raise DataError("no training case has an event; nothing can be learned of time")
    edges = np.unique(np.quantile(times, np.arange(1, intervals + 1) / intervals, method="inverted_cdf"))
    if len(edges) < intervals:
        raise DataError(
            f"the {len(times)} events of the training cases fill {len(edges)} intervals of time, not {intervals}; "
            f"set target.intervals={max(2, len(edges))} or use more cases"
        )
    return tuple(edges.tolist())


_KINDS: dict[str, type[Target]] = {kind.kind: kind for kind in (_Multilabel, _Ordinal, _Regression, _Survival, _Cox)}


def fit_target(config: TargetConfig, columns: Sequence[str], rows: np.ndarray, levels: int = 0) -> Target:
    """The target of a run, fitted on the rows (n, t) that are known of its training cases; `levels` of an ordinal."""
    return _KINDS[config.kind].fitted(tuple(columns), np.asarray(rows, dtype=np.float64), config, levels)


def target_of(facts: Mapping[str, Any], where: object) -> Target:
    """The target that `facts` of weights describe; `where` names them in the error."""
    try:
        kind = _KINDS[check_choice(facts["kind"], tuple(_KINDS), "kind")]
        held = {f.name: facts[f.name] for f in fields(kind)}
        if not (isinstance(held["columns"], list) and all(isinstance(name, str) for name in held["columns"])):
            raise TypeError("columns")
        return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in held.items()})
    except (KeyError, TypeError, ValueError, DataError, ConfigError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise DataError(f"{where}: not a target of this version ({reason})") from None
