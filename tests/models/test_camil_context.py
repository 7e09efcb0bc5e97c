"""Neighbourhoods with weights, against dense matrices and hand-computed values."""

import math

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, random_graph, without_edges
from torch.utils._python_dispatch import TorchDispatchMode

from smmil.errors import DataError
from smmil.graph import chain_graph
from smmil.models import camil
from smmil.models.camil import _context_logits, _cosine_distances, _graph_context, _nearest_context


def rows(n, width=6, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(context):
    n = context.own.shape[0]
    return context.sum(torch.eye(n, dtype=torch.float64))


def test_a_graph_gives_its_weights_and_the_heaviest_to_the_instance_itself():
    graph = random_graph(24, seed=3)
    wanted = graph.dense()
    heaviest = wanted.max(1).values
    assert (heaviest == 0).any()
    wanted += torch.diag(torch.where(heaviest > 0, heaviest, 1.0))
    assert torch.allclose(dense(_graph_context(graph)), wanted)
    assert torch.allclose(dense(_graph_context(graph).without_self()), graph.dense())


def test_a_slice_listens_to_the_one_before_itself_and_the_one_after():
    assert dense(_graph_context(chain_graph(4))).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
    ]


def test_normalised_graphs_are_refused():
    with pytest.raises(DataError, match="as built, got one normalised as 'sym'"):
        _graph_context(chain_graph(4).normalized())


def test_logits_are_the_rows_of_the_weighted_product_matrix():
    graph, q, k = random_graph(24, seed=3), rows(24), rows(24, seed=1)
    context = _graph_context(graph)
    wanted = (dense(context) * (q @ k.T) / math.sqrt(6)).sum(1, keepdim=True)
    assert torch.allclose(_context_logits(q, k, context), wanted, atol=1e-12)


@pytest.mark.parametrize("lean", ["graph", "nearest"])
def test_gradients_are_those_of_the_dense_product(lean):
    bag = grid_bag(30, dtype=torch.float64)
    offsets = torch.tensor([0, 30])
    context = _graph_context(bag.graph) if lean == "graph" else _nearest_context(bag.x, bag.coords, offsets, 3)
    q, k = rows(30).requires_grad_(), rows(30, seed=1).requires_grad_()
    ours = torch.autograd.grad(_context_logits(q, k, context).sin().sum(), (q, k))
    wanted = (dense(context) * (q @ k.T) / math.sqrt(6)).sum(1).sin().sum()
    for a, b in zip(ours, torch.autograd.grad(wanted, (q, k)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def literal_nearest(x, points, k):
    """One bag in numpy, pair by pair."""
    n = len(x)
    matrix = np.zeros((n, n))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        others.sort(key=lambda j, i=i: (((points[j] - points[i]) ** 2).sum(), *(points[j] - points[i])[::-1]))
        others = others[: max(k, 15)]
        c = np.array([1 - x[i] @ x[j] / math.sqrt((x[i] @ x[i]) * (x[j] @ x[j])) for j in others])
        alike = np.exp(-c / np.sqrt((c**2).sum())) if len(c) else c
        for j, a in zip(others[:k], alike, strict=False):
            matrix[i, j] = a
        matrix[i, i] = max(alike, default=1.0)
    return matrix


SIZES = (1, 2, 3, 7, 15, 16, 17, 57)


@pytest.mark.parametrize("k", [1, 7, 20])
def test_the_nearest_are_weighed_as_released_in_every_bag(k):
    bags = [grid_bag(n, seed=n, dtype=torch.float64) for n in SIZES]
    offsets = torch.tensor([0, *SIZES]).cumsum(0)
    context = _nearest_context(torch.cat([b.x for b in bags]), torch.cat([b.coords for b in bags]), offsets, k)
    wanted = [torch.from_numpy(literal_nearest(b.x.numpy(), b.coords.numpy(), k)) for b in bags]
    assert torch.allclose(dense(context), torch.block_diag(*wanted), atol=1e-12)


def test_weights_by_hand():
    """Three instances on a line; cosine distances 0.2 and 1 from the first: norm √1.04."""
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 2.0]], dtype=torch.float64)
    context = _nearest_context(x, torch.tensor([[0], [1], [3]]), torch.tensor([0, 3]), 1)
    near = math.exp(-0.2 / math.sqrt(1.04))
    assert dense(context)[0].tolist() == pytest.approx([near, near, 0])
    far = math.exp(-0.4 / math.sqrt(1.16))
    assert dense(context)[2].tolist() == pytest.approx([0, far, far])


def test_the_heaviest_may_be_one_that_is_not_listened_to():
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [1.0, 0.1]], dtype=torch.float64)
    weights = dense(_nearest_context(x, torch.tensor([[0], [1], [3]]), torch.tensor([0, 3]), 1))
    assert weights[0, 2] == 0
    assert weights[0, 0] > weights[0, 1] > 0


def test_listening_may_be_one_sided():
    bag = chain_bag(4, dtype=torch.float64)
    weights = dense(_nearest_context(bag.x, torch.tensor([[0], [1], [3], [7]]), torch.tensor([0, 4]), 1))
    assert (weights[3] > 0).tolist() == [False, False, True, True]
    assert weights[2, 3] == 0


def test_identical_instances_count_fully_whatever_rounding_says():
    x = (
        torch.randn(1, 512, generator=torch.Generator().manual_seed(0)).repeat(20, 1)
        * torch.linspace(0.1, 9, 20)[:, None]
    )
    weights = dense(_nearest_context(x, torch.arange(20)[:, None], torch.tensor([0, 20]), 7))
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert weights.sum(1).tolist() == [8.0] * 20


def test_blank_features_are_at_no_distance():
    x = rows(5)
    x[2] = 0
    pairs = torch.tensor([[0, 2, 2], [2, 4, 2]])
    assert _cosine_distances(x, pairs).tolist() == [0, 0, 0]


def test_distances_do_not_depend_on_how_many_are_taken_at_once(monkeypatch):
    x, pairs = rows(40), torch.randint(0, 40, (2, 500), generator=torch.Generator().manual_seed(0))
    whole = _cosine_distances(x, pairs)
    monkeypatch.setattr(camil, "_PAIR_ENTRIES", 1)
    assert torch.allclose(_cosine_distances(x, pairs), whole, atol=1e-15)
    assert whole.min() == 0 < whole.max() <= 2


def test_half_precision_features_are_widened():
    bag, offsets = grid_bag(30), torch.tensor([0, 30])
    a, b = (_nearest_context(x, bag.coords, offsets) for x in (bag.x.half(), bag.x.half().float()))
    assert torch.equal(dense(a), dense(b))


def test_no_gradient_flows_through_likeness():
    bag = grid_bag(10, dtype=torch.float64)
    context = _nearest_context(bag.x.requires_grad_(), bag.coords, torch.tensor([0, 10]))
    assert not context.sum(rows(10)).requires_grad


def test_without_edges_everybody_hears_only_itself():
    assert torch.equal(dense(_graph_context(without_edges(grid_bag(5)).graph)), torch.eye(5, dtype=torch.float64))


def test_the_number_of_nearest_is_positive():
    with pytest.raises(DataError, match="k must be at least 1, got 0"):
        _nearest_context(rows(3), torch.zeros(3, 2), torch.tensor([0, 3]), 0)


class Largest(TorchDispatchMode):
    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else (result,):
            if isinstance(t, torch.Tensor) and t.layout == torch.strided:
                self.most = max(self.most, t.numel())
        return result


def test_nothing_is_kept_per_pair_of_instances_in_either_direction(monkeypatch):
    """15 neighbours and 40 features: the largest tensor holds pairs or features, not the features of all pairs."""
    monkeypatch.setattr(camil, "_PAIR_ENTRIES", 2**16)
    n, bag = 3000, grid_bag(3000, dim=40)
    q, k = (rows(n, 40, seed).float().requires_grad_() for seed in (0, 1))
    with Largest() as largest:
        for context in (
            _graph_context(bag.graph),
            _nearest_context(bag.x, bag.coords, torch.tensor([0, n])),
        ):
            _context_logits(q, k, context).square().sum().backward()
    assert largest.most <= 40 * n
