"""The smooth operator Sm: diffusion over the graph of neighbouring instances (arXiv:2410.03276, section 4).

`smmil::sm` and `smmil::sm_exact` are torch operators over plain tensors: a signal, α, the matrix and its transpose as
CSR. The gradient of Sm (its backward) is the same operator with the two matrices exchanged, so it can be
differentiated again.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import KINDS, Graph
from smmil.nn.kernels import sm_cpu, sm_numba, tracing
from smmil.sparse import CSR, plain_product, without_autocast

_LARGEST = 1 - 1e-7  # of α in the closed form, whose γ = α/(1-α) must stay finite


def sm(u: Tensor, graph: Graph, alpha: float | Tensor, steps: int = 10) -> Tensor:
    """`steps` rounds of G ← α P G + (1-α) U starting from U; α = 0 returns u, larger is smoother.

    u      (n, k) or (n,) signal on the nodes           graph  normalised: P = graph.normalized()
    alpha  float in [0, 1) or a 0-dim tensor, differentiable
    Backward applies the same operator to the gradient, so memory does not grow with `steps`. The truncation error is at
    most α^steps: 10 steps are accurate up to α = 0.5 (1e-5) but not at 0.9 (6e-2); use `sm_exact` there.
    """
    strength = _check(u, graph, alpha)
    if steps < 0 or int(steps) != steps:
        raise ConfigError(f"sm: steps must be a whole number >= 0, got {steps}")
    if steps == 0 or (not isinstance(alpha, Tensor) and alpha == 0):
        return u
    rows = _float_rows(u, graph)
    slope = strength.requires_grad and torch.is_grad_enabled() and not tracing() and sm_cpu.is_applicable(rows)
    slope = slope and not sm_numba.is_applicable(rows, int(steps))
    g, _ = torch.ops.smmil.sm(rows, strength, *graph.sides, int(steps), slope)
    return _shaped(g, u)


def sm_exact(u: Tensor, graph: Graph, alpha: float | Tensor, tol: float = 1e-6) -> Tensor:
    """(I + γL)⁻¹ u with γ = α/(1-α) and L = I - P: what `sm` tends to as its steps grow.

    Never builds a matrix: Chebyshev polynomials in P, as many as `tol` (relative error, per column, in the 2-norm) asks
    for, or a tridiagonal solve when the graph is a chain. Differentiable in u and alpha. Rounding sets a limit:
    in float32 about 1e-6 up to α = 0.99. The number of products depends on the value of α, which is read from its
    device; a traced program needs α as a float and, for `rw`, the degrees.
    """
    strength = _check(u, graph, alpha)
    if not 0 < tol < 1:
        raise ConfigError(f"sm_exact: tol must lie between 0 and 1, got {tol}")
    if not isinstance(alpha, Tensor) and alpha == 0:
        return u
    degree = _chebyshev_degree(float(alpha.detach() if isinstance(alpha, Tensor) else alpha), tol, graph.skew)
    return _shaped(torch.ops.smmil.sm_exact(_float_rows(u, graph), strength, *graph.sides, degree), u)


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

    def fix_alpha(self) -> None:
        """Replace a learned α by its present value."""
        if self.learned:
            self.fixed, self.learned = float(self.logit.detach().sigmoid()), False
            del self.logit

    def normalize(self, graph: Graph) -> Graph:
        """The propagation matrix this operator uses on `graph`."""
        return graph if graph.kind else graph.normalized(self.normalization, self.isolated)

    def forward(self, u: Tensor, graph: Graph, alpha: float | Tensor | None = None) -> Tensor:
        """u, smoothed; `alpha` replaces the module's own, for callers that hold it as a tensor of theirs."""
        graph, alpha = self.normalize(graph), self.alpha if alpha is None else alpha
        return sm_exact(u, graph, alpha) if self.steps == "exact" else sm(u, graph, alpha, int(self.steps))

    def extra_repr(self) -> str:
        alpha = "learned" if self.learned else self.fixed
        return f"alpha={alpha}, steps={self.steps}, normalization={self.normalization}"


def _check(u: Tensor, graph: Graph, alpha: float | Tensor) -> Tensor:
    """α as a 0-dim tensor; a number stays on the host, where it can be read without waiting for a device."""
    if graph.kind is None:
        raise DataError("sm needs a normalised graph: pass graph.normalized() (or 'sym_loop', 'rw')")
    if not u.is_floating_point():
        raise DataError(f"sm: the signal must be floating point, got {u.dtype}; use u.float()")
    if u.shape[0] != graph.n:
        raise DataError(f"sm: the signal has {u.shape[0]} rows but the graph {graph.n} nodes")
    if not isinstance(alpha, Tensor):
        return torch.tensor(_check_alpha(float(alpha)), dtype=torch.float64)
    if alpha.numel() != 1:
        raise ConfigError(f"sm: alpha must be one number, got a tensor of shape {tuple(alpha.shape)}")
    if alpha.device.type == "cpu" and not tracing():
        _check_alpha(float(alpha.detach()), closed=True)
    return alpha.reshape(())


def _check_alpha(alpha: float, closed: bool = False) -> float:
    if not (0 <= alpha < 1 or (closed and alpha == 1)):
        raise ConfigError(f"sm: alpha must lie in [0, 1), got {alpha}")
    return alpha


def _float_rows(u: Tensor, graph: Graph) -> Tensor:
    """u as a contiguous matrix; half precision is smoothed in float32, where sparse kernels work."""
    rows = u.reshape(graph.n, -1)
    return (rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).contiguous()


def _shaped(g: Tensor, like: Tensor) -> Tensor:
    """g in the form of the input; one that has it is no view, so a caller may add to it in place without a copy."""
    return g if g.shape == like.shape and g.dtype == like.dtype else g.reshape(like.shape).to(like.dtype)


def _chebyshev_degree(alpha: float, tol: float, skew: float) -> int:
    """How many products with P the tolerance needs; known beforehand, so the operator is linear and self-adjoint.

    The spectrum of P lies in [-1, 1], hence 1/((1+γ) - γx) = Σ' c_k T_k(x) with c_k = 2 rᵏ/√(1+2γ); its tail is divided
    by the smallest gain 1/(1+2γ) to bound the error relative to the solution. `rw` is similar to `sym` through D^½,
    which may enlarge errors by the square root of the ratio of the degrees.
    """
    if alpha == 0:
        return 1
    if math.isnan(skew):
        raise ConfigError("Sm with steps=exact and normalization=rw needs more steps the more degrees differ")
    gamma = min(alpha, _LARGEST) / (1 - min(alpha, _LARGEST))
    root, r = _root_and_ratio(gamma)
    wanted = tol * (1 - r) / (2 * root) / skew
    return max(1, math.ceil(math.log(wanted) / math.log(r)) - 1)


def _root_and_ratio(gamma: Any) -> tuple[Any, Any]:
    """√(1+2γ) and r = (1 + γ - √(1+2γ))/γ, written so that nothing cancels when γ is small."""
    root = (1 + 2 * gamma) ** 0.5
    return root, gamma / (1 + gamma + root)


def _coefficients(alpha: Any, degree: int) -> list[Any]:
    """Chebyshev coefficients of (I + γL)⁻¹, from a number or a tensor α."""
    root, r = _root_and_ratio(alpha / (1 - alpha))
    return [1 / root, *(2 * r**k / root for k in range(1, degree + 1))]


@torch.library.custom_op("smmil::sm", mutates_args=())
def _sm(
    u: Tensor,
    alpha: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor,
    across_indptr: Tensor,
    across_indices: Tensor,
    across_weight: Tensor,
    steps: int,
    slope: bool,
) -> tuple[Tensor, Tensor]:
    """`sm` of a contiguous matrix u in float32 or float64; `across_…` is the transposed matrix; steps at least 1.

    With it ∂/∂α, an (n, k) matrix, if `slope` is asked for: backward then needs no products for α.
    """
    matrix, none = CSR(indptr, indices, weight), u.new_empty(0)
    if not slope and sm_numba.is_applicable(u, steps):
        return sm_numba.smooth(u, matrix, float(alpha), steps), none
    with without_autocast(u):
        if slope or sm_cpu.is_applicable(u):
            return sm_cpu.smooth(u, matrix, float(alpha), steps, slope)
        return _plain_sm(u, alpha, *matrix, across_indptr, across_indices, across_weight, steps, slope)


def _plain_sm(u: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The definition."""
    *sides, steps, _slope_wanted = rest
    alpha = alpha.to(u.dtype)
    g = u
    for _ in range(steps):
        g = alpha * torch.ops.smmil.propagate(g, *sides) + (1 - alpha) * u
    return g, u.new_empty(0)


@torch.library.custom_op("smmil::sm_backward", mutates_args=())
def _sm_backward(
    v: Tensor,
    u: Tensor,
    alpha: Tensor,
    across_indptr: Tensor,
    across_indices: Tensor,
    across_weight: Tensor,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of u and α from the gradient v of `sm`, from one sequence of products."""
    across = CSR(across_indptr, across_indices, across_weight)
    if sm_numba.is_applicable(u, steps):
        grad_u, slope = sm_numba.smooth_backward(v, u, across, float(alpha), steps)
        return grad_u, torch.full_like(alpha, slope)
    with without_autocast(u):
        return _plain_sm_backward(v, u, alpha, *across, *across, steps)


def _plain_sm_backward(v: Tensor, u: Tensor, alpha: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """With D = (P - I) V: ∂/∂u = V + α Σ_{s<T} αˢ Pˢ D and ∂/∂α = ⟨U, Σ_{s<T} (s+1) αˢ Pˢ D⟩."""
    *sides, steps = rest
    y = torch.ops.smmil.propagate(v, *sides) - v
    power, grad_u, slope = alpha.to(u.dtype), v, torch.zeros_like(alpha)
    for s in range(steps):
        y = y if s == 0 else torch.ops.smmil.propagate(y, *sides)
        grad_u = grad_u + power * y
        slope = slope + (s + 1) * alpha**s * (u * y).sum().to(alpha)
        power = power * alpha.to(u.dtype)
    return grad_u, slope


@_sm.register_fake
def _(u: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(u) if rest[-1] else u.new_empty(0)


@_sm_backward.register_fake
def _(v: Tensor, u: Tensor, alpha: Tensor, *_rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), torch.empty_like(alpha)


def _keep_for_sm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    u, alpha, *ctx.sides, ctx.steps, slope = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(u if alpha.requires_grad else None, alpha, output[1] if slope else None)


def _sm_gradient(ctx: Any, v: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    """Backward of Sm: gradients of the signal and of α; from the kept slope where the forward pass left one."""
    (u, alpha, slope), v = ctx.saved_tensors, v.contiguous()
    sides, across = ctx.sides, (*ctx.sides[3:], *ctx.sides[:3])
    if u is not None and slope is None and not torch.is_grad_enabled():
        return *torch.ops.smmil.sm_backward(v, u, alpha, *across[:3], ctx.steps), *[None] * 8
    grad_u, _ = torch.ops.smmil.sm(v, alpha, *across, ctx.steps, False)
    grad_alpha = None
    if u is not None and torch.is_grad_enabled():  # a second derivative is wanted
        grad_alpha = (v * _slope(u, alpha, sides, ctx.steps)).sum().to(alpha)
    elif u is not None:
        grad_alpha = torch.dot(v.reshape(-1), slope.reshape(-1)).to(alpha)
    return grad_u, grad_alpha, *[None] * 8


def _slope(u: Tensor, alpha: Tensor, sides: list[Tensor], steps: int) -> Tensor:
    """∂/∂α of `sm`: Σ_{s<T} (s+1) αˢ Pˢ (P - I) u."""
    y = torch.ops.smmil.propagate(u, *sides) - u
    total: Tensor = y
    for s in range(1, steps):
        y = torch.ops.smmil.propagate(y, *sides)
        total = total + (s + 1) * (alpha**s).to(u.dtype) * y
    return total


_sm.register_autograd(_sm_gradient, setup_context=_keep_for_sm)


@torch.library.custom_op("smmil::sm_exact", mutates_args=())
def _sm_exact(
    u: Tensor,
    alpha: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor,
    across_indptr: Tensor,
    across_indices: Tensor,
    across_weight: Tensor,
    degree: int,
) -> Tensor:
    """`sm_exact` of a contiguous matrix u in float32 or float64, by Chebyshev polynomials up to `degree`."""
    matrix = CSR(indptr, indices, weight)
    if u.device.type == "cpu":
        value = min(float(alpha), _LARGEST)
        if value == 0:
            return u.clone()
        if matrix.bandwidth <= 1:
            return sm_cpu.solve_chain(u, matrix, value / (1 - value))
        if sm_numba.is_applicable(u, degree):
            return sm_numba.chebyshev(u, matrix, _coefficients(value, degree))
        if sm_cpu.is_applicable(u):
            with without_autocast(u):
                return sm_cpu.chebyshev(u, matrix, _coefficients(value, degree))
    return _plain_sm_exact(u, alpha, *matrix, across_indptr, across_indices, across_weight, degree)


def _plain_sm_exact(u: Tensor, alpha: Tensor, *rest: Any) -> Tensor:
    """Σ c_k T_k(P) u with T_0 u = u, T_1 u = P u, T_k u = 2 P T_{k-1} u - T_{k-2} u."""
    *sides, degree = rest
    c = [c.to(u.dtype) for c in _coefficients(alpha.clamp_max(_LARGEST), degree)]
    before, now = u, torch.ops.smmil.propagate(u, *sides)
    total: Tensor = c[0] * before + c[1] * now
    for k in range(2, degree + 1):
        before, now = now, 2 * torch.ops.smmil.propagate(now, *sides) - before
        total = total + c[k] * now
    return total


@_sm_exact.register_fake
def _(u: Tensor, *_rest: Any) -> Tensor:
    return torch.empty_like(u)


def _keep_for_exact(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, alpha, *ctx.sides, ctx.degree = inputs
    ctx.save_for_backward(output if alpha.requires_grad else None, alpha)


def _sm_exact_gradient(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
    """Implicit: ∂/∂u = Smᵀ V; with Sm = (I+γL)⁻¹, ∂/∂γ = -⟨Smᵀ V, L G⟩ and dγ/dα = (1-α)⁻²."""
    g, alpha = ctx.saved_tensors
    grad_u = torch.ops.smmil.sm_exact(v.contiguous(), alpha, *ctx.sides[3:], *ctx.sides[:3], ctx.degree)
    grad_alpha = None
    if g is not None:
        rough = g - torch.ops.smmil.propagate(g, *ctx.sides)
        distance = 1 - alpha + (alpha.detach() - _LARGEST).clamp_min(0)
        grad_alpha = -torch.dot(grad_u.reshape(-1), rough.reshape(-1)).to(alpha) / distance**2
    return grad_u, grad_alpha, *[None] * 7


_sm_exact.register_autograd(_sm_exact_gradient, setup_context=_keep_for_exact)


def plain_operators() -> dict[Any, Callable[..., Any]]:
    """Every operator of smmil in operations that any runtime knows, for `ExportedProgram.run_decompositions`."""
    ops = torch.ops.smmil
    return {
        ops.propagate.default: plain_product,
        ops.sm.default: _plain_sm,
        ops.sm_backward.default: lambda v, u, a, *rest: _plain_sm_backward(v, u, a, *rest[:-1], *rest),
        ops.sm_exact.default: _plain_sm_exact,
    }
