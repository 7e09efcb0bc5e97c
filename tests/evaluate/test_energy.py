"""Energies by hand, against dense matrices and against the graph's own roughness."""

from itertools import permutations

import numpy as np
import pytest
import torch

from smmil.errors import DataError
from smmil.evaluate import energies
from smmil.evaluate.levels import _bag_energies
from smmil.graph import Graph, chain_graph, grid_graph
from smmil.prediction import Prediction


def on(graph, f, name="a"):
    return Prediction(name, [0.5], np.asarray(f, dtype=np.float64), edges=graph.edges().numpy())


def test_a_path_of_three_by_hand():
    # degrees 1, 2, 1; L~ = I - A/sqrt(2): f'L~f = 1 + 4 + 0 - 2*(1*2 + 2*0)/sqrt(2); plain energy 1 + 4
    found = _bag_energies(on(chain_graph(3), [1, 2, 0]))
    rough = 5 - 4 / np.sqrt(2)
    assert found["rayleigh"] == pytest.approx(rough / 5)
    assert found["mean"] == pytest.approx(rough / 3)
    assert found["minmax"] == pytest.approx((0.25 + 1) / 4)


@pytest.mark.parametrize("seed", range(10))
def test_energies_equal_the_roughness_of_the_graph(seed):
    rng = np.random.default_rng(seed)
    cells = np.unique(rng.integers(0, 9, (40, 2)), axis=0)
    graph, f = grid_graph(cells, 1), rng.normal(size=len(cells))
    found = _bag_energies(on(graph, f))
    rough = float(graph.normalized("sym").roughness(torch.from_numpy(f)))
    scaled = torch.from_numpy((f - f.min()) / (f.max() - f.min()))
    assert found["rayleigh"] == pytest.approx(rough / (f @ f), rel=1e-10)
    assert found["mean"] == pytest.approx(rough / len(f), rel=1e-10)
    assert found["minmax"] == pytest.approx(float(graph.roughness(scaled)) / float(graph.weight.sum()), rel=1e-10)


def test_a_lonely_instance_adds_nothing():
    alone = Graph.from_edges([[0], [1]], n=3)
    assert _bag_energies(on(alone, [1, 0, 7]))["mean"] == pytest.approx(1 / 3)


def test_rayleigh_forgets_scale_and_minmax_forgets_scale_and_shift():
    graph, f = chain_graph(6), np.array([1.0, 3, 2, 5, 5, 0])
    assert _bag_energies(on(graph, -4 * f))["rayleigh"] == pytest.approx(_bag_energies(on(graph, f))["rayleigh"])
    assert _bag_energies(on(graph, 10 - 4 * f))["minmax"] == pytest.approx(_bag_energies(on(graph, f))["minmax"])


@pytest.mark.parametrize(("shift", "scale"), [(0, -4), (100, 1), (-7, 0.01)])
def test_geary_forgets_level_and_scale(shift, scale):
    graph, f = chain_graph(6), np.array([1.0, 3, 2, 5, 5, 0])
    found, moved = (_bag_energies(on(graph, scores)) for scores in (f, shift + scale * f))
    assert moved["geary"] == pytest.approx(found["geary"], rel=1e-9)
    if shift:
        assert abs(moved["rayleigh"] / found["rayleigh"] - 1) > 0.05  # the level decides there


def test_geary_of_the_same_scores_in_every_order_is_one_on_average():
    graph, f = grid_graph(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [2, 1], [5, 5]]), 1), [0.3, -1.0, 4, 4, 0, 2]
    orders = [_bag_energies(on(graph, order))["geary"] for order in permutations(f)]
    assert np.mean(orders) == pytest.approx(1, rel=1e-9)


def test_geary_is_the_energy_of_standardised_scores_and_grows_with_roughness():
    graph = chain_graph(20)
    f = np.sin(np.arange(20) / 4)
    z = (f - f.mean()) / f.std(ddof=1)
    plain = float(graph.roughness(torch.from_numpy(z)))  # each pair once
    assert _bag_energies(on(graph, f))["geary"] == pytest.approx(plain / (2 * 19), rel=1e-9)
    alternating = _bag_energies(on(graph, np.arange(20) % 2))["geary"]
    assert _bag_energies(on(graph, f))["geary"] < 0.2 < 1 < alternating
    assert np.isnan(_bag_energies(on(graph, np.ones(20)))["geary"])
    assert np.isnan(_bag_energies(Prediction("a", [0.5], [1.0, 2.0], edges=np.zeros((2, 0), int)))["geary"])


def test_edges_may_be_listed_once_twice_or_with_loops():
    f = [1.0, 3, 2]
    both = Prediction("a", [0.5], f, edges=[[0, 1, 1, 2], [1, 0, 2, 1]])
    once = Prediction("a", [0.5], f, edges=[[1, 1], [0, 2]])
    loops = Prediction("a", [0.5], f, edges=[[0, 1, 2, 2], [1, 2, 1, 2]])
    assert _bag_energies(both) == _bag_energies(once) == _bag_energies(loops)


def test_the_average_uses_only_bags_where_the_energy_is_defined():
    found = energies([
        on(chain_graph(3), [1, 2, 0], "a"), on(chain_graph(3), [0, 0, 0], "zero"),
        on(chain_graph(1), [5], "single"), Prediction("none", [0.5], [1.0, 2.0]),
    ])  # fmt: skip
    rough = 5 - 4 / np.sqrt(2)
    assert found["rayleigh"] == pytest.approx((rough / 5 + 0) / 2)
    assert found["mean"] == pytest.approx(rough / 3 / 3)
    assert found["minmax"] == pytest.approx(1.25 / 4)
    assert (found["n_rayleigh"], found["n_mean"], found["n_minmax"]) == (2, 3, 1)
    assert found["n_without_edges"] == 1
    assert found["notes"] == ["1 of 4 bags have no edges stored and no energy"]


def test_without_edges_nothing_is_invented():
    assert np.isnan(energies([Prediction("a", [0.5], [1.0])])["rayleigh"])
    with pytest.raises(DataError, match="a: energies need edges"):
        _bag_energies(Prediction("a", [0.5], [1.0]))
