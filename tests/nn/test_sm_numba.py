import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from support.bags import STEP, grid_coords, random_graph
from support.quick import slow_unless

from smmil.errors import ConfigError, MissingExtra
from smmil.graph import KINDS, Graph, grid_graph
from smmil.nn import kernels, sm, sm_exact
from smmil.nn.kernels import sm_cpu, sm_numba

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed (extra: fast)")
LATTICE = grid_graph(grid_coords(900, fill=0.6), STEP)
WIDTHS = (1, 2, 3, 5, 8, 13, 16, 17, 27, 31, 40)


def shuffled(graph, seed=0):
    """The same neighbours under other numbers, so that they lie far apart."""
    place = torch.randperm(graph.n, generator=torch.Generator().manual_seed(seed))
    return Graph.from_edges(place[graph.edges()], graph.weight, graph.n)


GRAPHS = {
    "lattice": LATTICE,
    "shuffled": shuffled(LATTICE),
    "random": random_graph(90),
    "edgeless": random_graph(40, share=0.0),
}
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())


def signal(graph, k=3, seed=0):
    return torch.randn(graph.n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(u, v, p, alpha, steps):
    """The definition with dense matrices, and the gradients of ⟨v, G⟩ that autograd finds for it."""
    u, a = u.clone().requires_grad_(), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    g, dense = u, p.dense()
    for _ in range(steps):
        g = a * dense @ g + (1 - a) * u
    return g.detach(), *torch.autograd.grad((g * v).sum(), (u, a))


@needs_numba
@every_graph
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_compiled_smoothing_is_the_definition_with_its_gradients(graph, kind, steps):
    p, u, v = graph.normalized(kind), signal(graph), signal(graph, seed=1)
    g, grad_u, grad_alpha = slow(u, v, p, 0.7, steps)
    ours = sm_numba.smooth(u, p.csr, 0.7, steps)
    back, slope = sm_numba.smooth_backward(v, u, p.transposed().csr, 0.7, steps)
    assert (ours - g).abs().max() < 1e-12
    assert (back - grad_u).abs().max() < 1e-12
    assert slope == pytest.approx(grad_alpha.item(), rel=1e-11, abs=1e-11)


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", slow_unless((1, 3, 17, 31).__contains__, WIDTHS))  # each is compiled: a second
def test_every_number_of_columns_is_covered_once(width, dtype):
    p, u, v = LATTICE.normalized().csr, signal(LATTICE, width).to(dtype), signal(LATTICE, width, seed=1).to(dtype)
    tight = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-12}
    assert torch.allclose(sm_numba.smooth(u, p, 0.6, 7), sm_cpu.smooth(u, p, 0.6, 7)[0], **tight)
    back, slope = sm_numba.smooth_backward(v, u, p, 0.6, 7)
    true, along = sm_cpu.smooth(v, p, 0.6, 7, slope=True)
    assert torch.allclose(back, true, **tight)
    assert slope == pytest.approx(float((along * u).sum()), rel=tight["rtol"], abs=1e2 * tight["atol"])


@pytest.mark.parametrize("itemsize", [4, 8])
def test_vectors_cover_a_row_without_a_gap_and_inside_it(itemsize):
    for width in range(1, 140):
        covered, end = np.zeros(width, int), 0
        for firsts, lanes in sm_numba._vectors(width, itemsize):
            for first in firsts:
                assert end - lanes < first <= end
                assert first + lanes <= width
                covered[first : first + lanes] += 1
                end = first + lanes
        assert covered.min() == 1
        assert covered.max() <= 2


@needs_numba
@every_graph
@pytest.mark.parametrize("alpha", [1e-9, 0.5, 0.97])
def test_compiled_chebyshev_solves_the_system(graph, alpha, monkeypatch):
    monkeypatch.setenv(kernels.SWITCH, "1")
    p, u = graph.normalized(), signal(graph)
    gamma = alpha / (1 - alpha)
    g = sm_exact(u, p, alpha, tol=1e-12)
    assert torch.allclose(g + gamma * (g - p.dense() @ g), u, atol=1e-9)


@needs_numba
@every_graph
def test_nothing_is_read_that_was_not_written(graph, monkeypatch):
    """Scratch memory is not cleared: with NaN in it, any row taken from a wrong place would show."""
    real = sm_numba._aligned
    monkeypatch.setattr(sm_numba, "_aligned", lambda size, dtype: np.full_like(real(size, dtype), np.nan))
    p, u = graph.normalized().csr, signal(graph, 5)
    back, slope = sm_numba.smooth_backward(u, u, p, 0.5, 9)
    assert back.isfinite().all()
    assert np.isfinite(slope)
    assert sm_numba.chebyshev(u, p, [1.0, 0.5, 0.2, 0.1, 0.1]).isfinite().all()


@needs_numba
def test_what_is_not_a_number_stays_in_its_column_and_near_its_row():
    p, u = LATTICE.normalized(), signal(LATTICE, 20)
    clean = sm_numba.smooth(u, p.csr, 0.5, 3)
    u[450, 7] = float("nan")
    g = sm_numba.smooth(u, p.csr, 0.5, 3)
    reached = (p.dense() + torch.eye(p.n)).matrix_power(3)[:, 450] > 0
    assert g[reached, 7].isnan().all()
    assert torch.equal(g[~reached], clean[~reached])
    others = torch.arange(20) != 7
    assert torch.equal(g[:, others], clean[:, others])


@needs_numba
def test_threads_and_repetition_change_no_bit(monkeypatch):
    p, u = LATTICE.normalized().csr, signal(LATTICE, 100).float()
    found = []
    for threads in (1, 2, 3, 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append((sm_numba.smooth(u, p, 0.5, 10), *sm_numba.smooth_backward(u, u, p, 0.5, 10)))
    for g, back, slope in found[1:]:
        assert torch.equal(g, found[0][0])
        assert torch.equal(back, found[0][1])
        assert slope == found[0][2]


@needs_numba
def test_the_gradient_of_alpha_keeps_its_digits_over_many_rows():
    """Products are summed in float64: in float32 alone, the error would be twenty times the one allowed here."""
    lattice = grid_graph(grid_coords(20_000, fill=0.6), STEP)
    for p in (lattice.normalized(), shuffled(lattice).normalized()):
        u = signal(p, 1).float().abs()
        slopes = [sm_numba.smooth_backward(x, x, p.csr, 0.5, 10)[1] for x in (u, u.double())]
        assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)


def test_neighbours_close_by_are_worked_off_in_tiles_whose_room_does_not_grow_with_the_bag():
    near, more = sm_numba._plan(60_000, 222, 10), sm_numba._plan(600_000, 222, 10)
    assert near == more
    assert near.block < 60_000
    assert near.buffer_rows(2) < 60_000 / 4
    far = sm_numba._plan(60_000, 59_000, 10)
    assert (far.block, far.skew) == (60_000, 0)
    assert far == sm_numba._plan(60_000, 59_000, 50)


def test_bandwidth_is_the_longest_way_between_neighbours():
    assert Graph.from_edges([[0, 1], [1, 4]], n=6).bandwidth == 3
    assert random_graph(5, share=0.0).bandwidth == 0


@needs_numba
def test_small_signals_and_a_closed_switch_stay_with_torch(monkeypatch):
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    small, large = torch.ones(100, 3), torch.ones(30_000, 100)
    assert [sm_numba.is_applicable(u, 10) for u in (small, large, large.half())] == [False, True, False]
    monkeypatch.setenv(kernels.SWITCH, "1")
    assert [sm_numba.is_applicable(u, 10) for u in (small, large, large.half())] == [True, True, False]
    monkeypatch.setenv(kernels.SWITCH, "0")
    assert not sm_numba.is_applicable(large, 10)
    monkeypatch.setenv(kernels.SWITCH, "yes")
    with pytest.raises(ConfigError, match=kernels.SWITCH):
        sm_numba.is_applicable(small, 10)


def test_without_numba_torch_does_the_work_unless_compiled_code_is_asked_for(monkeypatch):
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    monkeypatch.setattr(sm_numba, "_kernel", lambda: None)
    u = signal(LATTICE, 200)
    assert not sm_numba.is_applicable(u, 10)
    assert torch.allclose(sm(u, LATTICE.normalized(), 0.5), slow(u, u, LATTICE.normalized(), 0.5, 10)[0], atol=1e-12)
    monkeypatch.setenv(kernels.SWITCH, "1")
    with pytest.raises(MissingExtra, match=r"numba.*smmil\[fast\]"):
        sm(u, LATTICE.normalized(), 0.5)


@needs_numba
def test_a_place_that_cannot_be_written_costs_only_the_cache(monkeypatch):
    from numba.core import caching

    from smmil.nn.kernels import numba_code

    monkeypatch.setattr(caching.FunctionCache._impl_class, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba_code.njit(cache=True)(lambda x: x + 1)
    assert numba_code._compiled(lambda x: x + 1)(2) == 3


def test_importing_loads_no_compiler():
    code = "import sys, smmil.nn, smmil.models; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
