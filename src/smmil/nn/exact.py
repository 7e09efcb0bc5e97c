"""Solving (I + γL) G = U without building a matrix."""

import math

import numpy as np
import torch
from scipy.linalg import solve_banded
from torch import Tensor

from smmil.graph import Graph
from smmil.nn import compiled
from smmil.nn.blocks import by_columns


def solve_smooth(u: Tensor, graph: Graph, alpha: float, tol: float) -> Tensor:
    """G with (I + γ(I - P)) G = U, γ = α/(1-α), to a relative error of `tol`."""
    if alpha == 0:
        return u.clone()
    gamma = alpha / (1 - alpha)
    if graph.is_chain and u.device.type == "cpu":
        return _solve_chain(u, graph, gamma)
    degree = chebyshev_degree(gamma, tol, graph)
    if compiled.serves(u, degree):
        root, r = _root_and_ratio(gamma)
        return compiled.chebyshev(u, graph, [1 / root, *(2 * r**k / root for k in range(1, degree + 1))])
    (g,) = by_columns(u, lambda block: (_chebyshev(block, graph, gamma, degree),))
    return g


def chebyshev_degree(gamma: float, tol: float, graph: Graph) -> int:
    """How many products with P the tolerance needs; known beforehand, so the operator is linear and self-adjoint.

    The spectrum of P lies in [-1, 1], hence 1/((1+γ) - γx) = Σ' c_k T_k(x) with c_k = 2 rᵏ/√(1+2γ); its tail is divided
    by the smallest gain 1/(1+2γ) to bound the error relative to the solution. `rw` is similar to `sym` through D^½,
    which may enlarge errors by the square root of the ratio of the degrees.
    """
    root, r = _root_and_ratio(gamma)
    wanted = tol * (1 - r) / (2 * root) / graph.skew
    return max(1, math.ceil(math.log(wanted) / math.log(r)) - 1)


def _root_and_ratio(gamma: float) -> tuple[float, float]:
    """√(1+2γ) and r = (1 + γ - √(1+2γ))/γ, written so that nothing cancels when γ is small."""
    root = math.sqrt(1 + 2 * gamma)
    return root, gamma / (1 + gamma + root)


def _chebyshev(u: Tensor, graph: Graph, gamma: float, degree: int) -> Tensor:
    root, r = _root_and_ratio(gamma)
    before, now = u.clone(), graph.accumulate(torch.zeros_like(u), u, 0.0, 1.0)
    total = u / root
    total.add_(now, alpha=2 * r / root)
    for k in range(2, degree + 1):
        before, now = now, graph.accumulate(before, now, -1.0, 2.0)
        total.add_(now, alpha=2 * r**k / root)
    return total


def _solve_chain(u: Tensor, graph: Graph, gamma: float) -> Tensor:
    """Direct solve of the tridiagonal system (several chains below each other are one such system)."""
    bands = np.zeros((3, graph.n))
    bands[1] = 1 + gamma
    rows, columns = graph.rows.numpy(), graph.indices.numpy()
    np.add.at(bands, (1 + rows - columns, columns), -gamma * graph.weight.numpy())
    solved = solve_banded((1, 1), bands, u.detach().numpy().astype(np.float64), check_finite=False)
    return torch.from_numpy(solved).to(u.dtype)
