"""Linear algebra of Λ = diag(1/σ²) + κ(I - P): solve, draw, and the diagonal of its inverse, exactly or by probes.

With D = diag(Λ), 2D - Λ = diag(1/σ²) + κ(I - 2 diag(P) + P) is positive semidefinite as I - P is (its signless form),
and Λ ⪰ diag(1/σ²): the spectrum of D^-½ Λ D^-½ lies between min_n 1/(σ_n² D_n) and 2. Iterations follow from it.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.fft import dct
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee
from torch import Tensor

from smmil.errors import DataError
from smmil.sparse import CSR, without_autocast

_MOST_PRODUCTS = 20_000

_SMALLEST_BLOCK = 32  # below, starting a product takes longer than the product
_MOST_WORK = 1e10  # n w²; six times as many operations
_MOST_NUMBERS = 6e7  # n w, 8 bytes each


class _System:
    """Λ = diag(precision) + κ(I - P) as a product, with its diagonal and the lower end of its scaled spectrum."""

    def __init__(self, matrix: CSR, precision: Tensor, kappa: float):
        self.matrix, self.precision, self.kappa = matrix, precision, kappa
        rows = matrix.rows
        loops = torch.zeros_like(precision)
        own = rows == matrix.indices
        loops[rows[own]] = matrix.weight[own].to(precision.dtype)
        self.diagonal = precision + kappa * (1 - loops)
        self.lowest = float((precision / self.diagonal).min())

    def times(self, x: Tensor) -> Tensor:
        with without_autocast(x):
            product: Tensor = torch.ops.smmil.propagate(x, *self.matrix, *self.matrix)
        product *= -self.kappa
        return product.addcmul_(x, (self.precision + self.kappa)[:, None])


def _conjugate_gradients(b: Tensor, system: _System, tol: float) -> Tensor:
    """Λ⁻¹ b, all columns at once, with the diagonal as preconditioner; each column to the relative error `tol`.

    The error is at most the residual divided by `lowest` (both weighted by D), and the solution at least half of b.
    """
    scale = (1 / system.diagonal)[:, None]
    x, r = torch.zeros_like(b), b.clone()
    z = scale * r
    p, rz = z.clone(), (r * z).sum(0)
    wanted, tiny = rz * (tol * system.lowest / 2) ** 2, torch.finfo(b.dtype).tiny
    for _ in range(_MOST_PRODUCTS):
        if bool((rz <= wanted).all()):
            return x
        q = system.times(p)
        step = rz / (p * q).sum(0).clamp_min(tiny)
        x.addcmul_(p, step)
        r.addcmul_(q, -step)
        z = torch.mul(r, scale, out=q)
        before, rz = rz, (r * z).sum(0)
        p.mul_(rz / before.clamp_min(tiny)).add_(z)
    raise DataError(
        f"sm_posterior: no solution after {_MOST_PRODUCTS:,} products; the noise reaches {1 / system.lowest:.1g} times "
        "what the neighbours know: lower the noise or the strength"
    )


def _inverse_root(epsilon: Tensor, system: _System, tol: float) -> Tensor:
    """D^-½ (D^-½ Λ D^-½)^-½ ε by Chebyshev polynomials on the bounds of the spectrum."""
    low, high = system.lowest * (1 - 1e-6), 2.0
    root = (1 / system.diagonal.sqrt())[:, None]
    ratio = math.sqrt(high / low)
    degree = max(8, math.ceil(math.log(4 * ratio / tol) / math.log((ratio + 1) / (ratio - 1))))
    if degree > _MOST_PRODUCTS:
        raise DataError(f"sm_posterior_sample: would take {degree:,} products; lower the noise or the strength")
    points = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    c = dct(((high + low) / 2 + (high - low) / 2 * points) ** -0.5) / (degree + 1)

    def shifted(x: Tensor) -> Tensor:  # the spectrum brought to [-1, 1]
        return (2 * root * system.times(root * x) - (high + low) * x) / (high - low)

    before, now = epsilon, shifted(epsilon)
    total: Tensor = float(c[0]) / 2 * before + float(c[1]) * now
    for k in range(2, degree + 1):
        before, now = now, 2 * shifted(now) - before
        total.add_(now, alpha=float(c[k]))
    return root * total


def _diagonal_of_inverse(
    indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray, precision: np.ndarray, kappa: float, *, force: bool
) -> np.ndarray | None:
    """diag(Λ⁻¹) of Λ = diag(precision) + κ(I - P) with symmetric P; None where it would take too much, unless forced.

    In the order of Cuthill and McKee neighbours are at most w rows apart, and Λ is tridiagonal in blocks A_k of w rows
    with B_k beside them. Eliminating from the first on, S_k = A_k - B_{k-1}ᵀ S_{k-1}⁻¹ B_{k-1}; from the last block on
    those of the inverse are G_k = S_k⁻¹ + X_k G_{k+1} X_kᵀ with X_k = S_k⁻¹ B_k.
    """
    n = len(precision)
    matrix = sparse.csr_matrix((weight, indices, indptr), (n, n))
    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    matrix = matrix[order][:, order].tocoo()
    width = int(np.abs(matrix.row - matrix.col).max(initial=0))
    if not force and (n * width**2 > _MOST_WORK or n * width > _MOST_NUMBERS):
        return None
    system = (sparse.diags(precision[order] + kappa) - kappa * matrix).tocsr()
    found = np.empty(n)
    found[order] = _by_blocks(system, max(width, _SMALLEST_BLOCK))
    return found


def _by_blocks(system: Any, size: int) -> np.ndarray:
    """diag(system⁻¹) in blocks of `size` rows, at least as many as neighbours are apart."""
    n = system.shape[0]
    places = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    inverses: list[np.ndarray] = []
    beside: list[Any] = []
    for k, place in enumerate(places):
        rows = system[place]
        block = rows[:, place].toarray()
        if k:
            block -= beside[-1].T @ (beside[-1].T @ inverses[-1]).T
        inverses.append(np.linalg.inv(block))
        beside.append(rows[:, places[k + 1]].tocsr() if k + 1 < len(places) else None)
    inner = inverses.pop()
    found = np.empty(n)
    found[places[-1]] = np.diag(inner)
    for k in range(len(places) - 2, -1, -1):
        inverse = inverses.pop()
        x = (beside[k].T @ inverse).T
        inner = inverse + x @ inner @ x.T
        found[places[k]] = np.diag(inner)
    return found


def _probe_colours(indptr: np.ndarray, indices: np.ndarray, most: int) -> np.ndarray:
    """(n,) colours 0 … most - 1; equal ones lie far apart, in every connected part as far as `most` colours allow."""
    n = len(indptr) - 1
    near = sparse.csr_matrix((np.ones(len(indices), bool), indices, indptr), (n, n))
    _, part = connected_components(near, directed=False)
    # The place of a node in its part: a colour of its own in small parts, the best that is left in very dense ones.
    by_part = np.argsort(part, kind="stable")
    sizes = np.bincount(part)
    place = np.empty(n, np.int64)
    place[by_part] = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    colours = place % most
    left = np.flatnonzero(sizes[part] > most)
    near = (near[left][:, left] + sparse.identity(len(left), dtype=bool, format="csr")).tocsr()
    within = near
    while len(left) and within.nnz <= 4 * most * len(left):
        tried = _first_fit(within, most)
        crowded = np.zeros(len(sizes), bool)
        crowded[part[left[tried == most]]] = True
        fits = ~crowded[part[left]]
        colours[left[fits]] = tried[fits]
        left, near, within = left[fits], near[fits][:, fits], within[fits][:, fits]
        if len(left):
            within = (within @ near).tocsr()
    return colours


def _first_fit(near: Any, most: int) -> np.ndarray:
    """The lowest colour that no earlier neighbour has, `most` where there is none; nodes that can are done together."""
    earlier, later = sparse.tril(near, -1, "csr"), sparse.triu(near, 1, "csr")
    waiting = np.diff(earlier.indptr)
    colours = np.full(near.shape[0], -1)
    front = np.flatnonzero(waiting == 0)
    while len(front):
        rows, neighbours = _entries(earlier, front)
        used = np.zeros((len(front), most + 1), bool)
        used[rows, colours[neighbours]] = True
        used[:, most] = False
        colours[front] = used.argmin(1)
        _, following = _entries(later, front)
        following, count = np.unique(following, return_counts=True)
        waiting[following] -= count
        front = following[waiting[following] == 0]
    return colours


def _entries(matrix: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns of the entries in these rows, and for each the position of its row in `rows`."""
    lengths = np.diff(matrix.indptr)[rows]
    which = np.repeat(np.arange(len(rows)), lengths)
    shift = matrix.indptr[rows] - (np.cumsum(lengths) - lengths)
    return which, matrix.indices[np.arange(len(which)) + shift[which]]
