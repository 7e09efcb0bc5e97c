"""One file per model; `ls` of this folder is the registry."""

import importlib
import inspect
import pkgutil
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_dataclass

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError, suggest
from smmil.graph import Graph
from smmil.target import Target

# Models that are another one with Sm in its place, and sizes for which 0 has a meaning.
_WITH_SM = {"abmil": "sm_ap", "transformer_abmil": "sm_tap"}
_MAY_BE_ZERO = ("steps", "warmup", "drops", "groups")
# Whole numbers larger than these are refused: files of others state options too, and a billion steps never end. Sizes
# of weights are bounded by the weights as well (`predict.inference.rebuilt`); these are repeated or grow with nothing.
_LARGEST = {"steps": 1000, "iterations": 1000, "splits": 1000, "samples": 10_000, "probes": 10_000, "size": 128}
_LARGEST |= {"knn": 10_000, "depth": 1000, "layers": 1000, "residual_blocks": 1000, "K": 1000}
_LARGEST_OF_ANY = 100_000
# Models whose step costs at most twice that of ABMIL, for bags of any size (docs/speed.md).
QUICK = ("abmil", "sm_ap", "dsmil", "gtp", "mean_pool", "max_pool")
# Instances of the small steps that tell what a large one costs: each twice the one before, until one takes this long.
_TIMED, _LONG_ENOUGH_S = (512, 1024, 2048), 0.5


@dataclass(frozen=True)
class Output:
    """What every model gives, in training and in use.

    logits  (b, c) per bag; c = 1 is a one-logit head: probability = sigmoid
    scores  (n, k) per instance, higher is more suspicious; k = 1, or c for one map per class
    losses  the model's own extra terms, by name; only in training
    uncertainty  (n, 1) standard deviation of the scores, of models that know it; only in use
    """

    logits: Tensor
    scores: Tensor
    losses: dict[str, Tensor] = field(default_factory=dict)
    uncertainty: Tensor | None = None


register_dataclass(Output, serialized_type_name="smmil.Output")


def list_models() -> list[str]:
    """Names that `create_model` knows."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def model_class(name: str) -> type[nn.Module]:
    """The class behind a model's name; `package.module:Class` reaches code outside smmil."""
    if ":" in name:
        return _outside_class(name)
    if name not in list_models():
        raise ConfigError(f"model: unknown name {name!r}; {suggest(name, list_models())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: list[type[nn.Module]] = [c for c in vars(module).values() if _is_model(c, module.__name__)]
    if len(found) != 1:
        raise ConfigError(f"models/{name}.py must define exactly one public model class, found {len(found)}")
    return found[0]


def _is_model(thing: Any, module: str) -> bool:
    own = inspect.isclass(thing) and issubclass(thing, nn.Module) and thing.__module__ == module
    return own and not thing.__name__.startswith("_")


def _outside_class(name: str) -> type[nn.Module]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as problem:
        raise ConfigError(f"model {name!r} cannot be loaded: {problem}") from problem
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ConfigError(
            f"model {name!r}: is no subclass of torch.nn.Module; expected package.module:Class of a model"
        )
    return found


def model_options(name: str) -> dict[str, Any]:
    """Options of a model with their defaults."""
    parameters = inspect.signature(model_class(name).__init__).parameters
    return {k: p.default for k, p in parameters.items() if k not in ("self", "in_dim", "n_classes")}


def create_model(name: str, in_dim: int, n_classes: int = 1, **options: Any) -> nn.Module:
    """A fresh model; unknown options are refused by name."""
    known = model_options(name)
    for option in options:
        if option not in known:
            raise ConfigError(f"model {name}: unknown option {option!r}; {_instead(name, option, known)}")
    _check_sizes(name, {"in_dim": in_dim, "n_classes": n_classes, **options}, {"in_dim": 1, "n_classes": 1, **known})
    _check_kinds(name, options, known)
    if ":" not in name:  # code that is trusted has limits of its own
        _check_largest(name, {"in_dim": in_dim, "n_classes": n_classes, **options})
    try:
        model = model_class(name)(in_dim, n_classes, **options)
    except ConfigError as problem:
        raise ConfigError(f"model {name}: {problem}") from None
    if ":" not in name:
        model.register_forward_pre_hook(partial(_check_input, name, in_dim))
    return model


def _check_input(name: str, in_dim: int, _model: nn.Module, given: tuple[Any, ...]) -> None:
    """Refuse what is no batch, or features of another width, in words; a traced program is what it is."""
    if torch.compiler.is_compiling() or not given:
        return
    batch = given[0]
    if not isinstance(batch, BagBatch):
        bag = "bag" if isinstance(batch, Bag) else "smmil.Bag('name', x, coords)"
        listed = "bags" if isinstance(batch, list | tuple) else f"[{bag}]"
        raise DataError(
            f"model {name}: takes a BagBatch, got {type(batch).__name__}; give model(smmil.BagBatch.pack({listed}))"
        )
    if batch.x.shape[1] != in_dim:
        raise DataError(
            f"model {name}: {batch.ids[0]} has features of width {batch.x.shape[1]}, the model was created for "
            f"{in_dim}; use one encoder for all, or create_model({name!r}, in_dim={batch.x.shape[1]})"
        )


def _instead(name: str, option: str, known: dict[str, Any]) -> str:
    """What to do about an unknown option; Sm on attention pooling has models of its own."""
    if option != "sm":
        return suggest(option, known)
    if name in _WITH_SM:
        return f"with Sm it is the model {_WITH_SM[name]}, which takes where, alpha and steps as options of its own"
    if name in _WITH_SM.values():
        return "Sm is part of this model: give where, alpha and steps without sm"
    return "this model has no place for Sm"


def need_labels(batch: BagBatch, n_classes: int) -> Tensor:
    """The labels of a batch, for a loss of the model's own; an error that names the first bag whose label cannot be."""
    y: Tensor = batch.need("y")
    classes = max(2, n_classes)
    for place in ((y < 0) | (y >= classes)).nonzero().flatten().tolist()[:1]:
        raise DataError(
            f"bag {batch.ids[place]}: label {int(y[place])} does not fit a model with n_classes={n_classes}, which "
            f"knows 0 to {classes - 1}; correct the label or set model.n_classes"
        )
    return y


def own_target(model: nn.Module) -> Target | None:
    """The target of a model that predicts something else than a class; training and loading give it to the model.

    Losses of the model's own then use its `loss`; what means nothing without a class they name in `class_terms`.
    """
    found = getattr(model, "target", None)
    return found if isinstance(found, Target) else None


def _check_sizes(name: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Whatever is a positive whole number by default must be one when given; `steps` may also be a word."""
    for option, value in given.items():
        default, least = defaults[option], 0 if option in _MAY_BE_ZERO else 1
        counted = type(default) is int and default > 0 and not (option == "steps" and isinstance(value, str))
        if counted and not (type(value) is int and value >= least):
            raise ConfigError(f"model {name}: {option} must be a whole number of at least {least}, got {value!r}")


def _check_largest(name: str, given: Mapping[str, Any]) -> None:
    """Refuse counts that no model needs, those inside of `sm` too."""
    for option, value in given.items():
        largest = _LARGEST.get(option, _LARGEST_OF_ANY)
        if isinstance(value, Mapping):
            _check_largest(name, value)
        elif isinstance(value, int) and value > largest:
            shown = f"{value:,}" if value < 10**18 else "a larger number"
            raise ConfigError(f"model {name}: {option} must be at most {largest:,}, got {shown}")


def _check_kinds(name: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Switches are true or false, numbers are numbers, shares to drop lie in [0, 1), neighbours are counted."""
    for option, value in given.items():
        default, number = defaults[option], isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ConfigError(f"model {name}: {option} must be true or false, got {value!r}")
        if "dropout" in option and not (value is None and default is None) and not (number and 0 <= value < 1):
            raise ConfigError(f"model {name}: {option} must be a number in [0, 1), got {value!r}")
        if isinstance(default, float) and isinstance(value, bool | type(None) | list | dict):
            raise ConfigError(f"model {name}: {option} must be a number, got {value!r}")
        counted = option in ("knn", "head_dim", "dim", "att_dim") and default is None and value is not None
        if counted and not (type(value) is int and value > 0):
            raise ConfigError(f"model {name}: {option} must be a whole number of at least 1, got {value!r}")


def step_seconds(model: nn.Module, batch: BagBatch) -> float:
    """Estimated seconds of a training step on a batch of large bags, from small steps of a copy of the model.

    Time grows in proportion to the instances of a bag or, for a model with `all_pairs`, to their square.
    """
    largest, copied = max(range(len(batch)), key=batch.sizes.__getitem__), deepcopy(model).eval()
    _timed(copied, _first_rows(batch, largest, _TIMED[0]))  # libraries load their parts
    power, measured = 2 if getattr(model, "all_pairs", False) else 1, [(0, 0.0)]
    while len(measured) <= len(_TIMED) and measured[-1][1] < _LONG_ENOUGH_S:
        part = _first_rows(batch, largest, _TIMED[len(measured) - 1])
        measured.append((part.x.shape[0], min(_timed(copied, part), _timed(copied, part))))  # one may compile
    (rows, less), (more_rows, more) = measured[-2:]  # their difference is free of what every step costs
    per_unit = max(0.0, more - less) / (float(more_rows) ** power - float(rows) ** power)
    return sum(more + per_unit * max(0.0, float(n) ** power - float(more_rows) ** power) for n in batch.sizes)


def _timed(model: nn.Module, batch: BagBatch) -> float:
    """Seconds of a step; on the processor those of its threads, so that other programs do not count."""
    cuda = batch.x.device.type == "cuda"
    began = time.perf_counter() if cuda else time.process_time()
    output: Output = model(batch)
    torch.autograd.backward(output.logits.sum())
    if cuda:
        torch.cuda.synchronize(batch.x.device)
        return time.perf_counter() - began
    return (time.process_time() - began) / torch.get_num_threads()


def _first_rows(batch: BagBatch, which: int, rows: int) -> BagBatch:
    """The first rows of one bag, with the edges among them, as a batch of its own."""
    start, graph = int(batch.offsets[which]), None
    if batch.graph is not None:
        pairs = batch.graph.edges() - start
        inside = ((pairs >= 0) & (pairs < rows)).all(0)
        graph = Graph.from_edges(pairs[:, inside].cpu(), batch.graph.weight[inside].cpu(), rows)
    coords = None if batch.coords is None else batch.coords[start : start + rows].cpu()
    known = None if batch.covariates is None else batch.covariates[which].cpu()
    x = batch.x[start : start + rows].cpu()
    bag = Bag(batch.ids[which], x, coords, batch.frames[which], graph, covariates=known)
    return BagBatch.pack([bag]).to(batch.x.device)
