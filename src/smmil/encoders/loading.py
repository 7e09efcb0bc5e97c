"""From a name or an object to a working encoder: a row of the table, or a network of your own."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from smmil.encoders.encoder import Encoder
from smmil.encoders.fetching import _commit_of, find_weights
from smmil.encoders.hub import BUILDERS
from smmil.encoders.table import Colour, encoder_info, is_outside
from smmil.errors import ConfigError, DataError, check_choice, suggest
from smmil.runtime import choose_device
from smmil.weights import tensors_digest

Network = Callable[[Tensor], Tensor]

_REVISION = 12
# Networks of the table halve their input five times.
_SMALLEST = 32
_FACTS = ("name", "revision", "dim", "pixels", "mean", "std", "mpp", "licence", "source", "pooling", "depth")


def load_encoder(
    encoder: str | Encoder | Network,
    *,
    weights: str | Path | None = None,
    device: str = "auto",
    autocast: bool | str = False,
    pixels: int | None = None,
    **facts: Any,
) -> Encoder:
    """The encoder with this name, or one made from your own network, ready to encode; never downloads anything.

    encoder   a name of the table, `timm:<name>`, `hf-hub:<owner/name>`; `package.module:function`, where the function
              is annotated to return an encoder or a network (or is one, with facts as attributes), or such a class; or
              such an object itself: any callable or nn.Module from images (n, 3, pixels, pixels) to features (n, dim)
    weights   a file of weights (or the folder of a hub model) instead of the usual places
    autocast  compute in 16 bits: True, float16 or bfloat16
    pixels    another input side than the usual one: smaller is faster; not every network allows it
    facts     of your own network, else taken from its attributes: pixels, mean, std (needed), name, mpp, licence,
              source, dim (compared with what it gives), revision (needed if it has no weights to identify it by)
    """
    if isinstance(autocast, str):
        check_choice(autocast, ("float16", "bfloat16"), "autocast")
    if isinstance(encoder, str) and not is_outside(encoder):
        if facts:
            raise ConfigError(f"encoder {encoder}: its {next(iter(facts))} is in the table; leave the argument out")
        return _from_table(encoder, weights, device, autocast, pixels)
    if isinstance(encoder, str):
        options = {"--weights": weights, "--encoder-pixels": pixels, "autocast": autocast or None}
        for option in (option for option, value in options.items() if value is not None):
            raise ConfigError(f"{option}: the encoder {encoder!r} is your own and settles that itself; leave it out")
        encoder = _imported(encoder)
    elif weights is not None:
        raise ConfigError("encoder: a network of your own comes with its weights; leave weights= out")
    given = facts if pixels is None else {"pixels": pixels, **facts}
    return _own_encoder(encoder, choose_device(device), autocast, given)


def _from_table(
    name: str, weights: str | Path | None, device: str, autocast: bool | str, pixels: int | None
) -> Encoder:
    row = encoder_info(name)
    chosen = choose_device(device)
    usual = row if pixels is None else replace(row, pixels=pixels)
    given = None if weights is None else Path(weights).expanduser()
    network, full, digest = BUILDERS[row.family](usual, given)
    place = find_weights(row, given) if row.hub else None
    network = _ready(network, chosen)
    assert full.pixels is not None  # the builders fill these in
    assert full.mean is not None
    assert full.std is not None
    where = name if weights is None or pixels is not None else f"{name} ({weights})"
    if full.pixels < _SMALLEST:
        raise ConfigError(f"encoder {where}: pixels={full.pixels} is too small; use at least {_SMALLEST}")
    return Encoder(
        id=f"{name}@{digest[:_REVISION]}" + ("" if pixels in (None, row.pixels) else f"/{pixels}px"),
        dim=_dim(network, where, full.pixels, full.dim, chosen),
        pixels=full.pixels,
        mean=full.mean,
        std=full.std,
        mpp=full.mpp,
        licence=full.licence,
        source=full.source,
        network=network,
        device=chosen,
        autocast=autocast,
        pooling=full.pooling,
        gate=full.gate,
        commit=None if place is None else _commit_of(place),
    )


def _ready(network: nn.Module, device: torch.device) -> nn.Module:
    """The network on the device, fixed and in evaluation mode."""
    network = network.eval().requires_grad_(False).to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _dim(
    network: nn.Module, name: str, pixels: int, expected: int | None, device: torch.device, depth: int | None = None
) -> int:
    """Length of the features, found by trying the network on one empty image, or box of `depth` slices."""
    sides = (pixels, pixels) if depth is None else (depth, pixels, pixels)
    try:
        with torch.inference_mode():
            features = network(torch.zeros(1, 3, *sides, device=device))
    except (RuntimeError, AssertionError, ValueError) as problem:
        raise ConfigError(
            f"encoder {name}: cannot take pixels={pixels} ({problem}); leave pixels out, or choose another"
        ) from None
    shape = tuple(getattr(features, "shape", ()))
    if len(shape) != 2 or shape[0] != 1:
        raise DataError(f"encoder {name}: gives {shape}, not one vector per tile; choose another")
    if expected not in (None, shape[1]):
        raise DataError(f"encoder {name}: gives {shape[1]} features, not {expected} as stated; choose another")
    return int(shape[1])


def _imported(name: str) -> Encoder | Network:
    """The object behind `package.module:function`: itself when it states its facts, else what it is known to return."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as problem:
        raise ConfigError(f"encoder {name!r}: {problem}; expected package.module:function") from None
    ready = isinstance(found, Encoder | nn.Module) or (callable(found) and _attribute(found, "pixels") is not None)
    if ready and not isinstance(found, type):
        return found
    if not _gives_encoder(found):
        raise ConfigError(
            f"encoder {name!r}: not known to be an encoder, so it is not called; expected a smmil.encoders.Encoder or "
            "a network with pixels, mean and std, its class, or a function annotated with one (-> torch.nn.Module)"
        )
    made = found()
    if not isinstance(made, Encoder | nn.Module):
        raise ConfigError(
            f"encoder {name!r}: gives {type(made).__name__}; expected a smmil.encoders.Encoder or a network"
        )
    return made


def _gives_encoder(found: Any) -> bool:
    """Whether this is the class of an encoder or network, or a function that says it returns one."""
    try:
        made = found if isinstance(found, type) else get_type_hints(found).get("return")
    except (NameError, TypeError, AttributeError):  # no annotations, or names that do not exist at run time
        return False
    return isinstance(made, type) and issubclass(made, Encoder | nn.Module)


class _FunctionModule(nn.Module):
    """A plain function as a network without weights."""

    def __init__(self, function: Network):
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images)


def _own_encoder(
    found: Encoder | Network, device: torch.device, autocast: bool | str, given: dict[str, Any]
) -> Encoder:
    """An encoder from a network and its facts: given by keyword, else attributes of the object."""
    for name in given:
        if name not in _FACTS:
            raise ConfigError(f"encoder: unknown argument {name!r}; {suggest(name, _FACTS)}")
    if isinstance(found, Encoder):
        settled = [*given, *(["autocast"] if autocast and not found.autocast else [])]
        if settled:
            raise ConfigError(f"encoder {found.id}: states its {settled[0]} itself; leave the argument out")
        return found
    stated = {name: given.get(name, _attribute(found, name)) for name in _FACTS}
    name = str(stated["name"] or getattr(found, "__name__", type(found).__name__)).strip("<>")
    missing = [fact for fact in ("pixels", "mean", "std") if stated[fact] is None]
    if missing:
        raise ConfigError(
            f"encoder {name}: does not state {', '.join(missing)}; give them by keyword or as attributes of the object "
            "(pixels: side of the square it sees; mean, std: normalisation of colours from 0 to 1)"
        )
    network = _ready(found if isinstance(found, nn.Module) else _FunctionModule(found), device)
    pixels, revision, tensors = int(stated["pixels"]), stated["revision"], network.state_dict()
    depth = None if stated["depth"] is None else int(stated["depth"])
    if revision is None and not tensors:
        raise ConfigError(
            f"encoder {name}: has no weights that identify it; give a revision, to be changed with its features"
        )
    revision = tensors_digest(tensors)[:_REVISION] if revision is None else revision
    return Encoder(
        id=f"{name}@{revision}",
        dim=_dim(network, name, pixels, stated["dim"], device, depth),
        pixels=pixels,
        mean=_colour(stated["mean"], f"encoder {name}: mean"),
        std=_colour(stated["std"], f"encoder {name}: std"),
        mpp=None if stated["mpp"] is None else float(stated["mpp"]),
        licence=str(stated["licence"] or "not stated"),
        source=str(stated["source"] or f"{type(found).__module__}.{type(found).__qualname__}"),
        network=network,
        device=device,
        autocast=autocast,
        pooling=str(stated["pooling"] or "not stated"),
        depth=depth,
    )


def _attribute(found: object, name: str) -> Any:
    """A fact that an object states; methods of that name are none."""
    value = getattr(found, name, None)
    return None if callable(value) else value


def _colour(values: Any, what: str) -> Colour:
    """Three numbers for red, green and blue; a single one counts for all."""
    numbers = torch.as_tensor(values, dtype=torch.float64).reshape(-1).tolist()
    if len(numbers) not in (1, 3) or (what.endswith("std") and min(numbers) <= 0):
        raise ConfigError(f"{what} is {values}; expected three numbers" + (" above 0" if what.endswith("std") else ""))
    red, green, blue = numbers * (3 // len(numbers))
    return red, green, blue
