import pytest
import torch
from bags import chain_bag, grid_bag

from smmil.bag import Bag, BagBatch
from smmil.errors import DataError


def test_packing_puts_rows_below_each_other_and_split_takes_them_apart():
    bags = [grid_bag(5), grid_bag(9, seed=1), grid_bag(1, seed=2)]
    batch = BagBatch.pack(bags)
    assert batch.offsets.tolist() == [0, 5, 14, 15]
    for bag, x, coords in zip(bags, batch.split(batch.x), batch.split(batch.coords), strict=True):
        assert torch.equal(bag.x, x)
        assert torch.equal(bag.coords, coords)
    assert torch.equal(batch.graph.dense(), torch.block_diag(*[b.graph.dense() for b in bags]))


def test_a_batch_without_labels_holds_none():
    batch = BagBatch.pack([grid_bag(5), grid_bag(9, seed=1)]).without_labels()
    assert batch.y is None
    assert batch.y_inst is None


def test_unknown_instance_labels_become_minus_one():
    batch = BagBatch.pack(
        [
            grid_bag(3),
            Bag("plain", torch.zeros(2, 16), *[getattr(grid_bag(2), k) for k in ("coords", "frame", "graph", "y")]),
        ]
    )
    assert batch.y_inst.tolist() == [1, 0, 0, -1, -1]


@pytest.mark.parametrize("x", [torch.zeros(0, 4), torch.zeros(4)])
def test_an_empty_bag_is_refused(x):
    with pytest.raises(DataError, match="n >= 1"):
        Bag("empty", x)


def test_rows_that_do_not_match_are_refused_with_both_numbers():
    with pytest.raises(DataError, match="coords has 4,812 rows but features has 4,811"):
        Bag("slide_17", torch.zeros(4811, 2), coords=torch.zeros(4812, 2))
    with pytest.raises(DataError, match="graph has 5 nodes"):
        Bag("slide_18", torch.zeros(4, 2), graph=chain_bag(5).graph)


def test_what_some_bags_lack_is_named():
    with pytest.raises(DataError, match="bare: graph is missing"):
        BagBatch.pack([grid_bag(3), Bag("bare", torch.zeros(2, 16), torch.zeros(2, 2), y=0)])
    with pytest.raises(DataError, match=r"different feature width .*grid_3_0: 16"):
        BagBatch.pack([grid_bag(3), grid_bag(3, dim=8)])
    with pytest.raises(DataError, match=r"needs 'graph'.*bare"):
        BagBatch.pack([Bag("bare", torch.zeros(2, 16))]).need("graph")


def test_slides_and_scans_cannot_share_a_batch():
    with pytest.raises(DataError, match="different numbers of coordinates"):
        BagBatch.pack([grid_bag(4), chain_bag(4)])
