"""Sm on the CPU by compiled code, where numba is installed (the extra `fast`)."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from smmil.errors import MissingExtra
from smmil.nn import kernels
from smmil.sparse import CSR

WORTHWHILE = 1 << 20  # entries times steps: below, torch is done before the compiled code is even loaded
NARROW = 16  # a signal of fewer columns costs torch as much as one of these
VECTOR_BYTES = (128, 64, 16)
TILE = 64
APART = 24  # rows between two rings: at a distance of a multiple of 4096 bytes a processor takes one for the other
_NUMBA_SETTINGS = ".numba_config.yaml"  # read by numba in the working folder, now and at every compilation
Factors = list[tuple[float, float, float]]


def is_applicable(u: Tensor, steps: int) -> bool:
    """Whether `steps` products of a graph with the matrix u are computed here."""
    mode = kernels.mode("sm_numba")
    if mode == "off" or u.device.type != "cpu" or u.dtype not in (torch.float32, torch.float64) or not u.numel():
        return False
    if mode == "always" and _kernel() is None:
        raise MissingExtra("numba", "fast", f"{kernels.SWITCH}=1")
    entries = len(u) * max(u.shape[1], NARROW)
    return mode == "always" or (entries * steps >= WORTHWHILE and _kernel() is not None)


@cache
def _kernel() -> Any:
    if os.path.lexists(_NUMBA_SETTINGS):  # they can make numba import and unpickle what they name
        what = "numba would obey it wherever it comes from; smoothing goes on without compiled code"
        warnings.warn(f"{os.path.abspath(_NUMBA_SETTINGS)}: {what}", stacklevel=2)
        return None
    try:
        from smmil.nn.kernels.numba_code import sweep
    except ImportError:  # no numba, or one that does not know this numpy
        return None
    return sweep


def smooth(u: Tensor, matrix: CSR, alpha: float, steps: int) -> Tensor:
    """`steps` rounds of smoothing."""
    return _recur(u, matrix, [(alpha, 1 - alpha, 0.0)] * steps)[0]


def smooth_backward(v: Tensor, u: Tensor, across: CSR, alpha: float, steps: int) -> tuple[Tensor, float]:
    """Gradients of u and of α, from the gradient v of the result; `across` is the transposed matrix.

    Let W_t be the iterates of v and S_t = Σ_{s<t} αˢ Pˢ V. Then S_{t+1} = W_t + α S_t, and with
    ∂G/∂α = Σ_{s<T} (s+1) αˢ Pˢ (P-I) U the gradient is ⟨Σ_{t<T} (S_T - S_t), (P-I) U⟩: the numbers ⟨(P-I) W_t, U⟩,
    which every step has at hand, are enough.
    """
    grad_u, products = _recur(v, across, [(alpha, 1 - alpha, 0.0)] * steps, u)
    sums = [0.0]
    for product in products:
        sums.append(product + alpha * sums[-1])
    return grad_u, sum(sums[-1] - earlier for earlier in sums[:-1])


def chebyshev(u: Tensor, matrix: CSR, coefficients: list[float]) -> Tensor:
    """Σ c_k T_k(P) u with at least two Chebyshev polynomials T_k, by Clenshaw's recurrence.

    B_k = c_k U + 2 P B_{k+1} - B_{k+2}, from B_K = c_K U down to the sum c_0 U + P B_1 - B_2.
    """
    *lower, highest = coefficients
    factors = [(2.0, c, -1.0) for c in reversed(lower)]
    factors[0] = (2 * highest, lower[-1], 0.0)
    if len(factors) > 1:
        factors[1] = (2.0, lower[-2] - highest, 0.0)
    a, b, c = factors.pop()
    return _recur(u, matrix, [*factors, (a / 2, b, c)])[0]


class _Plan(NamedTuple):
    """How a sweep is organised, in rows; see `numba_code.sweep`."""

    block: int
    skew: int
    base: int
    ring: int
    stride: int
    slots: int

    def buffer_rows(self, bases: int) -> int:
        return bases * self.base + self.slots * self.stride + 1


@lru_cache
def _plan(n: int, bandwidth: int, steps: int) -> _Plan:
    """Tiles whose steps follow each other, or step after step if that takes less room."""
    ring = _power(TILE + 2 * bandwidth)
    tile = (ring - 2 * bandwidth) // TILE * TILE  # as many rows as its rings hold anyway
    base = _power(tile + max(2, steps) * bandwidth)
    tiled = _Plan(tile, bandwidth, base, ring, ring + APART, max(1, steps - 1))
    whole = _Plan(n, 0, _power(n), _power(n), _power(n) + APART, min(2, max(1, steps - 1)))
    return min(tiled, whole, key=lambda plan: plan.buffer_rows(2))


def _power(rows: int) -> int:
    """The smallest power of two that is not below `rows`."""
    return 1 << (rows - 1).bit_length()


def _recur(u: Tensor, matrix: CSR, factors: Factors, other: Tensor | None = None) -> tuple[Tensor, list[float]]:
    """The last G_t, and ⟨(P - I) G_{t-1}, other⟩ of every step (zeros without `other`); see `numba_code`."""
    out, width, products = torch.empty_like(u), u.shape[1], np.zeros(len(factors))
    matrices = [t.detach().reshape(-1).numpy() for t in (u, u[:0] if other is None else other, out)]
    dtype, csr, bases = matrices[0].dtype, matrix.arrays(u.dtype), 1 if other is None else 2
    plan, coefficients = _plan(matrix.n, matrix.bandwidth, len(factors)), np.array(factors, dtype)
    for firsts, lanes in _vectors(width, dtype.itemsize):
        dots = np.zeros((len(firsts), len(factors), 0 if other is None else lanes))

        def work(part: slice, firsts: np.ndarray = firsts, lanes: int = lanes, dots: np.ndarray = dots) -> None:
            buffer, like = _aligned(plan.buffer_rows(bases) * lanes, dtype), (dtype.type(0),) * lanes
            _kernel()(csr, *matrices, dots[part], coefficients, firsts[part], width, tuple(plan), buffer, like)

        parts = _shares(len(firsts))
        if len(parts) == 1:
            work(parts[0])
        else:
            with ThreadPoolExecutor(len(parts)) as pool:
                list(pool.map(work, parts))
        if len(firsts) > 1:
            dots[-1, :, : firsts[-2] + lanes - firsts[-1]] = 0  # columns that were counted before
        products += dots.sum((0, 2))
    return out, products.tolist()


@cache
def _vectors(width: int, itemsize: int) -> list[tuple[np.ndarray, int]]:
    """First columns of the vectors that cover a row, and how many columns each has, from wide to narrow.

    The last one of a kind may overlap the one before it, unless less than half of it would be new.
    """
    found, start = [], 0
    for lanes in (*(size // itemsize for size in VECTOR_BYTES), 1):
        left = width - start
        count = left // lanes + (width >= lanes and 2 * (left % lanes) > lanes)
        if count:
            firsts = np.minimum(start + lanes * np.arange(count), width - lanes)
            found.append((firsts, lanes))
            start = int(firsts[-1]) + lanes
    return found


def _aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Fresh memory that starts at a cache line: a vector across two of them takes twice the time."""
    memory = np.empty(size * dtype.itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size * dtype.itemsize].view(dtype)


def _shares(count: int) -> list[slice]:
    """`count` independent things divided among the threads torch may use; results do not depend on their number."""
    bounds = np.linspace(0, count, min(torch.get_num_threads(), count) + 1).round().astype(int).tolist()
    return list(map(slice, bounds[:-1], bounds[1:]))
