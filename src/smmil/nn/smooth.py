"""The smooth operator Sm: pulls every instance towards its neighbours (arXiv:2410.03276, section 4)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import KINDS, Graph
from smmil.nn import compiled, powers
from smmil.nn.exact import solve_smooth


def sm(u: Tensor, graph: Graph, alpha: float | Tensor, steps: int = 10) -> Tensor:
    """`steps` rounds of G ← α P G + (1-α) U starting from U; α = 0 returns u, larger is smoother.

    u      (n, k) or (n,) signal on the nodes           graph  normalised: P = graph.normalized()
    alpha  float in [0, 1) or a 0-dim tensor, differentiable
    Backward applies the same operator to the gradient, so memory does not grow with `steps`. The truncation error is at
    most α^steps: 10 steps are accurate up to α = 0.5 (1e-5) but not at 0.9 (6e-2); use `sm_exact` there.
    """
    alpha = _check(u, graph, alpha)
    if steps < 0 or int(steps) != steps:
        raise ConfigError(f"sm: steps must be a whole number >= 0, got {steps}")
    if steps == 0 or (isinstance(alpha, float) and alpha == 0.0):
        return u
    return _apply(_Iterated, u, graph, alpha, int(steps))


def sm_exact(u: Tensor, graph: Graph, alpha: float | Tensor, tol: float = 1e-6) -> Tensor:
    """(I + γL)⁻¹ u with γ = α/(1-α) and L = I - P: what `sm` tends to as its steps grow.

    Never builds a matrix: Chebyshev polynomials in P, as many as `tol` (relative error, per column, in the 2-norm) asks
    for, or a tridiagonal solve when the graph is a chain. Differentiable in u and alpha. Rounding sets a limit:
    in float32 about 1e-6 up to α = 0.99.
    """
    alpha = _check(u, graph, alpha)
    if not 0 < tol < 1:
        raise ConfigError(f"sm_exact: tol must lie between 0 and 1, got {tol}")
    if isinstance(alpha, float) and alpha == 0.0:
        return u
    return _apply(_Solved, u, graph, alpha, float(tol))


class Sm(nn.Module):
    """Smooth a signal over the graph of its instances.

    alpha          float in [0, 1), or "learned": one scalar through a sigmoid, starting at 0.5; read it as `.alpha`
    steps          rounds of the iteration (0 is the identity), or "exact" for the closed form
    normalization  how a graph as built is normalised; one that is normalised already is taken as it is
    isolated       "keep" leaves instances without neighbours alone; "shrink" fades them, as some libraries do
    """

    def __init__(
        self,
        alpha: float | str = "learned",
        steps: int | str = 10,
        *,
        normalization: str = "sym",
        isolated: str = "keep",
    ):
        super().__init__()
        self.learned = alpha == "learned"
        if isinstance(alpha, str) and not self.learned:
            raise ConfigError(f"Sm: alpha must be a number in [0, 1) or 'learned', got {alpha!r}")
        if steps != "exact" and not (type(steps) is int and steps >= 0):
            raise ConfigError(f"Sm: steps must be a whole number >= 0 or 'exact', got {steps!r}")
        check_choice(normalization, KINDS, "normalization")
        check_choice(isolated, ("keep", "shrink"), "isolated")
        self.steps = steps
        self.normalization = normalization
        self.isolated = isolated
        if self.learned:
            self.logit = nn.Parameter(torch.zeros(()))
        else:
            self.fixed = _check_alpha(float(alpha))

    @property
    def alpha(self) -> float | Tensor:
        """The paper's α as it stands."""
        return self.logit.sigmoid() if self.learned else self.fixed

    def normalize(self, graph: Graph) -> Graph:
        """The propagation matrix this operator uses on `graph`."""
        return graph if graph.kind else graph.normalized(self.normalization, self.isolated)

    def forward(self, u: Tensor, graph: Graph) -> Tensor:
        return self.smooth(u, graph, self.alpha)

    def smooth(self, u: Tensor, graph: Graph, alpha: float | Tensor) -> Tensor:
        """Forward with α given from outside, for callers that hold it as a tensor of their own."""
        graph = self.normalize(graph)
        return sm_exact(u, graph, alpha) if self.steps == "exact" else sm(u, graph, alpha, int(self.steps))

    def extra_repr(self) -> str:
        alpha = "learned" if self.learned else self.fixed
        return f"alpha={alpha}, steps={self.steps}, normalization={self.normalization}"


def _check(u: Tensor, graph: Graph, alpha: float | Tensor) -> float | Tensor:
    if graph.kind is None:
        raise DataError("sm needs a normalised graph: pass graph.normalized() (or 'sym_loop', 'rw')")
    if not u.is_floating_point():
        raise DataError(f"sm: the signal must be floating point, got {u.dtype}; use u.float()")
    if u.shape[0] != graph.n:
        raise DataError(f"sm: the signal has {u.shape[0]} rows but the graph {graph.n} nodes")
    if isinstance(alpha, Tensor):
        if alpha.numel() != 1:
            raise ConfigError(f"sm: alpha must be one number, got a tensor of shape {tuple(alpha.shape)}")
        _check_alpha(float(alpha.detach()), closed=True)
        return alpha.reshape(()) if alpha.requires_grad else float(alpha)
    return _check_alpha(float(alpha))


def _check_alpha(alpha: float, closed: bool = False) -> float:
    if not (0 <= alpha < 1 or (closed and alpha == 1)):
        raise ConfigError(f"sm: alpha must lie in [0, 1), got {alpha}")
    return alpha


def _apply(operator: Any, u: Tensor, graph: Graph, alpha: float | Tensor, effort: float) -> Tensor:
    """Run `operator` on a contiguous float matrix; half precision is smoothed in float32, where sparse kernels work.

    A float matrix comes back as it is, not as a view: a caller may add to it in place without autograd making copies.
    """
    rows = u.reshape(graph.n, -1)
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    g = operator.apply(rows.contiguous(), alpha, graph, effort)
    return g if g.shape == u.shape and g.dtype == u.dtype else g.reshape(u.shape).to(u.dtype)


class _Iterated(torch.autograd.Function):
    """Backward applies the (transposed) operator to the gradient; ∂/∂α comes from one matrix kept by the forward."""

    @staticmethod
    def forward(ctx, u, alpha, graph, steps):
        ctx.alpha, ctx.graph, ctx.steps = _value(alpha), graph, steps
        ctx.like = alpha.dtype if isinstance(alpha, Tensor) else None
        ctx.by = compiled if compiled.serves(u, steps) else powers
        g, kept = ctx.by.forward(u, graph, ctx.alpha, steps, slope=ctx.like is not None)
        ctx.save_for_backward(kept)
        return g

    @staticmethod
    @once_differentiable
    def backward(ctx, v):
        (kept,) = ctx.saved_tensors
        grad_u, slope = ctx.by.backward(v.contiguous(), kept, ctx.graph.transposed(), ctx.alpha, ctx.steps)
        grad_alpha = None if slope is None else torch.tensor(slope, dtype=ctx.like, device=v.device)
        return grad_u, grad_alpha, None, None


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.reshape(-1), b.reshape(-1)))


class _Solved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, alpha, graph, tol):
        value = min(_value(alpha), 1 - 1e-7)
        ctx.alpha, ctx.graph, ctx.tol = value, graph, tol
        g = solve_smooth(u, graph, value, tol)
        ctx.save_for_backward(g if isinstance(alpha, Tensor) else None)
        ctx.like = alpha.dtype if isinstance(alpha, Tensor) else None
        return g

    @staticmethod
    @once_differentiable
    def backward(ctx, v):
        """Implicit: ∂/∂u = Smᵀ V; with Sm = (I+γL)⁻¹, ∂/∂γ = -⟨Smᵀ V, L G⟩ and dγ/dα = (1-α)⁻²."""
        grad_u = solve_smooth(v.contiguous(), ctx.graph.transposed(), ctx.alpha, ctx.tol)
        (g,) = ctx.saved_tensors
        if g is None:
            return grad_u, None, None, None
        slope = -_dot(grad_u, g - ctx.graph.propagate(g)) / (1 - ctx.alpha) ** 2
        return grad_u, torch.tensor(slope, dtype=ctx.like, device=v.device), None, None


def _value(alpha: float | Tensor) -> float:
    return float(alpha.detach()) if isinstance(alpha, Tensor) else alpha
