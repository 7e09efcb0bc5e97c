"""How cases are packed for the model leaves no trace in any number."""

import pytest
import torch
from support.bags import grid_bag

from smmil.bag import BagBatch
from smmil.evaluate import froc, summary
from smmil.models import create_model
from smmil.predict import predict


def packed(bags, size):
    return [BagBatch.pack(bags[i : i + size]) for i in range(0, len(bags), size)]


def numbers(found, path=()):
    """Every number of a nested result with the way to it."""
    if isinstance(found, dict):
        return {k: v for key, inner in found.items() for k, v in numbers(inner, (*path, key)).items()}
    return {path: found} if isinstance(found, int | float) else {}


@pytest.mark.parametrize("name", ["abmil", "sm_ap"])
def test_size_and_order_of_batches_do_not_change_a_metric(name):
    torch.manual_seed(0)
    model = create_model(name, in_dim=16)
    bags = [grid_bag(10 + i, seed=i, y=i % 2) for i in range(12)]
    one = predict(model, packed(bags, 1))
    many = predict(model, packed(bags[::-1], 5))
    found, expected = (numbers({**summary(p, threshold=0.0), "froc": froc(p)}) for p in (many, one))
    assert found.keys() == expected.keys()
    assert list(found.values()) == pytest.approx([expected[key] for key in found], rel=1e-5, nan_ok=True)
