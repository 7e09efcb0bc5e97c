import numpy as np
import pytest
import torch
from support.bags import STEP, chain_bag, grid_coords, random_graph

from smmil.errors import DataError
from smmil.graph import grid_graph, join
from smmil.nn.gnn import Neighbours, nearest


def heard(neighbours, i):
    return sorted(neighbours.matrix.indices[slice(*neighbours.matrix.indptr[i : i + 2])].tolist())


def literal_choice(points, k):
    """For every point the k nearest others, one comparison at a time; ties by height, then from the left."""
    chosen = []
    for i, here in enumerate(points):
        rest = [j for j in range(len(points)) if j != i]
        rest.sort(key=lambda j, here=here: (((points[j] - here) ** 2).sum(), *(points[j] - here)[::-1]))
        chosen.append(rest[:k])
    return chosen


def test_a_patch_hears_those_that_chose_it():
    """0, 1, 3, 7 on a line choose 1, 0, 1, 3: the second hears two, the last nobody."""
    line = nearest(torch.tensor([[0], [1], [3], [7]]), torch.tensor([0, 4]), 1)
    assert [heard(line, i) for i in range(4)] == [[1], [0, 2], [3], []]
    assert line.isolated[:, 0].tolist() == [False, False, False, True]


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_nearest_are_those_of_a_slow_search_in_every_bag(k):
    coords = [grid_coords(n, seed=n) for n in (1, 2, 5, 60)]
    offsets = torch.tensor([0, 1, 3, 8, 68])
    found = nearest(torch.from_numpy(np.concatenate(coords)), offsets, k)
    wanted = torch.zeros(68, 68, dtype=torch.float64)
    for points, start in zip(coords, offsets.tolist(), strict=False):
        for i, chosen in enumerate(literal_choice(points, k)):
            wanted[[start + j for j in chosen], start + i] = 1
    assert torch.equal(found.matrix.dense(), wanted)
    assert torch.equal(found.transpose.dense(), wanted.T)


def test_the_order_of_the_rows_does_not_decide_between_equally_near_ones():
    coords, order = torch.from_numpy(grid_coords(200)), torch.randperm(200, generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, 200])
    a, b = (nearest(c, offsets, 8).matrix.dense() for c in (coords, coords[order]))
    assert torch.equal(a[order][:, order], b)
    assert not torch.equal(a, a.T)


def test_instances_at_one_place_never_choose_themselves():
    same = nearest(torch.zeros(30, 2), torch.tensor([0, 30]), 3)
    assert same.matrix.dense().diagonal().sum() == 0
    assert same.transpose.indptr.diff().tolist() == [3] * 30


def test_the_nearest_need_a_positive_number():
    with pytest.raises(DataError, match="k must be at least 1, got 0"):
        nearest(torch.zeros(3, 2), torch.tensor([0, 3]), 0)


@pytest.mark.parametrize("one_sided", [False, True])
def test_sums_are_those_of_the_dense_matrix_gradients_included(one_sided):
    coords = grid_coords(30)
    graph = join([grid_graph(coords, STEP), random_graph(9)])
    every = torch.from_numpy(np.concatenate([coords, grid_coords(9)]))
    near = nearest(every, torch.tensor([0, 30, 39]), 3) if one_sided else Neighbours.of(graph)
    dense = near.matrix.dense() if one_sided else (graph.dense() > 0).double()
    x = torch.randn(39, 2, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(near.sum(x), dense @ x)
    assert torch.autograd.gradcheck(near.sum, (x,))


def test_half_precision_is_summed_in_float32():
    near, x = Neighbours.of(chain_bag(9).graph), torch.randn(9, 4)
    assert torch.equal(near.sum(x.bfloat16()), near.sum(x.bfloat16().float()))
    plain = near.sum(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(near.sum(x), plain)


def test_a_normalised_graph_is_refused():
    with pytest.raises(DataError, match="as built"):
        Neighbours.of(chain_bag(4).graph.normalized())
