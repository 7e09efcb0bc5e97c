"""Sm by powers of the propagation matrix, arranged so that memory is touched as rarely as possible.

With D = (P - I) U, the T-step operator is G = U + α Σ_{s<T} αˢ Pˢ D, and ∂G/∂α = Σ_{s<T} (s+1) αˢ Pˢ D comes from the
same powers, without a division by α. Large bags are bound by memory, not by arithmetic, so powers are summed in pairs,

    Σ_{s<2m} αˢ Pˢ D = (I + αP) R,                  R = Σ_{j<m} α²ʲ P²ʲ D
    Σ_{s<2m} (s+1) αˢ Pˢ D = 2 (I + αP) S - R,      S = Σ_{j<m} (j+1) α²ʲ P²ʲ D

which halves the additions, and columns are taken in blocks whose buffers stay in the processor's cache.
"""

import torch
from torch import Tensor

from smmil.graph import Graph

BLOCK_BYTES = 8 << 20


def smooth_powers(u: Tensor, graph: Graph, alpha: float, steps: int, slope: bool) -> tuple[Tensor, Tensor | None]:
    """G, and ∂G/∂α if `slope` is asked for; u is (n, k) and contiguous, steps at least 1."""
    width = max(16, BLOCK_BYTES // (u.shape[0] * u.element_size()))
    if width >= u.shape[1]:
        return _block(u, graph, alpha, steps, slope)
    g, d = torch.empty_like(u), torch.empty_like(u) if slope else None
    for start in range(0, u.shape[1], width):
        columns = slice(start, start + width)
        part, along = _block(u[:, columns].contiguous(), graph, alpha, steps, slope)
        g[:, columns] = part
        if d is not None and along is not None:
            d[:, columns] = along
    return g, d


def _block(u: Tensor, graph: Graph, alpha: float, steps: int, slope: bool) -> tuple[Tensor, Tensor | None]:
    y = graph.accumulate(u.clone(), u, -1.0, 1.0)
    if steps == 1:
        return u.add(y, alpha=alpha), y if slope else None
    r, s = y.clone(), y.clone() if slope else None
    spare = torch.zeros_like(u)
    for j in range(1, steps // 2):
        _square(graph, y, spare)
        r.add_(y, alpha=alpha ** (2 * j))
        if s is not None:
            s.add_(y, alpha=(j + 1) * alpha ** (2 * j))
    g = graph.accumulate(torch.add(u, r, alpha=alpha), r, 1.0, alpha**2)
    d = None if s is None else graph.accumulate(torch.sub(2 * s, r), s, 1.0, 2 * alpha)
    if steps % 2:
        _square(graph, y, spare)
        g.add_(y, alpha=alpha**steps)
        if d is not None:
            d.add_(y, alpha=steps * alpha ** (steps - 1))
    return g, d


def _square(graph: Graph, y: Tensor, spare: Tensor) -> None:
    """y becomes P P y."""
    graph.accumulate(spare, y, 0.0, 1.0)
    graph.accumulate(y, spare, 0.0, 1.0)
