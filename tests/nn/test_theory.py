"""What the paper proves, what holds for the T-step operator, and where its argument fails (docs/what-is-true.md)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import STEP, grid_bag, grid_coords, random_graph

from smmil.bag import BagBatch
from smmil.graph import chain_graph, grid_graph
from smmil.models import create_model
from smmil.nn import sm, sm_exact

GRAPHS = [grid_graph(grid_coords(60), STEP), chain_graph(24), random_graph(30)]
every_graph = pytest.mark.parametrize("graph", GRAPHS, ids=["grid", "chain", "random"])
full_grid = grid_graph(np.stack(np.meshgrid(np.arange(12), np.arange(12)), -1).reshape(-1, 2), 1)


def signal(n, k=5, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectrum(graph):
    """Eigenvalues of the symmetric normalised Laplacian, those of the kernel left out."""
    values = torch.linalg.eigvalsh(torch.eye(graph.n) - graph.normalized("sym").dense())
    return values[values > 1e-9]


def exact_factor(graph, alpha):
    return (1 + alpha / (1 - alpha) * spectrum(graph)).pow(-2).max().item()


def step_factor(graph, alpha, steps):
    x = alpha * (1 - spectrum(graph))
    gain = x**steps + (1 - alpha) * sum(x**k for k in range(steps))
    return gain.square().max().item()


@every_graph
def test_a_layer_stretches_the_energy_by_at_most_its_lipschitz_constants(graph):
    """E_L(φ(YW + b)) ≤ K² ‖W‖² E_L(Y) for the combinatorial Laplacian, hence the chain for attention scores."""
    h, w1, b, w2 = signal(graph.n, 8), signal(6, 8, seed=1), signal(1, 6, seed=2), signal(1, 6, seed=3)
    hidden = (h @ w1.T + b).tanh()
    spectral = torch.linalg.matrix_norm(w1, 2) ** 2
    assert graph.roughness(hidden) <= spectral * graph.roughness(h)
    assert graph.roughness(hidden @ w2.T) <= w2.square().sum() * spectral * graph.roughness(h)


@every_graph
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_exact_smoothing_contracts_the_energy_it_is_made_of(graph, alpha):
    p, factor = graph.normalized("sym"), exact_factor(graph, alpha)
    for seed in range(20):
        u = signal(graph.n, seed=seed)
        assert p.roughness(sm_exact(u, p, alpha, 1e-10)) <= factor * p.roughness(u) * (1 + 1e-9)
    assert factor < 1


@every_graph
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_the_t_step_operator_has_a_bound_of_its_own(graph, alpha, steps):
    p, factor = graph.normalized("sym"), step_factor(graph, alpha, steps)
    for seed in range(20):
        u = signal(graph.n, seed=seed)
        assert p.roughness(sm(u, p, alpha, steps)) <= factor * p.roughness(u) * (1 + 1e-9)


@every_graph
def test_the_bounds_are_attained(graph):
    values, vectors = torch.linalg.eigh(torch.eye(graph.n) - graph.normalized("sym").dense())
    slowest = vectors[:, values > 1e-9][:, :1]
    p = graph.normalized("sym")
    ratio = p.roughness(sm_exact(slowest, p, 0.5, 1e-12)) / p.roughness(slowest)
    assert ratio.item() == pytest.approx(exact_factor(graph, 0.5), rel=1e-6)
    modes = vectors[:, values > 1e-9]
    after = [p.roughness(sm(modes[:, [k]], p, 0.9)) / p.roughness(modes[:, [k]]) for k in range(modes.shape[1])]
    assert max(after).item() == pytest.approx(step_factor(graph, 0.9, 10), rel=1e-6)


@pytest.mark.parametrize(("slices", "expected"), [(24, 0.982), (34, 0.991), (57, 0.997)])
def test_the_guaranteed_decrease_is_small_on_scans(slices, expected):
    assert exact_factor(chain_graph(slices), 0.5) == pytest.approx(expected, abs=6e-4)


def test_smoothing_with_one_laplacian_does_not_contract_the_energy_of_another():
    """The mixed use that the paper's experiments and proof together suggest: constants get rougher."""
    path = chain_graph(3)
    ones = torch.ones(3, 1, dtype=torch.float64)
    smoothed = sm_exact(ones, path.normalized("sym"), 0.5)
    assert path.roughness(ones) == 0
    assert smoothed[:, 0].tolist() == pytest.approx([0.902, 1.138, 0.902], abs=1e-3)
    assert path.roughness(smoothed).item() == pytest.approx(0.111, abs=1e-3)
    nearly = 1 + 1e-3 * signal(144, 1)
    ratio = full_grid.roughness(sm_exact(nearly, full_grid.normalized(), 0.5)) / full_grid.roughness(nearly)
    assert ratio > 100


def test_the_normalised_energy_is_not_controlled_by_a_layer():
    p = chain_graph(3).normalized("sym")
    h = 3 * torch.tensor([[1.0], [2.0], [1.0]], dtype=torch.float64).sqrt()
    assert p.roughness(h).item() == pytest.approx(0, abs=1e-12)
    assert p.roughness(h.tanh()) > 1e-4
    assert p.roughness(torch.ones(3, 1, dtype=torch.float64)).item() == pytest.approx(0.1716, abs=1e-3)


@every_graph
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_random_walk_smoothing_makes_every_inequality_hold_together(graph, alpha):
    p, factor = graph.normalized("rw"), exact_factor(graph, alpha)
    for seed in range(20):
        u = signal(graph.n, seed=seed)
        assert graph.roughness(sm_exact(u, p, alpha, 1e-10)) <= factor * graph.roughness(u) * (1 + 1e-9)


def test_the_iteration_diverges_with_the_unnormalised_laplacian():
    """Why the propagation matrix is normalised: I - L of an 8-neighbour grid has spectral radius far above 1."""
    cells = np.stack(np.meshgrid(np.arange(20), np.arange(20)), -1).reshape(-1, 2)
    a = grid_graph(cells, 1).dense()
    radius = torch.linalg.eigvalsh(torch.eye(400) - (torch.diag(a.sum(1)) - a)).abs().max()
    assert radius.item() == pytest.approx(10.90, abs=0.01)


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.1, 6e-14, 1.2e-13), (0.5, 8e-6, 1.5e-5), (0.9, 5e-2, 7.5e-2)])
@pytest.mark.parametrize("seed", range(5))
def test_ten_steps_are_as_accurate_as_documented(alpha, low, high, seed):
    """On noise about 1e-5 at 0.5, but 6e-2 at 0.9."""
    p, u = full_grid.normalized(), signal(144, seed=seed)
    truth = torch.linalg.solve(torch.eye(144) + alpha / (1 - alpha) * (torch.eye(144) - p.dense()), u)
    found = ((sm(u, p, alpha) - truth).norm() / truth.norm()).item()
    assert low < found < high
    assert (sm(u, p, alpha) - truth).norm() <= alpha**10 * (u - truth).norm() * (1 + 1e-6)


def scores_of(where, state=None, **options):
    """Scores and answer of a SmAP on one irregular slide in double precision, and its weights."""
    torch.manual_seed(0)
    model = create_model("sm_ap", 4, dim=6, att_dim=5, where=where, alpha=0.7, spectral_norm=False, **options).double()
    if state is not None:
        model.load_state_dict(state)
    bag = grid_bag(40, dim=4)
    batch = BagBatch.pack([replace(bag, x=bag.x.double())])
    out = model(batch)
    return out.scores, out.logits, model.state_dict()


@pytest.mark.parametrize("gated", [False, True])
def test_early_and_mid_have_the_same_scores_when_the_attention_layer_has_no_bias(gated):
    early, said_early, weights = scores_of("early", att_bias=False, gated=gated)
    mid, said_mid, _ = scores_of("mid", weights, att_bias=False, gated=gated)
    assert torch.allclose(early, mid, rtol=1e-9, atol=1e-12)
    assert early.std() > 1e-3
    assert not torch.allclose(said_early, said_mid, rtol=1e-6)  # Sm(H) or H is pooled


def test_a_smoothed_bias_tells_early_from_mid():
    early, _, weights = scores_of("early")
    mid, _, _ = scores_of("mid", weights)
    assert (early - mid).abs().max() > 1e-3
