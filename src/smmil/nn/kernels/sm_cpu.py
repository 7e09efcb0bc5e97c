"""Sm on the CPU in torch with few buffers that are reused, which reduces memory traffic.

With D = (P - I) U, the T-step operator is G = U + α Σ_{s<T} αˢ Pˢ D, and ∂G/∂α = Σ_{s<T} (s+1) αˢ Pˢ D comes from the
same powers, without a division by α. Large bags are bound by memory, not by arithmetic, so powers are summed in pairs,

    Σ_{s<2m} αˢ Pˢ D = (I + αP) R,                  R = Σ_{j<m} α²ʲ P²ʲ D
    Σ_{s<2m} (s+1) αˢ Pˢ D = 2 (I + αP) S - R,      S = Σ_{j<m} (j+1) α²ʲ P²ʲ D

which halves the additions.
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import solve_banded
from torch import Tensor

from smmil.nn import kernels
from smmil.sparse import CSR

BLOCK_BYTES = 8 << 20  # columns are worked off in blocks whose buffers stay in the processor's cache


def is_applicable(u: Tensor) -> bool:
    """Whether products of a graph with the matrix u are computed here."""
    return u.device.type == "cpu" and kernels.enabled("sm_buffers", pays=True)


def smooth(u: Tensor, matrix: CSR, alpha: float, steps: int, slope: bool = False) -> tuple[Tensor, Tensor]:
    """`steps` rounds of smoothing of the contiguous matrix u, and ∂/∂α (empty unless `slope`)."""
    g, *along = _by_columns(u, lambda block: _powers(block, matrix, alpha, steps, slope))
    return g, along[0] if slope else u.new_empty(0)


def _powers(u: Tensor, matrix: CSR, alpha: float, steps: int, slope: bool) -> tuple[Tensor, ...]:
    """G, and ∂G/∂α if `slope` is asked for, of a block of columns; steps is at least 1."""
    y = matrix.accumulate(u.clone(), u, -1.0, 1.0)
    if steps == 1:
        return (u.add(y, alpha=alpha), y) if slope else (u.add(y, alpha=alpha),)
    r, twice_s = y.clone(), 2 * y if slope else None
    spare = torch.zeros_like(u)
    for j in range(1, steps // 2):
        _square(matrix, y, spare)
        r.add_(y, alpha=alpha ** (2 * j))
        if twice_s is not None:
            twice_s.add_(y, alpha=2 * (j + 1) * alpha ** (2 * j))
    if steps % 2:
        _square(matrix, y, spare)
    results = [matrix.accumulate(torch.add(u, r, alpha=alpha, out=spare), r, 1.0, alpha**2)]
    if twice_s is not None:
        results.append(matrix.accumulate(torch.sub(twice_s, r, out=r), twice_s, 1.0, alpha))
    if steps % 2:
        for result, factor in zip(results, (alpha**steps, steps * alpha ** (steps - 1)), strict=False):
            result.add_(y, alpha=factor)
    return tuple(results)


def _square(matrix: CSR, y: Tensor, spare: Tensor) -> None:
    """y ← P P y."""
    matrix.accumulate(spare, y, 0.0, 1.0)
    matrix.accumulate(y, spare, 0.0, 1.0)


def chebyshev(u: Tensor, matrix: CSR, coefficients: list[float]) -> Tensor:
    """Σ c_k T_k(P) u with at least two Chebyshev polynomials T_k."""
    (g,) = _by_columns(u, lambda block: (_chebyshev(block, matrix, coefficients),))
    return g


def _chebyshev(u: Tensor, matrix: CSR, coefficients: list[float]) -> Tensor:
    before, now = u.clone(), matrix.accumulate(torch.zeros_like(u), u, 0.0, 1.0)
    total = coefficients[0] * u
    total.add_(now, alpha=coefficients[1])
    for c in coefficients[2:]:
        before, now = now, matrix.accumulate(before, now, -1.0, 2.0)
        total.add_(now, alpha=c)
    return total


def solve_chain(u: Tensor, matrix: CSR, gamma: float, own: float | np.ndarray = 1) -> Tensor:
    """(diag(own) + γL)⁻¹ u by a direct solve where P is tridiagonal (as of several chains in a row)."""
    bands = np.zeros((3, matrix.n))
    bands[1] = own + gamma
    rows, columns = matrix.rows.numpy(), matrix.indices.numpy()
    np.add.at(bands, (1 + rows - columns, columns), -gamma * matrix.weight.numpy())
    solved = solve_banded((1, 1), bands, u.detach().numpy().astype(np.float64), check_finite=False)
    return torch.from_numpy(solved).to(u.dtype)


def _by_columns(u: Tensor, run: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What `run` gives for the matrix u, computed block by block; its results have the shape of what it is given.

    run must treat every column alone and must not keep or change its argument.
    """
    width = max(16, BLOCK_BYTES // (u.shape[0] * u.element_size()))
    if width >= u.shape[1]:
        return run(u)
    results: tuple[Tensor, ...] = ()
    for columns in (slice(start, start + width) for start in range(0, u.shape[1], width)):
        parts = run(u[:, columns].contiguous())
        results = results or tuple(torch.empty_like(u) for _ in parts)
        for whole, part in zip(results, parts, strict=True):
            whole[:, columns] = part
    return results
