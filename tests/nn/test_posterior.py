"""Sm as a posterior: dense inverses, closed forms, draws and gradients tell what is right."""

import resource

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from support.bags import STEP, grid_bag, grid_coords, random_graph
from torch.autograd import gradcheck, gradgradcheck

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError
from smmil.graph import Graph, chain_graph, grid_graph, join, knn_graph
from smmil.models import create_model
from smmil.nn import sm_exact, sm_posterior, sm_posterior_sample
from smmil.nn.precision import _probe_colours

ALONE = Graph.from_edges([[0, 1], [1, 2]], n=5)  # two nodes without neighbours
GRAPHS = {
    "grid": grid_graph(grid_coords(200), STEP),
    "chain": chain_graph(90),
    "random": random_graph(60),
    "knn": knn_graph(np.random.default_rng(0).random((150, 2)), 5),
    "lonely": ALONE,
    "single": chain_graph(1),
    "packed": join([chain_graph(7), ALONE, grid_graph(grid_coords(40), STEP)]),
}
MATRICES = {
    f"{name} {kind} {isolated}": graph.normalized(kind, isolated)
    for name, graph in GRAPHS.items()
    for kind, isolated in (("sym", "keep"), ("sym_loop", "keep"), ("sym", "shrink"))
}
every_matrix = pytest.mark.parametrize("graph", MATRICES.values(), ids=MATRICES)


def draw(n, *shape, seed=0):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lattice(n):
    """Ragged tissue: the n cells of a square that are nearest to its middle, not quite."""
    cells = np.stack(np.meshgrid(*[np.arange(int(n**0.5 * 1.3))] * 2), -1).reshape(-1, 2)
    away = np.square(cells - cells.mean(0)).sum(1) + np.random.default_rng(0).normal(0, n**0.5, len(cells))
    return grid_graph(cells[np.sort(np.argsort(away)[:n])], 1).normalized()


def dense(graph, noise, strength):
    """Λ, literally."""
    return torch.diag(1 / noise) + strength * (torch.eye(graph.n, dtype=torch.float64) - graph.dense())


@every_matrix
@pytest.mark.parametrize("strength", [0.3, 20.0])
def test_mean_and_variance_are_those_of_the_dense_inverse(graph, strength):
    u, noise = draw(graph.n, 3), draw(graph.n, seed=1).exp()
    inverse = torch.linalg.inv(dense(graph, noise, strength))
    mean, variance = sm_posterior(u, graph, noise, strength)
    assert torch.allclose(mean, inverse @ (u / noise[:, None]), rtol=1e-9, atol=1e-10)
    assert torch.allclose(variance, inverse.diag(), rtol=1e-10)


def test_in_single_precision_six_digits_are_right():
    graph = GRAPHS["grid"].normalized()
    u, noise = draw(graph.n), draw(graph.n, seed=1).exp()
    mean, variance = sm_posterior(u.float(), graph, noise.float(), 9.0)
    exact = sm_posterior(u, graph, noise, 9.0)
    assert (mean.dtype, variance.dtype) == (torch.float32, torch.float32)
    assert torch.allclose(mean.double(), exact[0], atol=1e-6)
    assert torch.allclose(variance.double(), exact[1], rtol=1e-6)


@every_matrix
@pytest.mark.parametrize("alpha", [0.2, 0.9])
def test_equal_noise_is_the_exact_smooth_operator(graph, alpha):
    u, noise = draw(graph.n, 2), 0.7
    mean, _ = sm_posterior(u, graph, noise, alpha / (1 - alpha) / noise)
    assert torch.allclose(mean, sm_exact(u, graph, alpha, tol=1e-10), atol=1e-8)


def test_without_strength_nothing_is_smoothed():
    graph = GRAPHS["grid"].normalized()
    u, noise = draw(graph.n), draw(graph.n, seed=1).exp()
    for strength in (0.0, torch.tensor(0.0, dtype=torch.float64)):
        mean, variance = sm_posterior(u, graph, noise, strength)
        assert torch.allclose(mean, u, rtol=1e-12)
        assert torch.allclose(variance, noise, rtol=1e-12)


def test_on_a_long_chain_the_variance_has_a_closed_form():
    """Far from the ends Λ has a = 1/σ² + κ beside -κ/2, whose inverse has the diagonal 1/√(a² - κ²)."""
    graph, noise, strength = chain_graph(401).normalized(), 2.0, 3.0
    _, variance = sm_posterior(draw(401), graph, noise, strength)
    assert float(variance[200]) == pytest.approx(((1 / noise + strength) ** 2 - strength**2) ** -0.5, rel=1e-12)


@pytest.mark.parametrize(("strength", "mean_error", "largest"), [(1.0, 0.002, 0.02), (4.0, 0.02, 0.10)])
def test_probes_estimate_the_variance_of_a_lattice(strength, mean_error, largest):
    graph = lattice(1200)
    noise = draw(graph.n, seed=1).mul(0.5).exp()
    _, exact = sm_posterior(draw(graph.n), graph, noise, strength, method="exact")
    _, found = sm_posterior(draw(graph.n), graph, noise, strength, method="probes")
    error = (found / exact - 1).abs()
    assert error.mean() < mean_error
    assert error.max() < largest


@pytest.mark.parametrize("name", ["packed", "lonely", "single"])
def test_parts_of_no_more_nodes_than_probes_are_exact(name):
    graph = MATRICES[f"{name} sym keep"]
    noise = draw(graph.n, seed=1).exp()
    _, exact = sm_posterior(draw(graph.n), graph, noise, 5.0)
    _, found = sm_posterior(draw(graph.n), graph, noise, 5.0, probes=40, method="probes")
    assert torch.allclose(found, exact, rtol=1e-4)


def test_estimates_of_many_draws_of_the_signs_have_the_true_mean():
    graph, noise = lattice(300), torch.ones(300, dtype=torch.float64)
    _, exact = sm_posterior(noise, graph, noise, 2.0)
    signs = torch.Generator().manual_seed(1)
    found = [sm_posterior(noise, graph, noise, 2.0, 9, method="probes", generator=signs)[1] for _ in range(60)]
    spread = torch.stack(found).std(0)
    assert float(spread.mean()) > 1e-3
    assert (torch.stack(found).mean(0) - exact).abs().mean() < 1.5 * spread.mean() / 60**0.5


def test_nodes_of_one_colour_are_far_apart():
    graph = lattice(600)
    colours = _probe_colours(graph.indptr.numpy(), graph.indices.numpy(), 16)
    assert colours.max() < 16
    two = torch.linalg.matrix_power(graph.dense() + torch.eye(600), 2) > 0
    same = torch.from_numpy(colours[:, None] == colours)
    assert (two & same).equal(torch.eye(600, dtype=torch.bool))


@pytest.mark.slow
def test_a_slide_of_400_000_patches_is_solved_in_bounded_memory():
    """The mean solves its equation, the variances keep their bounds, and no more than a gigabyte is added."""
    graph = lattice(400_000)
    u, noise = (draw(graph.n, seed=seed).float() for seed in (0, 1))
    noise = noise.mul(0.5).exp()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mean, variance = sm_posterior(u, graph, noise, 4.0)
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    wanted = u / noise
    found = mean / noise + 4.0 * (mean - graph.propagate(mean))
    assert (found - wanted).norm() < 1e-5 * wanted.norm()
    assert (variance <= noise * (1 + 1e-6)).all()
    assert (variance >= (1 - 1e-6) / (1 / noise + 4.0)).all()
    assert added < 1 << 20  # kilobytes


def test_more_neighbours_than_probes_still_give_an_estimate():
    graph = Graph.from_edges(np.stack(np.triu_indices(60, 1)), n=60).normalized()
    _, exact = sm_posterior(torch.ones(60), graph, 1.0, 1.0)
    _, found = sm_posterior(torch.ones(60), graph, 1.0, 1.0, probes=8, method="probes")
    assert (found / exact - 1).abs().max() < 0.2


@pytest.mark.parametrize("name", ["grid sym keep", "chain sym keep", "packed sym_loop keep", "lonely sym shrink"])
def test_draws_have_the_precision_of_the_posterior(name):
    """(x - mean)ᵀ Λ (x - mean) follows chi-square with n degrees of freedom, and the covariance is Λ⁻¹."""
    graph = MATRICES[name]
    n, noise = graph.n, draw(graph.n, seed=1).exp()
    precision = dense(graph, noise, 4.0)
    mean, variance = sm_posterior(draw(n), graph, noise, 4.0)
    x = sm_posterior_sample(draw(n), graph, noise, 4.0, 4000, generator=torch.Generator().manual_seed(3)) - mean
    assert kstest(((x @ precision) * x).sum(1).numpy(), "chi2", args=(n,)).pvalue > 0.01
    white = x @ torch.linalg.cholesky(precision)
    assert (white.T @ white / 4000 - torch.eye(n)).abs().max() < 6 / 4000**0.5
    assert (x.square().mean(0) / variance - 1).abs().max() < 6 * (2 / 4000) ** 0.5


def test_draws_have_the_shape_of_the_signal_and_repeat_themselves():
    graph = GRAPHS["grid"].normalized()
    first, second = (sm_posterior_sample(draw(graph.n, 2).float(), graph, 1.0, 1.0, 3) for _ in range(2))
    assert (first.shape, first.dtype) == ((3, graph.n, 2), torch.float32)
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("name", ["grid", "chain"])
def test_gradients_agree_with_differences(name):
    graph = (grid_graph(grid_coords(12), STEP) if name == "grid" else chain_graph(9)).normalized()
    inputs = draw(graph.n, 2), draw(graph.n, seed=1).exp(), torch.tensor(1.7, dtype=torch.float64)
    inputs = tuple(t.clone().requires_grad_() for t in inputs)

    def mean(u, noise, strength):
        return sm_posterior(u, graph, noise, strength, tol=1e-14)[0]

    assert gradcheck(mean, inputs)
    assert gradgradcheck(mean, inputs)


def test_packed_equals_one_by_one_and_the_order_of_nodes_does_not_matter():
    parts = [chain_graph(7), ALONE, grid_graph(grid_coords(70), STEP)]
    together, noise = join(parts).normalized(), draw(82, seed=1).exp()
    u, cuts = draw(82), np.cumsum([0, 7, 5, 70])
    packed = sm_posterior(u, together, noise, 2.0)
    for graph, a, b in zip(parts, cuts, cuts[1:], strict=False):
        for whole, alone in zip(packed, sm_posterior(u[a:b], graph.normalized(), noise[a:b], 2.0), strict=True):
            assert torch.allclose(whole[a:b], alone, atol=1e-9)
    order = torch.randperm(82, generator=torch.Generator().manual_seed(0))
    rank = order.argsort()
    moved = Graph.from_edges(rank[join(parts).edges()], n=82).normalized()
    for whole, other in zip(packed, sm_posterior(u[order], moved, noise[order], 2.0), strict=True):
        assert torch.allclose(whole[order], other, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"graph": GRAPHS["grid"]}, "symmetric normalised graph"),
        ({"graph": GRAPHS["grid"].normalized("rw")}, "symmetric normalised graph"),
        ({"noise": 0.0}, "noise must be positive"),
        ({"noise": torch.ones(3)}, "one variance or 200"),
        ({"strength": -1.0}, "strength must be"),
        ({"probes": 0}, "probes must be"),
        ({"tol": 2.0}, "tol must lie"),
        ({"u": torch.zeros(3)}, "3 rows but the graph 200 nodes"),
        ({"u": torch.zeros(200, dtype=torch.long)}, "must be floating point"),
        ({"method": "exakt"}, "did you mean exact"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, words):
    given = {"u": torch.zeros(200), "graph": GRAPHS["grid"].normalized(), "noise": 1.0, "strength": 1.0, **change}
    with pytest.raises((ConfigError, DataError), match=words):
        sm_posterior(**given)


def test_constant_noise_is_late_exact_smap():
    batch = BagBatch.pack([grid_bag(57, dtype=torch.float64), grid_bag(9, seed=1, dtype=torch.float64)])
    ours = create_model("prob_sm_ap", 16, noise=0.5, strength=6.0).double().eval()
    theirs = create_model("sm_ap", 16, where="late", steps="exact", alpha=0.75).double().eval()
    theirs.load_state_dict(ours.state_dict())
    ours, theirs = ours(batch), theirs(batch)
    assert torch.allclose(ours.logits, theirs.logits, atol=1e-6)
    assert torch.allclose(ours.scores, theirs.scores, atol=1e-6)
    assert theirs.uncertainty is None


def test_an_instance_of_much_noise_repeats_its_neighbours():
    """As σ² of one node grows, its mean tends to Σ_m P_nm g_m, what its neighbours say, and it is the least sure."""
    graph, u = GRAPHS["grid"].normalized(), draw(200)
    chosen, found = 90, []
    for variance in (0.1, 10.0, 1e8):
        noise = torch.ones(200, dtype=torch.float64)
        noise[chosen] = variance
        mean, spread = sm_posterior(u, graph, noise, 2.0)
        found.append([float((mean - graph.propagate(mean))[chosen].abs()), float(spread[chosen])])
    (a, b, c), spreads = zip(*found, strict=True)
    assert a > b > c
    assert c < 1e-6
    assert sorted(spreads) == list(spreads)


def test_the_deviation_of_the_model_is_that_of_its_posterior():
    batch, model = BagBatch.pack([grid_bag(57)]), create_model("prob_sm_ap", 16)
    assert model.train()(batch).uncertainty is None
    out = model.eval()(batch)
    h = model.embed(batch.x).relu()
    noise = 0.01 + torch.nn.functional.softplus(model.pool.noise(h))[:, 0].double()
    inverse = torch.linalg.inv(dense(batch.graph.normalized(), noise.detach(), 1.0))
    assert torch.allclose(out.uncertainty[:, 0].double(), inverse.diag().sqrt(), rtol=1e-5)
    assert not out.uncertainty.requires_grad
