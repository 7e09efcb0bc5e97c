"""Optimised CPU kernels with the results of the plain torch code that they replace, switched on and off by name.

Sm is computed by `sm_numba` (compiled) where numba is installed and the bag is large, else by `sm_cpu` (few buffers).
A kernel takes over where it may and where it pays: tensors on the CPU, large bags, ordinary layers without hooks,
first-order gradients, no tracing. Plain torch does everything else and defines what is right.

`recomputed` parts of a model are computed again in the backward pass in place of being kept.

    with kernels.disabled():              # plain torch only
    with kernels.disabled("sm_numba"):    # all but this one
    with kernels.forced("fused_pool"):    # for small bags too

The environment sets the compiled ones for a whole process: SMMIL_COMPILED=0 turns them off, 1 uses them for small
signals too (and insists that numba is installed), auto is the default.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from smmil.errors import check_choice

NAMES = ("chunked_attention", "fused_pool", "tanh_scores", "sm_buffers", "sm_numba", "recomputed")
COMPILED = ("sm_numba",)
SWITCH = "SMMIL_COMPILED"
_MODES = {"0": "off", "1": "always", "auto": "auto"}
_chosen: ContextVar[Mapping[str, str]] = ContextVar("kernels", default=MappingProxyType({}))


def mode(name: str) -> str:
    """Whether a kernel is used: "off", "always", or "auto" where it pays."""
    if name in _chosen.get():
        return _chosen.get()[name]
    if name in COMPILED:
        return _MODES[check_choice(os.environ.get(SWITCH, "auto"), tuple(_MODES), SWITCH)]
    return "auto"


def enabled(name: str, pays: bool) -> bool:
    """Whether a kernel is switched on for a task for which it `pays` or does not."""
    return mode(name) == "always" or (pays and mode(name) == "auto")


@contextmanager
def disabled(*names: str) -> Iterator[None]:
    """Plain torch in place of these kernels, or of all of them."""
    with _set(names, "off"):
        yield


@contextmanager
def forced(*names: str) -> Iterator[None]:
    """These kernels, or all of them, also where they do not pay."""
    with _set(names, "always"):
        yield


@contextmanager
def _set(names: tuple[str, ...], to: str) -> Iterator[None]:
    for name in names:
        check_choice(name, NAMES, "kernel")
    before = _chosen.set({**_chosen.get(), **dict.fromkeys(names or NAMES, to)})
    try:
        yield
    finally:
        _chosen.reset(before)


def tracing() -> bool:
    """Whether a program is being recorded, or transformed by torch.func: kernels would hide from it what they do."""
    recorded = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return recorded or torch._C._are_functorch_transforms_active()


def replaceable(layers: list[nn.Module], x: Tensor) -> bool:
    """Whether the work of these layers on x may be done without calling them.

    They must be on the processor in full precision, and calling them must do nothing but their own forward.
    """
    if type(x) not in (Tensor, nn.Parameter) or x.device.type != "cpu" or torch_module._has_any_global_hook():
        return False
    return all(_is_ordinary(layer) for layer in layers)


def _is_ordinary(layer: nn.Module) -> bool:
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    if any(hooks) or "forward" in vars(layer):
        return False
    full = (torch.float32, torch.float64)
    return all(type(p) is nn.Parameter and p.device.type == "cpu" and p.dtype in full for p in layer.parameters())
