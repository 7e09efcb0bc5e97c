import copy
import dataclasses
import gc
import itertools
import sys
import weakref

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, eye_array
from scipy.sparse.linalg import cg
from support.bags import STEP, grid_coords, random_graph

from smmil.errors import ConfigError, DataError
from smmil.graph import KINDS, Graph, chain_graph, grid_graph, join
from smmil.nn import Sm, kernels, sm, sm_exact
from smmil.nn.kernels import sm_cpu, sm_numba
from smmil.sparse import CSR

ALPHAS = (0.1, 0.5, 0.9)
GRAPHS = {
    "grid": grid_graph(grid_coords(70, fill=0.4), STEP),
    "chain": chain_graph(34),
    "random": random_graph(40),
    "cycle": Graph.from_edges([np.arange(12), (np.arange(12) + 1) % 12], n=12),
    "lonely": Graph.from_edges([[0], [1]], n=5),
    "single": chain_graph(1),
}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True, params=["plain", "torch", "compiled"])
def _every_way(request, monkeypatch):
    """Every law holds for plain torch, for torch with reused buffers and for the compiled products."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setenv("SMMIL_COMPILED", "1" if request.param == "compiled" else "0")
    if request.param != "plain":
        yield
        return
    with kernels.disabled():
        yield


def signal(graph, k=3, seed=0):
    return torch.randn(graph.n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_sm(u, p, alpha, steps=10):
    """The definition, dense, in numpy."""
    u, p = u.numpy(), p.dense().numpy()
    g = u
    for _ in range(steps):
        g = alpha * p @ g + (1 - alpha) * u
    return torch.from_numpy(g)


def slow_exact(u, p, alpha):
    laplacian = np.eye(p.n) - p.dense().numpy()
    return torch.from_numpy(np.linalg.solve(np.eye(p.n) + alpha / (1 - alpha) * laplacian, u.numpy()))


@every_graph
@every_kind
def test_sm_is_its_definition(graph, kind):
    p, u = graph.normalized(kind), signal(graph)
    for alpha, steps in itertools.product(ALPHAS, (10, 1)):
        assert (sm(u, p, alpha, steps=steps) - slow_sm(u, p, alpha, steps)).abs().max() < 1e-10, (alpha, steps)
    assert torch.equal(sm(u, p, 0.5), sm(u, p, 0.5, steps=10))


@every_graph
@every_kind
def test_exact_keeps_its_tolerance(graph, kind):
    p, u = graph.normalized(kind), signal(graph)
    for alpha in (0.1, 0.5, 0.9, 0.99):
        truth = slow_exact(u, p, alpha)
        for tol in (1e-3, 1e-6, 1e-10):
            error = (sm_exact(u, p, alpha, tol=tol) - truth).norm(dim=0) / truth.norm(dim=0)
            assert error.max() < tol, (alpha, tol)


def products_with_p(monkeypatch, compute):
    """How often a function multiplies a signal by P, by torch or compiled."""
    counted = [0]
    product, recurrence, plain = CSR.accumulate, sm_numba._recur, CSR.matrix

    def one(*arguments, **options):
        counted[0] += 1
        return product(*arguments, **options)

    def several(u, matrix, factors, *more):
        counted[0] += len(factors)
        return recurrence(u, matrix, factors, *more)

    def operator(self, dtype):
        counted[0] += sys._getframe(1).f_code.co_name == "_propagate"
        return plain(self, dtype)

    with monkeypatch.context() as watched:
        watched.setattr(CSR, "matrix", operator)
        watched.setattr(CSR, "accumulate", one)
        watched.setattr(sm_numba, "_recur", several)
        compute()
    return counted[0]


def test_the_closed_form_costs_36_products_where_ten_steps_cost_10(monkeypatch):
    p = grid_graph(grid_coords(40), STEP).normalized("sym")
    u = signal(p)
    assert products_with_p(monkeypatch, lambda: sm_exact(u, p, 0.9)) == 36
    assert products_with_p(monkeypatch, lambda: sm(u, p, 0.9)) == 10
    truth = slow_exact(u, p, 0.9)
    assert ((sm_exact(u, p, 0.9) - truth).norm(dim=0) / truth.norm(dim=0)).max() < 1e-6


@every_kind
def test_many_steps_reach_the_exact_solution(kind):
    p, u = GRAPHS["grid"].normalized(kind), signal(GRAPHS["grid"])
    assert torch.allclose(sm(u, p, 0.5, steps=60), sm_exact(u, p, 0.5, tol=1e-9), rtol=1e-5)


@every_graph
def test_alpha_zero_and_zero_steps_are_the_identity_bit_for_bit(graph):
    p, u = graph.normalized(), signal(graph).float()
    zero = torch.zeros((), requires_grad=True)
    for g in (sm(u, p, 0.0), sm(u, p, 0.7, steps=0), sm_exact(u, p, 0.0), sm(u, p, zero), sm_exact(u, p, zero)):
        assert torch.equal(g, u)
    assert torch.equal(Sm(0.0)(u, p), u)
    assert torch.equal(Sm(0.5, steps=0)(u, p), u)


@every_kind
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_a_lonely_instance_is_left_alone(operator, kind):
    graph = GRAPHS["lonely"]
    u = signal(graph)
    for alpha in ALPHAS:
        assert torch.allclose(operator(u, graph.normalized(kind), alpha)[2:], u[2:], atol=1e-12), alpha


def test_a_lonely_instance_fades_only_when_asked_to():
    p = GRAPHS["lonely"].normalized("sym", isolated="shrink")
    u = signal(GRAPHS["lonely"])
    assert torch.allclose(sm(u, p, 0.5)[2:], 0.5 * u[2:])


@pytest.mark.parametrize("name", ["grid", "chain", "random", "cycle"])
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_a_larger_alpha_is_smoother(name, operator):
    p, u = GRAPHS[name].normalized(), signal(GRAPHS[name])
    rough = [p.roughness(operator(u, p, alpha)).item() for alpha in (0, 0.1, 0.5, 0.9)]
    assert all(a > b for a, b in itertools.pairwise(rough))


def test_ten_steps_can_be_too_few_where_two_instances_are_alone_together():
    """An isolated pair is bipartite: its difference mode has gain p_T(-1), which is larger at 0.9 than at 0.5."""
    p = Graph.from_edges([[0], [1]], n=2).normalized()
    u = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert sm(u, p, 0.9)[0].item() == pytest.approx(0.9**10 + 0.1 * (1 - 0.9**10) / 1.9)
    assert sm(u, p, 0.9)[0] > sm(u, p, 0.5)[0] > sm_exact(u, p, 0.9)[0]


@every_kind
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_sm_is_linear(operator, kind):
    graph = GRAPHS["random"]
    p, u, v = graph.normalized(kind), signal(graph), signal(graph, seed=1)
    assert torch.allclose(operator(2 * u - 3 * v, p, 0.6), 2 * operator(u, p, 0.6) - 3 * operator(v, p, 0.6))


@pytest.mark.parametrize("kind", ["sym", "sym_loop"])
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_sm_is_self_adjoint(operator, kind):
    graph = GRAPHS["random"]
    p, u, v = graph.normalized(kind), signal(graph), signal(graph, seed=1)
    assert torch.allclose((operator(u, p, 0.8) * v).sum(), (u * operator(v, p, 0.8)).sum(), atol=1e-12)


def test_the_transposed_graph_gives_the_adjoint_of_rw():
    graph = GRAPHS["random"]
    p, u, v = graph.normalized("rw"), signal(graph), signal(graph, seed=1)
    for operator in (sm, sm_exact):
        assert torch.allclose((operator(u, p, 0.8) * v).sum(), (u * operator(v, p.transposed(), 0.8)).sum(), atol=1e-6)
        assert not torch.allclose((operator(u, p, 0.8) * v).sum(), (u * operator(v, p, 0.8)).sum(), atol=1e-3)


@every_kind
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_the_order_of_instances_does_not_matter(operator, kind):
    graph, order = GRAPHS["random"], torch.randperm(40)
    place = order.argsort()
    other = Graph.from_edges(place[graph.edges()], graph.weight, 40)
    u = signal(graph)
    a = operator(u[order], other.normalized(kind), 0.7)
    assert torch.allclose(a, operator(u, graph.normalized(kind), 0.7)[order], atol=1e-6)


def test_constants_stay_on_a_cycle_and_under_rw_but_not_on_a_path():
    ones = torch.ones(12, 1, dtype=torch.float64)
    assert torch.allclose(sm(ones, GRAPHS["cycle"].normalized(), 0.5), ones)
    path = chain_graph(12)
    assert torch.allclose(sm(ones, path.normalized("rw"), 0.5), ones)
    assert not torch.allclose(sm(ones, path.normalized("sym"), 0.5), ones, atol=1e-2)


@every_kind
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_a_packed_batch_equals_one_by_one(operator, kind):
    parts = [GRAPHS[k].normalized(kind) for k in ("grid", "chain", "lonely", "single")]
    signals = [signal(g, seed=i) for i, g in enumerate(parts)]
    packed = operator(torch.cat(signals), join(parts), 0.7)
    single = torch.cat([operator(u, g, 0.7) for u, g in zip(signals, parts, strict=True)])
    assert torch.allclose(packed, single, atol=1e-6)


@pytest.mark.parametrize("name", ["grid", "chain", "lonely"])
@every_kind
@pytest.mark.parametrize("value", [0.0, 1e-4, 0.5, 0.93])
def test_gradients_are_those_of_the_definition(name, kind, value):
    p, u = GRAPHS[name].normalized(kind), signal(GRAPHS[name], 2).requires_grad_()
    dense = p.dense()
    weight = signal(GRAPHS[name], 2, seed=5)

    def defined(u, alpha):
        g = u
        for _ in range(7):
            g = alpha * dense @ g + (1 - alpha) * u
        return g

    def solved(u, alpha):
        laplacian = torch.eye(p.n, dtype=torch.float64) - dense
        return torch.linalg.solve(torch.eye(p.n) + alpha / (1 - alpha) * laplacian, u)

    for ours, theirs in ((lambda u, a: sm(u, p, a, 7), defined), (lambda u, a: sm_exact(u, p, a, 1e-12), solved)):
        a, b = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for _ in range(2))
        mine = torch.autograd.grad((ours(u, a) * weight).sum(), (u, a))
        true = torch.autograd.grad((theirs(u, b) * weight).sum(), (u, b))
        assert torch.allclose(mine[0], true[0], atol=1e-9)
        assert torch.allclose(mine[1], true[1], rtol=1e-8, atol=1e-9)


@every_kind
def test_finite_differences_agree(kind):
    p, u = GRAPHS["lonely"].normalized(kind), signal(GRAPHS["lonely"], 2).requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, a: sm(u, p, a, 6), (u, alpha))
    assert torch.autograd.gradcheck(lambda u, a: sm_exact(u, p, a, 1e-12), (u, alpha))
    assert torch.autograd.gradcheck(lambda u: sm(u, p, 0.6, 6), (u,))


def test_the_gradient_of_alpha_stays_accurate_in_float32_when_alpha_is_tiny():
    p, u = GRAPHS["grid"].normalized(), signal(GRAPHS["grid"])
    found = []
    for dtype in (torch.float32, torch.float64):
        alpha = torch.tensor(1e-4, dtype=dtype, requires_grad=True)
        sm(u.to(dtype), p, alpha).square().sum().backward()
        found.append(alpha.grad.item())
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_memory_does_not_grow_with_the_steps():
    """Backward keeps α, the input and, of small signals, the slope along α, however many steps were taken."""
    kept = []
    for steps in (1, 50):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            u = signal(GRAPHS["grid"]).requires_grad_()
            sm(u, GRAPHS["grid"].normalized(), torch.tensor(0.5, requires_grad=True), steps)
        kept.append(sum(sizes))
    assert kept[0] == kept[1] <= 2 * 70 * 3 + 1


def test_learned_alpha_starts_at_one_half_and_gets_a_gradient():
    module, graph = Sm(), GRAPHS["grid"]
    assert module.alpha.item() == 0.5
    assert [p.numel() for p in module.parameters()] == [1]
    u = signal(graph).float()
    assert torch.equal(module(u, graph), sm(u, graph.normalized(), 0.5))
    module(u, graph).square().sum().backward()
    assert module.logit.grad.abs() > 0


def test_exact_mode_of_the_module():
    u, graph = signal(GRAPHS["grid"]), GRAPHS["grid"]
    assert torch.equal(Sm(0.9, "exact")(u, graph), sm_exact(u, graph.normalized(), 0.9))
    assert torch.equal(Sm(0.9, normalization="rw")(u, graph), sm(u, graph.normalized("rw"), 0.9))


def test_a_vector_and_half_precision_keep_their_form():
    u, p = signal(GRAPHS["grid"], 1), GRAPHS["grid"].normalized()
    assert torch.equal(sm(u[:, 0], p, 0.5), sm(u, p, 0.5)[:, 0])
    half = sm(u.half(), p, 0.5)
    assert half.dtype == torch.float16
    assert torch.allclose(half.double(), sm(u, p, 0.5), atol=5e-3)


@pytest.mark.parametrize("alpha", [-0.1, 1.0, 1.5, float("nan"), "strong"])
def test_an_impossible_alpha_is_refused(alpha):
    with pytest.raises(ConfigError, match="alpha"):
        Sm(alpha)
    if not isinstance(alpha, str):
        with pytest.raises(ConfigError, match="alpha"):
            sm(torch.ones(1, 1), GRAPHS["single"].normalized(), alpha)


def test_misuse_is_explained():
    graph, u = GRAPHS["grid"], signal(GRAPHS["grid"])
    with pytest.raises(DataError, match="normalised graph"):
        sm(u, graph, 0.5)
    with pytest.raises(DataError, match="3 rows but the graph 70"):
        sm(u[:3], graph.normalized(), 0.5)
    with pytest.raises(ConfigError, match="steps"):
        Sm(0.5, steps=-1)
    with pytest.raises(ConfigError, match="tol"):
        sm_exact(u, graph.normalized(), 0.5, tol=0)
    with pytest.raises(ConfigError, match="one number"):
        sm(u, graph.normalized(), torch.ones(3))


def test_exact_serves_sixty_thousand_instances():
    coords = grid_coords(60_000)
    p = grid_graph(coords, STEP).normalized()
    u = torch.randn(60_000, 4)
    g = sm_exact(u, p, 0.9)
    back = 10 * g - 9 * p.propagate(g)  # (1 + γ) g - γ P g
    assert ((back - u).norm() / u.norm()) < 2e-5
    m = csr_matrix((p.weight, p.indices, p.indptr), (p.n, p.n))
    truth = cg(10 * eye_array(p.n) - 9 * m, u[:, 0].double().numpy(), rtol=1e-12)[0]
    assert np.linalg.norm(g[:, 0].numpy() - truth) / np.linalg.norm(truth) < 2e-6


@every_kind
def test_any_number_of_steps_is_the_definition_with_its_slope(kind):
    p, u = GRAPHS["random"].normalized(kind), signal(GRAPHS["random"]).requires_grad_()
    dense = p.dense()
    for steps in range(1, 9):
        a, b = (torch.tensor(0.7, dtype=torch.float64, requires_grad=True) for _ in range(2))
        g = u
        for _ in range(steps):
            g = b * dense @ g + (1 - b) * u
        ours = sm(u, p, a, steps)
        assert torch.allclose(ours, g, atol=1e-12), steps
        mine, true = (torch.autograd.grad(o.sin().sum(), (u, x)) for o, x in ((ours, a), (g, b)))
        assert all(torch.allclose(x, y, atol=1e-10) for x, y in zip(mine, true, strict=True)), steps


@pytest.mark.parametrize("alpha", [1e-17, 1e-15, 1e-12, 1e-10, 5e-9, 1e-6])
def test_exact_survives_a_tiny_alpha(alpha):
    p, u = GRAPHS["random"].normalized(), signal(GRAPHS["random"])
    assert torch.allclose(sm_exact(u, p, alpha), slow_exact(u, p, alpha), rtol=1e-6, atol=1e-9)


def test_exact_keeps_its_tolerance_as_an_operator_where_degrees_differ_widely():
    """Under `rw` errors grow by the ratio of the degrees: a star with one heavy edge is the worst case."""
    spokes = np.stack([np.zeros(30, int), np.arange(1, 31)])
    graph = Graph.from_edges(spokes, np.r_[1e4, np.full(29, 1e-2)], 31)
    p, every = graph.normalized("rw"), torch.eye(31, dtype=torch.float64)
    for alpha, tol in ((0.5, 1e-2), (0.9, 1e-3)):
        truth = slow_exact(every, p, alpha)
        error = (sm_exact(every, p, alpha, tol) - truth).norm(dim=0) / truth.norm(dim=0)
        assert error.max() < tol


def test_a_smoothed_graph_can_be_copied_and_changed():
    graph = grid_graph(grid_coords(20), STEP)
    u = signal(graph)
    before = sm(u, graph.normalized(), 0.5)
    assert torch.equal(sm(u, copy.deepcopy(graph).normalized(), 0.5), before)
    heavier = dataclasses.replace(graph, weight=graph.weight * torch.rand(graph.weight.shape) + 1)
    assert not torch.allclose(heavier.normalized().dense(), graph.normalized().dense())


def test_whole_numbers_are_refused_rather_than_cut():
    with pytest.raises(DataError, match="floating point"):
        sm(torch.ones(5, 1, dtype=torch.long), GRAPHS["lonely"].normalized(), 0.5)


@pytest.mark.parametrize("columns", [16, 17, 40])
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_columns_in_blocks_give_what_all_at_once_gives(monkeypatch, columns, operator):
    p = grid_graph(grid_coords(50), STEP).normalized()
    u = torch.randn(50, columns, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    whole = operator(u, p, alpha)
    expected = torch.autograd.grad(whole.sin().sum(), (u, alpha))
    monkeypatch.setattr(sm_cpu, "BLOCK_BYTES", 1)
    parts = operator(u, p, alpha)
    found = torch.autograd.grad(parts.sin().sum(), (u, alpha))
    assert torch.allclose(whole, parts, rtol=1e-13, atol=1e-13)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))


@every_kind
@pytest.mark.parametrize("graph", [GRAPHS["lonely"], chain_graph(6)], ids=["lonely", "chain"])
def test_second_derivatives_agree_with_finite_differences(kind, graph):
    """On few instances: every entry of the matrix of second derivatives takes two passes."""
    p, u = graph.normalized(kind), signal(graph, 1).requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda u, a: sm(u, p, a, 4), (u, alpha))
    assert torch.autograd.gradgradcheck(lambda u, a: sm_exact(u, p, a, 1e-12), (u, alpha))
    assert torch.autograd.gradgradcheck(p.propagate, (u,))


@pytest.mark.parametrize("learned", [False, True])
def test_the_operators_keep_the_rules_of_torch(learned):
    """Schema, fake implementation, autograd registration and tracing with open sizes, checked by torch itself."""
    p, u = GRAPHS["grid"].normalized("rw"), signal(GRAPHS["grid"]).requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=learned)
    torch.library.opcheck(torch.ops.smmil.propagate.default, (u, *p.sides))
    torch.library.opcheck(torch.ops.smmil.sm.default, (u, alpha, *p.sides, 3, learned))
    torch.library.opcheck(torch.ops.smmil.sm_exact.default, (u, alpha, *p.sides, 5))
    v, rest = u.detach(), (u.detach(), alpha.detach(), *p.sides[3:], 3)
    torch.library.opcheck(torch.ops.smmil.sm_backward.default, (v, *rest))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_cached_for_a_graph_goes_with_it(dtype):
    graph = grid_graph(grid_coords(70), STEP)
    u, weight = signal(graph).to(dtype), weakref.ref(graph.normalized().weight)
    sm(u, graph.normalized(), 0.5)
    sm_exact(u, graph.normalized(), 0.5)
    assert weight() is not None
    del graph
    gc.collect()
    assert weight() is None


def test_an_unknown_kernel_is_refused_by_name():
    with pytest.raises(ConfigError, match="sm_numba"), kernels.disabled("sm_numbas"):
        pass


def test_the_switch_holds_inside_its_block_only():
    before = kernels.mode("sm_numba")
    with kernels.forced("sm_numba"):
        assert kernels.mode("sm_numba") == "always"
        with kernels.disabled():
            assert [kernels.mode(name) for name in kernels.NAMES] == ["off"] * len(kernels.NAMES)
        assert kernels.mode("sm_numba") == "always"
    assert kernels.mode("sm_numba") == before


@every_kind
@pytest.mark.parametrize("operator", [sm, sm_exact])
def test_gradients_that_can_be_differentiated_again_are_the_same(kind, operator):
    p, u = GRAPHS["random"].normalized(kind), signal(GRAPHS["random"]).requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    total = operator(u, p, alpha).sin().sum()
    once = torch.autograd.grad(total, (u, alpha), retain_graph=True)
    again = torch.autograd.grad(total, (u, alpha), create_graph=True)
    assert all(torch.allclose(a, b, rtol=1e-11, atol=1e-12) for a, b in zip(once, again, strict=True))
