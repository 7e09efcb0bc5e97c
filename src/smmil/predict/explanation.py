"""Maps of a trained model by methods that any model allows: which instances its logit depends on.

    attention             the model's own scores
    single                f(the bag that holds this instance alone)
    drop                  f(bag) - f(bag without the instance), or without a block of neighbours, per instance of it
    gradient              Σ_d x_nd ∂f/∂x_nd, signed
    integrated-gradients  Σ_d (x - x₀)_nd ∫₀¹ ∂f/∂x_nd (x₀ + t(x - x₀)) dt: sums to f(x) - f(x₀) over the bag
    lrp                   gradient × input of the network with attention, gates and norms held fixed: sums to f(x)

f is the logit of one class; a model with several logits gives one column per class. Every method is linear in f, so
the map of another target is that of its own f: the logit of each label, of a number or log hazard ratio, the logit that
moves all levels of an ordinal target, the mean of the logits of the hazards of survival. All of it is done in eval mode
and without labels, and the probabilities of the Predictions are the model's own.

**Integrated gradients.** Over a panel [l, r] of t, the sum of all attributions is f(r) - f(l), which two forward passes
tell exactly: so the error of the quadrature (two Gauss-Legendre nodes) is known, panel by panel, and the worst panel is
halved until the absolute errors sum to less than 9e-4 of f(x) - f(x₀), or the steps are used up.

**LRP** as in Ali et al. (2022, arXiv:2202.07304) and Hense et al. (2024, arXiv:2406.04280). With attention weights,
gates and the scale of normalisations as constants, tanh and GELU as x · (φ(x)/x) with a constant ratio, and ReLU as it
is, the logit is homogeneous of degree 1 in the features and all biases together: by Euler's identity

    f = Σ_n x_n·∂f/∂x_n + Σ_layers Σ_rows b·∂f/∂(row) + Σ_tokens p·∂f/∂p

The share of a bias that is added to the row of an instance is that instance's; what is added behind the pooling (the
bias of the classifier, tokens) belongs to all and is divided evenly. Both sides are compared for every bag, and a model
for which they differ is refused.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, check_choice
from smmil.models import own_target
from smmil.nn import kernels
from smmil.nn.parameters import compute_dtype
from smmil.predict.inference import _device_of, _model_facts, _unpacked, outputs
from smmil.predict.removal import _drops, _logits, _lone_logits, _one_by_one, _quick_scores
from smmil.prediction import Prediction

METHODS = {
    "attention": None,
    "single": "logit of the instance alone",
    "drop": "logit lost without the instance",
    "gradient": "gradient × input",
    "integrated-gradients": "integrated gradients",
    "lrp": "LRP relevance",
}
_BASELINES = ("zero", "mean")
_STEPS = 500
_GAP = 9e-4  # of the attributions' sum, relative; the promise is 1e-3
_NARROW = 1e-9  # width of a panel that is not cut again: a jump of the model itself
_LEAK = 1e-4  # of relevance, relative to the logit or to the sum of absolute relevances
_ADDED = ("bias", "token", "queries")  # last parts of the names of parameters that are added, not multiplied
_NODES = (0.5 - 12**-0.5, 0.5 + 12**-0.5)  # of Gauss and Legendre on [0, 1], of equal weight


@dataclass(frozen=True)
class Explanation:
    """A method with its options.

    block     drop: instances removed together, neighbours in space; None: as many as keep it at 256 forward passes
    baseline  integrated-gradients: features from which the path starts, zero or the mean of the bag
    steps     integrated-gradients: gradients of a bag and class at most
    """

    method: str
    block: int | None = None
    baseline: str | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        check_choice(self.method, tuple(METHODS), "method")
        users = {"block": "drop", "baseline": "integrated-gradients", "steps": "integrated-gradients"}
        for option, user in users.items():
            if getattr(self, option) is not None and self.method != user:
                raise ConfigError(f"{option}: is for the method {user}, not {self.method}; leave it out")
        if self.baseline is not None:
            check_choice(self.baseline, _BASELINES, "baseline")
        for option, least in (("block", 1), ("steps", len(_NODES))):
            value = getattr(self, option)
            if value is not None and not (type(value) is int and value >= least):
                raise ConfigError(f"{option}: must be a whole number of at least {least}, got {value!r}")

    @property
    def facts(self) -> dict[str, Any]:
        """What a prediction records, beside the kind of its scores."""
        given = {"block": self.block, "baseline": self.baseline, "steps": self.steps}
        kind = METHODS[self.method]
        explained = {"method": self.method} | {k: v for k, v in given.items() if v is not None}
        return {"explained": explained} | ({} if kind is None else {"score_kind": kind})

    def predictions(
        self,
        model: nn.Module,
        bags: Iterable[Bag | BagBatch],
        *,
        meta: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        spatial: bool = True,
    ) -> list[Prediction]:
        """One Prediction per bag, with this map in place of the model's own scores."""
        device, found = device or _device_of(model), []
        facts = _model_facts(model, {**(meta or {}), **self.facts})
        for batch, output in outputs(model, bags, device):
            notes: list[dict[str, Any]] = [{} for _ in batch.ids]
            if self.method != "attention":
                output = replace(output, scores=self._scores(model, batch.without_labels(), device, notes))
            predicted = _unpacked(batch, output, spatial, facts, own_target(model))
            for one, note in zip(predicted, notes, strict=True):
                one.meta.update(note)
                found.append(one)
        return found

    def _scores(
        self, model: nn.Module, batch: BagBatch, device: torch.device | str, notes: list[dict[str, Any]]
    ) -> Tensor:
        """The map (n, classes) of a batch; `notes` receives what was found out about each bag."""
        if self.method == "gradient":
            with _fixed(model):
                return _gradients(model, batch, device)
        maps = []
        for one, note in zip(_one_by_one(batch), notes, strict=True):
            if self.method == "single":
                maps.append(_lone_logits(model, one, device))
            elif self.method == "drop":
                maps.append(_drops(model, one, device, self.block))
            elif self.method == "lrp":
                maps.append(_relevance(model, one, device))
            else:
                with _fixed(model):
                    scores, gap = _integrated(model, one, device, self.baseline == "mean", self.steps or _STEPS)
                maps.append(scores)
                note["completeness_gap"] = gap
        return torch.cat(maps)


def explain(
    model: nn.Module,
    bags: Iterable[Bag | BagBatch],
    method: str = "integrated-gradients",
    *,
    block: int | None = None,
    baseline: str | None = None,
    steps: int | None = None,
    meta: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
) -> list[Prediction]:
    """Predictions whose scores are the map of a method: what in the bag the model's logit depends on.

    method    attention (the model's own), single, drop, gradient, integrated-gradients or lrp
    block     drop: neighbouring instances removed together; by default at most 256 forward passes
    baseline  integrated-gradients: zero (default) or mean, the features from which the path starts
    steps     integrated-gradients: gradients at most (500); `meta["completeness_gap"]` tells the relative error left
    One column of scores per class or label, one for any other target (attention: as the model gives them).
    """
    return Explanation(method, block, baseline, steps).predictions(model, bags, meta=meta, device=device)


@contextmanager
def _fixed(model: nn.Module, but: Iterable[nn.Parameter] = ()) -> Iterator[None]:
    """Gradients of the features, and of the parameters `but`, alone: the others are constants inside the block."""
    wanted, kept = set(but), {p: p.requires_grad for p in model.parameters()}
    for p in kept:
        p.requires_grad_(p in wanted)
    try:
        with torch.enable_grad(), _quick_scores(model):
            yield
    finally:
        for p, needed in kept.items():
            p.requires_grad_(needed)


def _features(model: nn.Module, batch: BagBatch, device: torch.device | str) -> BagBatch:
    """The batch where the model is, with features in its precision."""
    return batch.to(device, compute_dtype(model))


def _slopes(logits: Tensor, wanted: list[Tensor]) -> Iterator[list[Tensor]]:
    """For every class the gradients of the sum of its logits; zeros where nothing depends on a tensor."""
    if not logits.requires_grad:
        raise ConfigError(
            "this model passes no gradient on to its features; use the method attention, single or drop instead"
        )
    for c in range(logits.shape[1]):
        found = torch.autograd.grad(logits[:, c].sum(), wanted, retain_graph=c + 1 < logits.shape[1], allow_unused=True)
        yield [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]


def _gradients(model: nn.Module, batch: BagBatch, device: torch.device | str) -> Tensor:
    """Gradient × input (n, classes) of packed bags, one backward pass per class."""
    batch = _features(model, batch, device)
    x = batch.x.detach().requires_grad_()
    columns = [(slope * x.detach()).sum(1) for (slope,) in _slopes(model(replace(batch, x=x)).logits, [x])]
    return torch.stack(columns, 1)


class _Panel(NamedTuple):
    """A part [left, right] of the path, the heap's key first: minus the error of its attributions' sum."""

    key: float
    left: float
    right: float
    error: float
    scores: Tensor


def _integrated(
    model: nn.Module, batch: BagBatch, device: torch.device | str, from_mean: bool, steps: int
) -> tuple[Tensor, float]:
    """Integrated gradients (n, classes) of one bag, and the largest relative gap of completeness over the classes.

    One step at a time: memory is that of one gradient, whatever the number of steps.
    """
    batch = _features(model, batch, device)
    start = batch.x.mean(0, keepdim=True) if from_mean else torch.zeros_like(batch.x[:1])
    way = batch.x - start
    known: dict[float, Tensor] = {}

    def at(t: float) -> BagBatch:
        return replace(batch, x=torch.add(start, way, alpha=t))

    def value(t: float) -> Tensor:
        if t not in known:
            with torch.no_grad():
                known[t] = model(at(t)).logits[0].double()
        return known[t]

    def slope(t: float, c: int) -> Tensor:
        here = at(t)
        x = here.x.requires_grad_()
        logits = model(replace(here, x=x)).logits
        ((found,),) = _slopes(logits[:, c : c + 1], [x])
        return (found * way).sum(1).double()

    maps, gaps = zip(*(_quadrature(value, slope, c, steps) for c in range(len(value(1.0)))), strict=True)
    return torch.stack(maps, 1), max(gaps)


def _quadrature(
    value: Callable[[float], Tensor], slope: Callable[[float, int], Tensor], c: int, steps: int
) -> tuple[Tensor, float]:
    """∫₀¹ slope dt (n,) by adaptive Gauss-Legendre panels, and the gap of its sum from value(1) - value(0).

    The gap is relative to that difference or, where both values nearly agree, to a thousandth of all attributions.
    """

    def panel(left: float, right: float) -> _Panel:
        width = right - left
        scores = torch.stack([slope(left + node * width, c) for node in _NODES]).mean(0) * width
        error = float(value(right)[c] - value(left)[c] - scores.sum())
        return _Panel(-abs(error) if width > _NARROW else 0.0, left, right, error, scores)

    panels, used = [panel(0.0, 1.0)], len(_NODES)
    while True:
        scores = torch.stack([p.scores for p in panels]).sum(0)
        size = max(abs(float(value(1.0)[c] - value(0.0)[c])), float(scores.abs().sum()) / 1000, 1e-30)
        if -sum(p.key for p in panels) <= _GAP * size or used + 2 * len(_NODES) > steps:
            return scores, abs(sum(p.error for p in panels)) / size
        worst = heapq.heappop(panels)
        middle = (worst.left + worst.right) / 2
        for ends in ((worst.left, middle), (middle, worst.right)):
            heapq.heappush(panels, panel(*ends))
        used += 2 * len(_NODES)


class _Linearised(TorchFunctionMode):
    """Runs a model as a network that is homogeneous in its features and biases, with the same values.

    Every bias of a layer is multiplied by ones that can be differentiated, one per row: their gradient is the share of
    that bias in the result, row by row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ones: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _CONSTANT:
            return func(*args, **given).detach()
        if func in _RATIO:
            return _by_ratio(func, *args, **given)
        rule = _RULES.get(func)
        return func(*args, **given) if rule is None else rule(self, *args, **given)

    def _plus(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return rows
        ones = torch.ones_like(rows[..., :1].detach()).requires_grad_()
        self.ones.append(ones)
        return rows + ones * bias.detach()

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._plus(F.linear(x, weight), bias)

    def _layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.detach().square().mean(-1, keepdim=True) + eps).rsqrt()
        return self._plus(centred * scale if weight is None else centred * scale * weight, bias)

    def _batch_norm(self, x: Tensor, *rest: Any, **options: Any) -> Tensor:
        """In use it is an affine map, entry by entry."""
        zero = torch.zeros_like(x[:1])
        shift, moved = (F.batch_norm(row, *rest, **options).detach() for row in (zero, zero + 1))
        return self._plus(x * (moved - shift), shift[0])

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(q.detach(), k.detach(), v, *rest, **options)


_CONSTANT = {torch.softmax, Tensor.softmax, F.softmax, torch.sigmoid, Tensor.sigmoid, torch.exp, Tensor.exp}
_RATIO = {torch.tanh, Tensor.tanh, F.gelu, F.normalize}
_RULES: dict[Any, Callable[..., Tensor]] = {
    F.linear: _Linearised._linear,
    F.layer_norm: _Linearised._layer_norm,
    F.batch_norm: _Linearised._batch_norm,
    F.scaled_dot_product_attention: _Linearised._attention,
}


def _by_ratio(func: Any, x: Tensor, *rest: Any, **options: Any) -> Tensor:
    """φ(x) as x times a constant, entry by entry, for φ(0) = 0."""
    with torch.no_grad():
        ratio = func(x, *rest, **options) / x
        ratio = ratio.where(x != 0, 0.0)
    product: Tensor = x * ratio
    return product


def _relevance(model: nn.Module, batch: BagBatch, device: torch.device | str) -> Tensor:
    """LRP (n, classes) of one bag; a model for which it does not sum to the logit is refused."""
    added = [p for name, p in model.named_parameters() if name.rpartition(".")[2] in _ADDED]
    batch, mode = _features(model, batch, device), _Linearised()
    x = batch.x.detach().requires_grad_()
    n = len(x)
    with _fixed(model, added), kernels.disabled("fused_pool", "recomputed"), mode:
        logits, maps, ones = model(replace(batch, x=x)).logits, [], mode.ones
        for slope, *shares in _slopes(logits, [x, *ones, *added]):
            rows = [(slope * x.detach()).sum(1)]
            shared = sum((s * p.detach()).sum() for s, p in zip(shares[len(ones) :], added, strict=True))
            for share in shares[: len(ones)]:
                if share.shape == (n, 1):
                    rows.append(share[:, 0])
                else:
                    shared = shared + share.sum()
            maps.append(torch.stack(rows).double().sum(0) + shared / n)
    relevance = torch.stack(maps, 1).detach()
    _check_conservation(model, batch.ids[0], relevance, _logits(model, [_whole(batch)], device)[0])
    return relevance


def _whole(batch: BagBatch) -> Bag:
    known = None if batch.covariates is None else batch.covariates[0]
    return Bag(batch.ids[0], batch.x, batch.coords, batch.frames[0], batch.graph, covariates=known)


def _check_conservation(model: nn.Module, name: str, relevance: Tensor, logits: Tensor) -> None:
    sums, sizes = relevance.sum(0).cpu(), relevance.abs().sum(0).cpu()
    for found, size, logit in zip(sums.tolist(), sizes.tolist(), logits.tolist(), strict=True):
        if not abs(found - logit) <= _LEAK * max(abs(logit), size):
            raise ConfigError(
                f"lrp: no rule for a part of {type(model).__name__}: relevance sums to {found:.4g} where the logit of "
                f"{name} is {logit:.4g}; use integrated-gradients, gradient, drop, single or attention"
            )
