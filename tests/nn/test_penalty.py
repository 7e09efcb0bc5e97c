"""The penalty on ragged maps, against dense matrices."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import grid_bag, mixed_bags

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.losses import PENALTIES, _smoothness_penalty


def literal(bags, parts, kind):
    """Mean over bags and columns, every matrix written out."""
    each = []
    for bag, f in zip(bags, parts, strict=True):
        a = bag.graph.dense().numpy()
        d = a.sum(1)
        for column in f.numpy().T:
            if kind == "scores":
                root = np.where(d > 0, 1 / np.sqrt(np.maximum(d, 1e-300)), 0)
                matrix = np.diag((d > 0).astype(float)) - root[:, None] * a * root
                each.append(column @ matrix @ column / len(column))
                continue
            w = np.exp(column - column.max())
            w /= w.sum()
            matrix = np.diag(d) - a + (np.eye(len(d)) if kind.startswith("sa_mil") else 0)
            matrix = matrix @ matrix if kind.endswith("squared") else matrix
            each.append(w @ matrix @ w)
    return np.mean(each)


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("columns", [1, 3])
def test_it_equals_its_definition_bag_by_bag(kind, columns):
    bags = mixed_bags()
    batch = BagBatch.pack([replace(bag, coords=None) for bag in bags])
    f = torch.randn(len(batch.x), columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = _smoothness_penalty(f, batch.graph, batch.offsets, kind)
    assert float(found) == pytest.approx(literal(bags, batch.split(f), kind), rel=1e-12)


@pytest.mark.parametrize("kind", PENALTIES)
def test_its_gradient_is_right(kind):
    batch = BagBatch.pack([grid_bag(7, dtype=torch.float64), grid_bag(5, seed=1, dtype=torch.float64)])
    f = torch.randn(12, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: _smoothness_penalty(f, batch.graph, batch.offsets, kind), (f,))


def test_the_gradient_of_the_default_is_two_over_n_times_the_laplacian():
    bag = grid_bag(20, dtype=torch.float64)
    f = torch.randn(20, 1, dtype=torch.float64, requires_grad=True)
    _smoothness_penalty(f, bag.graph, torch.tensor([0, 20])).backward()
    laplacian = torch.eye(20, dtype=torch.float64) - bag.graph.normalized("sym").dense()
    torch.testing.assert_close(f.grad, 2 / 20 * laplacian @ f.detach())


def test_an_unknown_kind_is_refused():
    bag = grid_bag(3)
    with pytest.raises(ConfigError, match="penalty kind"):
        _smoothness_penalty(torch.zeros(3, 1), bag.graph, torch.tensor([0, 3]), "score")
