"""Min-cut pooling: hand-computed values, limits, and the dense definition."""

import numpy as np
import pytest
import torch
from support.bags import grid_coords, random_graph

from smmil.graph import Graph, chain_graph, grid_graph, join
from smmil.models.gtp import _cut_loss, _orthogonality_loss


def whole(n):
    return torch.tensor([0, n])


def hard(clusters, k):
    return torch.nn.functional.one_hot(torch.tensor(clusters), k).double()


def random_assignment(n, k=5, seed=0, sharpness=2.0):
    g = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(n, k, generator=g, dtype=torch.float64)).softmax(1)


@pytest.mark.parametrize(
    ("clusters", "loss"), [([0, 0, 0], -1), ([0, 0, 1], -1 / 2), ([0, 1, 0], 0), ([0, 1, 1], -1 / 2)]
)
def test_the_cut_counts_the_edges_that_stay_whole(clusters, loss):
    assert _cut_loss(hard(clusters, 2), chain_graph(3), whole(3)).item() == pytest.approx(loss)


def test_heavier_edges_count_more():
    graph = Graph.from_edges([[0, 1], [1, 2]], [3.0, 1.0])
    assert _cut_loss(hard([0, 0, 1], 2), graph, whole(3)).item() == pytest.approx(-3 / 4)


def test_apart_equal_clusters_are_perfect():
    two = join([chain_graph(4), chain_graph(4)])
    assign = hard([0] * 4 + [1] * 4, 2)
    assert _cut_loss(assign, two, whole(8)).item() == pytest.approx(-1)
    assert _orthogonality_loss(assign, whole(8)).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 9, 100])
def test_all_in_one_cluster_is_the_worst(k):
    loss = _orthogonality_loss(hard([0] * 6, k), whole(6)).item()
    assert loss == pytest.approx((2 - 2 / k**0.5) ** 0.5, abs=1e-12)


def test_both_are_means_over_bags_of_the_dense_definition():
    graphs = [grid_graph(grid_coords(12), 512), random_graph(9, share=0.5), random_graph(16)]
    offsets, assign = torch.tensor([0, 12, 21, 37]), random_assignment(37)
    cuts, orthogonalities = [], []
    for graph, s in zip(graphs, assign.split([12, 9, 16]), strict=True):
        a = graph.dense()
        cuts.append(-torch.trace(s.T @ a @ s) / torch.trace(s.T @ torch.diag(a.sum(1)) @ s))
        off = s.T @ s / torch.linalg.norm(s.T @ s) - torch.eye(5) / 5**0.5
        orthogonalities.append(torch.linalg.norm(off))
    assert torch.allclose(_cut_loss(assign, join(graphs), offsets), torch.stack(cuts).mean(), atol=1e-12)
    assert torch.allclose(_orthogonality_loss(assign, offsets), torch.stack(orthogonalities).mean(), atol=1e-12)


def test_ranges():
    for seed in range(20):
        s = random_assignment(20, k=7, seed=seed, sharpness=seed / 2)
        assert -1 - 1e-12 <= _cut_loss(s, random_graph(20, seed=seed), whole(20)) <= 0
        assert 0 <= _orthogonality_loss(s, whole(20)) <= 2**0.5


def test_a_bag_without_edges_counts_zero_and_teaches_nothing():
    lonely = Graph.from_edges(np.zeros((2, 0), int), n=4)
    assign = random_assignment(7).requires_grad_()
    loss = _cut_loss(assign, join([chain_graph(3), lonely]), torch.tensor([0, 3, 7]))
    alone = _cut_loss(assign[:3], chain_graph(3), whole(3))
    assert loss.item() == pytest.approx(alone.item() / 2)
    loss.backward()
    assert (assign.grad[3:] == 0).all()
    assert (assign.grad[:3] != 0).all()


def test_gradients_are_those_of_finite_differences():
    graph, offsets = join([random_graph(9, share=0.5), random_graph(8)]), torch.tensor([0, 9, 17])
    s = random_assignment(17).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: _cut_loss(a, graph, offsets), (s,))
    assert torch.autograd.gradcheck(lambda a: _orthogonality_loss(a, offsets), (s,))


def test_a_perfect_assignment_has_finite_gradients():
    s = torch.eye(4, dtype=torch.float64).requires_grad_()
    _orthogonality_loss(s, whole(4)).backward()
    assert s.grad.isfinite().all()
