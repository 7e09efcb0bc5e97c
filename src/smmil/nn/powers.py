"""Sm by powers of the propagation matrix, arranged so that memory is touched as rarely as possible.

With D = (P - I) U, the T-step operator is G = U + α Σ_{s<T} αˢ Pˢ D, and ∂G/∂α = Σ_{s<T} (s+1) αˢ Pˢ D comes from the
same powers, without a division by α. Large bags are bound by memory, not by arithmetic, so powers are summed in pairs,

    Σ_{s<2m} αˢ Pˢ D = (I + αP) R,                  R = Σ_{j<m} α²ʲ P²ʲ D
    Σ_{s<2m} (s+1) αˢ Pˢ D = 2 (I + αP) S - R,      S = Σ_{j<m} (j+1) α²ʲ P²ʲ D

which halves the additions.
"""

import torch
from torch import Tensor

from smmil.graph import Graph
from smmil.nn.blocks import by_columns


def forward(u: Tensor, graph: Graph, alpha: float, steps: int, slope: bool) -> tuple[Tensor, Tensor | None]:
    """G, and ∂G/∂α if `slope` is asked for; u is (n, k) and contiguous, steps at least 1."""
    g, *along = by_columns(u, lambda block: _block(block, graph, alpha, steps, slope))
    return g, along[0] if slope else None


def backward(v: Tensor, kept: Tensor | None, graph: Graph, alpha: float, steps: int) -> tuple[Tensor, float | None]:
    """Gradients of u and of α, from the gradient v of the result; kept is ∂G/∂α, and `graph` is transposed already."""
    grad_u, _ = forward(v, graph, alpha, steps, slope=False)
    return grad_u, None if kept is None else float(torch.dot(v.reshape(-1), kept.reshape(-1)))


def _block(u: Tensor, graph: Graph, alpha: float, steps: int, slope: bool) -> tuple[Tensor, ...]:
    """The results for a block of columns. Buffers are few and used again: fresh memory costs more than arithmetic."""
    y = graph.accumulate(u.clone(), u, -1.0, 1.0)
    if steps == 1:
        return (u.add(y, alpha=alpha), y) if slope else (u.add(y, alpha=alpha),)
    r, twice_s = y.clone(), 2 * y if slope else None
    spare = torch.zeros_like(u)
    for j in range(1, steps // 2):
        _square(graph, y, spare)
        r.add_(y, alpha=alpha ** (2 * j))
        if twice_s is not None:
            twice_s.add_(y, alpha=2 * (j + 1) * alpha ** (2 * j))
    if steps % 2:
        _square(graph, y, spare)
    results = [graph.accumulate(torch.add(u, r, alpha=alpha, out=spare), r, 1.0, alpha**2)]
    if twice_s is not None:
        results.append(graph.accumulate(torch.sub(twice_s, r, out=r), twice_s, 1.0, alpha))
    if steps % 2:
        for result, factor in zip(results, (alpha**steps, steps * alpha ** (steps - 1)), strict=False):
            result.add_(y, alpha=factor)
    return tuple(results)


def _square(graph: Graph, y: Tensor, spare: Tensor) -> None:
    """y becomes P P y."""
    graph.accumulate(spare, y, 0.0, 1.0)
    graph.accumulate(y, spare, 0.0, 1.0)
