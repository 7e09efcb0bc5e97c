from dataclasses import fields, replace
from functools import reduce

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag
from torch.utils._pytree import (
    tree_flatten,
    tree_flatten_with_path,
    tree_map,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from smmil.bag import Bag, BagBatch
from smmil.errors import DataError
from smmil.graph import Graph


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


def parts(thing):
    """All that it holds, by name; tensors by identity."""
    if isinstance(thing, Bag | BagBatch | Graph):
        return {field.name: parts(getattr(thing, field.name)) for field in fields(thing) if field.init}
    return id(thing) if isinstance(thing, torch.Tensor) else thing


def full_bag(n, seed=0):
    return replace(grid_bag(n, seed=seed), target=torch.tensor([2.5, 1.0]), covariates=torch.randn(3))


@pytest.mark.parametrize(
    "thing",
    [
        full_bag(5),
        BagBatch.pack([full_bag(5), full_bag(9, seed=1)]),
        grid_bag(5).graph,
        grid_bag(5).graph.normalized("rw"),
    ],
)
def test_bags_batches_and_graphs_are_pytrees(thing):
    leaves, spec = tree_flatten(thing)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    back = tree_unflatten(leaves, spec)
    assert type(back) is type(thing)
    assert repr(back) == repr(thing)
    assert parts(back) == parts(thing)
    for path, leaf in tree_flatten_with_path(thing)[0]:
        assert reduce(lambda owner, key: getattr(owner, key.name), path, thing) is leaf
    assert treespec_loads(treespec_dumps(spec)) == spec
    tree_map(lambda _: None, thing)  # whatever stands in for a tensor, no check is in the way


def test_names_are_no_part_of_a_program_but_frames_and_sizes_are():
    spec = [tree_flatten(BagBatch.pack(bags))[1] for bags in ([grid_bag(5)], [grid_bag(7, seed=1)], [chain_bag(5)])]
    assert spec[0] == spec[1]
    assert spec[0] != spec[2]
    assert spec[0] != tree_flatten(BagBatch.pack([grid_bag(5), grid_bag(5)]))[1]


def test_one_line_says_what_a_bag_holds():
    bag = chain_bag(4)
    assert repr(bag) == "Bag('scan_4_0', 4 × 16, graph 3 edges, y=1)"
    assert repr(Bag("bare", torch.zeros(2000, 3))) == "Bag('bare', 2,000 × 3)"
    assert repr(BagBatch.pack([bag])) == "BagBatch('scan_4_0', 4 × 16, graph 3 edges, y=[1])"
    assert repr(BagBatch.pack([bag, chain_bag(1)]).without_labels()) == "BagBatch(2 bags, 5 × 16, graph 3 edges)"
    assert repr(bag.graph) == "Graph(4 nodes, 3 edges)"
    assert repr(bag.graph.normalized("sym_loop")) == "Graph(4 nodes, 10 entries, sym_loop)"


def test_a_batch_moves_with_all_it_holds_and_its_features_change_precision():
    batch = BagBatch.pack([full_bag(5), full_bag(9, seed=1)])
    moved = batch.to("meta", torch.float16, non_blocking=True)
    assert {t.device.type for t in tree_flatten(moved)[0]} == {"meta"}
    assert moved.x.dtype == torch.float16
    assert moved.graph.weight.dtype == torch.float64
    assert (moved.ids, moved.frames) == (batch.ids, batch.frames)
    assert batch.to("cpu").x is batch.x
    assert batch.to("cpu").graph is batch.graph


def test_every_tensor_of_a_batch_is_pinned(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: pinned.append(t) or t)
    batch = BagBatch.pack([full_bag(5)])
    leaves = tree_flatten(batch.pin_memory())[0]
    assert isinstance(batch.graph, Graph)
    assert {id(t) for t in leaves} == {id(t) for t in pinned}
    assert len(leaves) == 10


def test_a_single_bag_is_split_without_reading_its_offsets():
    batch = BagBatch.pack([grid_bag(5)]).to("meta")
    assert batch.sizes == [5]
    assert batch.split(batch.x)[0] is batch.x


def test_targets_and_covariates_are_stacked_and_targets_hidden_with_the_labels():
    bags = [full_bag(5), full_bag(9, seed=1)]
    batch = BagBatch.pack(bags)
    assert torch.equal(batch.target, torch.stack([b.target for b in bags]))
    assert torch.equal(batch.covariates, torch.stack([b.covariates for b in bags]))
    hidden = batch.without_labels()
    assert (hidden.y, hidden.y_inst, hidden.target) == (None, None, None)
    assert hidden.covariates is batch.covariates
    for name in ("target", "covariates"):
        with pytest.raises(DataError, match=f"{name} is missing"):
            BagBatch.pack([bags[0], replace(bags[1], **{name: None})])
        with pytest.raises(DataError, match=f"{name} of different length"):
            BagBatch.pack([bags[0], replace(bags[1], **{name: torch.zeros(1)})])
        with pytest.raises(DataError, match=f"{name} must be one row"):
            replace(bags[0], **{name: torch.zeros(1, 2)})


def test_arrays_of_numpy_become_tensors_of_the_same_memory():
    x, coords, labels = np.ones((3, 2), np.float32), np.arange(6).reshape(3, 2), np.array([0, 1, -1])
    bag = Bag("a", x, coords, y=np.int64(1), y_inst=labels)
    x[0, 0], coords[1, 0] = 7, 9
    assert [bag.x[0, 0].item(), bag.coords[1, 0].item(), bag.y_inst.tolist()] == [7, 9, [0, 1, -1]]
    assert BagBatch.pack([bag]).y.tolist() == [1]


@pytest.mark.parametrize(
    ("y", "words"), [("tumour", "got 'tumour'; number the words"), (float("nan"), "got nan"), (0.5, "0.5")]
)
def test_a_label_that_is_no_class_index_is_refused_in_words(y, words):
    with pytest.raises(DataError, match=f"a: the label must be a class index 0..C-1, .*{words}"):
        Bag("a", torch.ones(2, 2), y=y)


def test_a_single_bag_is_no_list_of_bags():
    with pytest.raises(DataError, match=r"a: .* BagBatch.pack\(\[bag\]\)"):
        BagBatch.pack(Bag("a", torch.ones(2, 2)))
