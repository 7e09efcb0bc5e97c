"""The smooth operator as a posterior: how far each instance listens to its neighbours, and how sure the result is.

A hidden map g is smooth, p(g) ∝ exp(-κ gᵀLg / 2) with L = I - P, and seen with noise, u_n = g_n + N(0, σ_n²). Given u
it is Gaussian with the precision Λ = diag(1/σ²) + κL, the mean Λ⁻¹ diag(1/σ²) u and the variances diag(Λ⁻¹). With one
σ² for all, Λ = (I + γL)/σ² with γ = κσ², so the mean is `sm_exact` with α = γ/(1 + γ).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from smmil.errors import ConfigError, DataError, check_choice
from smmil.graph import Graph
from smmil.nn.kernels import sm_cpu, tracing
from smmil.nn.pool import AttentionPool
from smmil.nn.precision import _conjugate_gradients, _diagonal_of_inverse, _inverse_root, _probe_colours, _System
from smmil.nn.segment import segment_softmax, weighted_sum
from smmil.sparse import CSR

_TOLERANCE = {torch.float64: 1e-12}
_USUAL_TOLERANCE = 1e-8  # of float32: products are taken in float64, so that this is a matter of a few iterations
_PROBE_TOLERANCE = 1e-4
_BLOCK_BYTES = 64 << 20  # of one of the five matrices that conjugate gradients hold
_LEAST_NOISE = 0.01  # σ² of the surest instance, so that precisions stay finite
_METHODS = ("auto", "exact", "probes")


def sm_posterior(
    u: Tensor,
    graph: Graph,
    noise: float | Tensor,
    strength: float | Tensor,
    probes: int = 32,
    *,
    method: str = "auto",
    tol: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean (like u) and variance (n,) of the smooth map behind the noisy signal u; high noise listens to neighbours.

    u         (n, k) or (n,) signal on the nodes          graph     normalised and symmetric (`sym` or `sym_loop`)
    noise     σ_n² > 0: one variance or (n,)               strength  κ ≥ 0; with 0 nothing is smoothed
    tol       relative error of the mean (2-norm, weighted by D); default 1e-12 in float64, else 1e-8
    method    of the variance: "exact" by block elimination, in 6 n w² operations and n w numbers where neighbours
              are at most w rows apart after reordering (a chain: w = 1; tissue of 60,000 patches: about 300);
              "probes", by Hutchinson's estimator with at most `probes` solves; "auto" is exact up to n w² = 10¹⁰
    The mean is differentiable in u, noise and strength; the variance has no gradient. Nothing of size n² is built.

    Probes are ±1 on nodes of one colour, 0 elsewhere; nodes of a colour are farther apart than the largest distance for
    which `probes` colours suffice, so that what is near cancels exactly and parts of at most `probes` nodes are exact.
    The estimate is unbiased before it is clipped to the bounds 1/Λ_nn and σ_n². Its relative error on lattices with 32
    probes, mean and largest over the nodes: 0.1 % and 1 % at κσ² = 1, 1.5 % and 7 % at 4, 5 % and 20 % at 9; plain ±1
    probes miss by 4 % and 25 %, 8 % and 40 %, 13 % and 75 %. `generator` draws their signs; without it they are fixed.
    """
    check_choice(method, _METHODS, "sm_posterior: method")
    if type(probes) is not int or probes < 1:
        raise ConfigError(f"sm_posterior: probes must be a whole number of at least 1, got {probes!r}")
    mean = _posterior_mean(u, graph, noise, strength, tol)
    return mean, _posterior_variance(u, graph, noise, strength, probes, method=method, generator=generator)


def _posterior_mean(
    u: Tensor, graph: Graph, noise: float | Tensor, strength: float | Tensor, tol: float | None = None
) -> Tensor:
    """The mean of `sm_posterior` alone, differentiable."""
    precision, kappa = _checked(u, graph, noise, strength)
    tol = _TOLERANCE.get(u.dtype, _USUAL_TOLERANCE) if tol is None else tol
    if not 0 < tol < 1:
        raise ConfigError(f"sm_posterior: tol must lie between 0 and 1, got {tol}")
    if not isinstance(strength, Tensor) and strength == 0:
        return u
    rows = u.reshape(graph.n, -1)
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    solved: Tensor = torch.ops.smmil.posterior_solve(rows * precision[:, None], precision, kappa, *graph.csr, tol)
    return solved.reshape(u.shape).to(u.dtype)


def _posterior_variance(
    u: Tensor,
    graph: Graph,
    noise: float | Tensor,
    strength: float | Tensor,
    probes: int = 32,
    *,
    method: str = "auto",
    generator: torch.Generator | None = None,
) -> Tensor:
    """The variance (n,) of `sm_posterior` alone, in the precision of u; it does not depend on the values of u."""
    precision, kappa = _checked(u, graph, noise, strength)
    seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator, device=generator.device))
    with torch.no_grad():
        found: Tensor = torch.ops.smmil.posterior_variance(precision, kappa, *graph.csr, probes, method, seed)
    return found.to(u.dtype)


def sm_posterior_sample(
    u: Tensor,
    graph: Graph,
    noise: float | Tensor,
    strength: float | Tensor,
    samples: int = 1,
    *,
    tol: float = 1e-6,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`samples` maps (samples, *u.shape) drawn from the posterior; without gradient.

    mean + D^-½ M^-½ ε with M = D^-½ Λ D^-½ and ε standard normal, which has the covariance Λ⁻¹. M^-½ is a Chebyshev
    polynomial on the known bounds of the spectrum, with an error of `tol` relative to its largest value. (An edge
    factor BᵀB = L would ask for the degrees, which a normalised graph no longer holds.) Without `generator` the draw is
    the same every time.
    """
    if type(samples) is not int or samples < 1:
        raise ConfigError(f"sm_posterior_sample: samples must be a whole number of at least 1, got {samples!r}")
    with torch.no_grad():
        mean = _posterior_mean(u, graph, noise, strength)
        precision, kappa = (t.detach() for t in _checked(u, graph, noise, strength))
        work = _working_dtype(u)
        generator = generator or torch.Generator(u.device).manual_seed(0)
        columns = samples * (u.numel() // graph.n)
        epsilon = torch.randn(graph.n, columns, generator=generator, device=u.device, dtype=work)
        drawn = _inverse_root(epsilon, _System(graph.csr, precision.to(work), float(kappa)), tol)
    drawn = drawn.reshape(graph.n, samples, -1).transpose(0, 1).reshape(samples, *u.shape)
    return mean + drawn.to(u.dtype)


def _checked(u: Tensor, graph: Graph, noise: float | Tensor, strength: float | Tensor) -> tuple[Tensor, Tensor]:
    """1/σ² as (n,) and κ as a 0-dim tensor, both floating point on the device of u."""
    if graph.kind not in ("sym", "sym_loop"):
        raise DataError("sm_posterior needs a symmetric normalised graph: pass graph.normalized() (or 'sym_loop')")
    if not u.is_floating_point():
        raise DataError(f"sm_posterior: the signal must be floating point, got {u.dtype}; use u.float()")
    if u.shape[0] != graph.n:
        raise DataError(f"sm_posterior: the signal has {u.shape[0]} rows but the graph {graph.n} nodes")
    dtype = u.dtype if u.dtype in (torch.float32, torch.float64) else torch.float32
    variances = noise if isinstance(noise, Tensor) else torch.tensor(float(noise), dtype=dtype, device=u.device)
    kappa = strength if isinstance(strength, Tensor) else torch.tensor(float(strength), dtype=dtype, device=u.device)
    if variances.numel() not in (1, graph.n):
        raise DataError(f"sm_posterior: noise must be one variance or {graph.n}, got shape {tuple(variances.shape)}")
    if kappa.numel() != 1:
        raise ConfigError(f"sm_posterior: strength must be one number, got a tensor of shape {tuple(kappa.shape)}")
    if not tracing():
        if not bool((variances > 0).all() and torch.isfinite(variances).all()):
            raise DataError("sm_posterior: noise must be positive and finite variances")
        if not 0 <= float(kappa.detach()) < math.inf:
            raise ConfigError(f"sm_posterior: strength must be a finite number >= 0, got {float(kappa.detach())}")
    return (1 / variances.to(dtype)).reshape(-1).expand(graph.n), kappa.reshape(())


def _working_dtype(like: Tensor) -> torch.dtype:
    return torch.float32 if like.device.type == "mps" else torch.float64  # MPS has no other


@torch.library.custom_op("smmil::posterior_solve", mutates_args=())
def _solve(
    b: Tensor, precision: Tensor, kappa: Tensor, indptr: Tensor, indices: Tensor, weight: Tensor, tol: float
) -> Tensor:
    """Λ⁻¹ b for b (n, k) in float32 or float64, computed in float64."""
    work, matrix, strength = _working_dtype(b), CSR(indptr, indices, weight), float(kappa)
    if b.device.type == "cpu" and matrix.bandwidth <= 1:
        return sm_cpu.solve_chain(b, matrix, strength, precision.double().numpy())
    system = _System(matrix, precision.to(work), strength)
    width = max(1, _BLOCK_BYTES // (b.shape[0] * 8))
    blocks = [_conjugate_gradients(part.to(work).contiguous(), system, tol) for part in b.split(width, dim=1)]
    return torch.cat(blocks, 1).to(b.dtype)


@_solve.register_fake
def _(b: Tensor, *_rest: Any) -> Tensor:
    return torch.empty_like(b)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, precision, kappa, *ctx.matrix, ctx.tol = inputs
    ctx.save_for_backward(output, precision, kappa)


def _gradient(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
    """Implicit: with w = Λ⁻¹ v, ∂/∂b = w, ∂/∂precision_n = -Σ_k w_nk x_nk and ∂/∂κ = -⟨w, Lx⟩."""
    x, precision, kappa = ctx.saved_tensors
    w = torch.ops.smmil.posterior_solve(v.contiguous(), precision, kappa, *ctx.matrix, ctx.tol)
    rough = x - torch.ops.smmil.propagate(x, *ctx.matrix, *ctx.matrix)
    return w, -(w * x).sum(1).to(precision.dtype), -(w * rough).sum().to(kappa.dtype), None, None, None, None


_solve.register_autograd(_gradient, setup_context=_keep)


@torch.library.custom_op("smmil::posterior_variance", mutates_args=())
def _variance(
    precision: Tensor,
    kappa: Tensor,
    indptr: Tensor,
    indices: Tensor,
    weight: Tensor,
    probes: int,
    method: str,
    seed: int,
) -> Tensor:
    """diag(Λ⁻¹), exactly or by probes as `sm_posterior` explains."""
    matrix, strength = CSR(indptr, indices, weight), float(kappa)
    starts, columns, values = (t.detach().cpu().numpy() for t in matrix)
    if method != "probes":
        found = _diagonal_of_inverse(
            starts, columns, values, precision.double().cpu().numpy(), strength, force=method == "exact"
        )
        if found is not None:
            return torch.from_numpy(found).to(precision)
    colours = torch.from_numpy(_probe_colours(starts, columns, probes)).to(precision.device)
    signs = torch.randint(2, (matrix.n,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    signs = signs.to(precision)
    system = _System(matrix, precision.contiguous(), strength)
    used, width = int(colours.max()) + 1, max(1, _BLOCK_BYTES // (matrix.n * precision.element_size()))
    estimate = torch.zeros_like(system.diagonal)
    for first in range(0, used, width):
        numbers = torch.arange(first, min(first + width, used), device=precision.device)
        probe = (colours[:, None] == numbers).to(precision) * signs[:, None]
        estimate += (probe * _conjugate_gradients(probe, system, _PROBE_TOLERANCE)).sum(1)
    return estimate.clamp(1 / system.diagonal, 1 / precision)


@_variance.register_fake
def _(precision: Tensor, *_rest: Any) -> Tensor:
    return torch.empty_like(precision, memory_format=torch.contiguous_format)


class PosteriorAttentionPool(AttentionPool):
    """Attention pooling whose scores are the means of `sm_posterior`: a noisy instance listens to its neighbours.

    noise     "learned": σ_n² = 0.01 + softplus(v·h_n + c), which starts near 1; or one number for all instances
    strength  κ > 0: "learned", which starts at 1, or a number
    Bag labels teach only the products κσ_n², which is all the mean depends on; the deviations have the scale of κ^-½.
    Returns z (b, dim), the scores (n, 1) and, where asked for, their standard deviation (n, 1), without gradient.
    """

    def __init__(
        self,
        dim: int,
        att_dim: int = 100,
        *,
        noise: float | str = "learned",
        strength: float | str = "learned",
        probes: int = 32,
        gated: bool = False,
        bias: bool = True,
        normalization: str = "sym",
        isolated: str = "keep",
    ):
        super().__init__(dim, att_dim, gated=gated, bias=bias)
        self.sigma2, self.kappa = (_positive(n, v) for n, v in (("noise", noise), ("strength", strength)))
        self.normalization = check_choice(normalization, ("sym", "sym_loop"), "normalization")
        self.isolated = check_choice(isolated, ("keep", "shrink"), "isolated")
        self.probes = probes
        self.noise = nn.Linear(dim, 1) if self.sigma2 is None else None
        if self.noise is not None:
            nn.init.constant_(self.noise.bias, math.log(math.expm1(1 - _LEAST_NOISE)))
        if self.kappa is None:
            self.log_strength = nn.Parameter(torch.zeros(()))

    @property
    def strength(self) -> float | Tensor:
        """κ as it stands."""
        return self.log_strength.exp() if self.kappa is None else self.kappa

    def forward(  # type: ignore[override]
        self, h: Tensor, offsets: Tensor, graph: Graph, uncertainty: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        graph = graph if graph.kind else graph.normalized(self.normalization, self.isolated)
        u = self._score(self.project(h), None if self.gate is None else self.gate(h))
        sigma2: float | Tensor | None = self.sigma2
        if sigma2 is None:
            assert self.noise is not None
            sigma2 = _LEAST_NOISE + softplus(self.noise(h).to(u.dtype))
        scores = _posterior_mean(u, graph, sigma2, self.strength)
        deviation = None
        if uncertainty:
            deviation = _posterior_variance(u, graph, sigma2, self.strength, self.probes).sqrt()[:, None]
        return weighted_sum(h, segment_softmax(scores, offsets), offsets), scores, deviation


def _positive(name: str, value: float | str) -> float | None:
    """The number, None for "learned"."""
    if value == "learned":
        return None
    if isinstance(value, str) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a positive number or 'learned', got {value!r}")
    return float(value)
