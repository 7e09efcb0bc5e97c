"""Where SETMIL puts the instances: lattices, folds, crops and random changes, against dense feature maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.bags import STEP, chain_bag, grid_bag, reordered
from support.literal_set_mil import (
    assert_is,
    bags,
    build,
    expected,
    feature_map,
    full_square,
    gather_spots,
    grid_spots,
    literal,
    pack,
)
from support.map_changes import literal_changes

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.frame import Frame
from smmil.nn.token_grid import GridAugmentation


def test_slices_are_gathered_into_a_square():
    model, some = build().eval(), bags(make=chain_bag)
    with torch.no_grad():
        assert_is(model(pack(*some)), [expected(model, bag, gather_spots(bag.n)) for bag in some])


def test_the_gather_fold_goes_by_the_list():
    model, some = build(fold="gather").eval(), bags()
    bare = [Bag(bag.id, bag.x) for bag in some]
    with torch.no_grad():
        truth = [expected(model, bag, gather_spots(bag.n)) for bag in some]
        assert_is(model(pack(*some)), truth)
        assert_is(model(pack(*bare)), truth)
        assert_is(build().eval()(pack(*bare)), truth)


def test_a_common_shift_of_all_patches_changes_nothing():
    model, (bag,) = build().eval(), bags((40,))
    moved = replace(bag, coords=bag.coords + torch.tensor([12345, -678]))
    a, b = model(pack(bag)), model(pack(moved))
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.scores, b.scores)


def test_the_order_of_slices_is_that_of_their_coordinates():
    model, (bag,) = build().eval(), bags((16,), chain_bag)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    a, b = model(pack(bag)), model(pack(reordered(bag, order)))
    assert torch.allclose(a.logits, b.logits, atol=1e-12)
    assert torch.allclose(a.scores[order], b.scores, atol=1e-12)


def test_a_step_in_the_frame_goes_before_its_patch():
    """Patches of 512 that overlap by half: the lattice is that of the stride."""
    model, (bag,) = build().eval(), bags((16,))
    overlapping = replace(bag, frame=Frame((2 * STEP,), stride=(STEP,)))
    assert torch.equal(model(pack(bag)).scores, model(pack(overlapping)).scores)


def test_without_a_frame_the_step_is_found():
    model, (bag,) = build().eval(), bags((40,))
    assert torch.equal(model(pack(bag)).scores, model(pack(replace(bag, frame=None))).scores)


@pytest.mark.parametrize("coords", [[[7, 9]] * 3, [[0, 0], [2, 5], [7, 7]]])
def test_without_a_lattice_instances_are_gathered(coords):
    model = build().eval()
    bag = bags((3,))[0]
    lost = replace(bag, coords=torch.tensor(coords), frame=None)
    with torch.no_grad():
        assert_is(model(pack(lost)), [expected(model, bag, gather_spots(3))])


def test_two_patches_in_one_cell_show_their_mean_and_share_its_score():
    model, (bag,) = build().eval(), bags((7,))
    coords = torch.cat([bag.coords, bag.coords[2:3] + 10])
    double = Bag("double", torch.cat([bag.x, bag.x[:1]]), coords, bag.frame)
    out = model(pack(double))
    with torch.no_grad():
        assert_is(out, [expected(model, double, grid_spots(coords, STEP))])
    mean = bag.x.clone()
    mean[2] = (bag.x[2] + bag.x[0]) / 2
    assert torch.allclose(out.logits, model(pack(replace(bag, x=mean))).logits, atol=1e-12)
    assert out.scores[7] == out.scores[2]


def test_a_large_bag_enlarges_the_map_and_every_patch_is_seen():
    model, bag = build(size=4).eval(), full_square(9)
    x = bag.x.requires_grad_()
    out = model(pack(bag))
    (slope,) = torch.autograd.grad(out.logits.sum(), x)
    assert (slope.abs().sum(1) > 0).all()
    assert (out.scores > 0).all()


def test_cropped_patches_are_not_seen_and_score_zero():
    model, bag = build(size=4, crop=True).eval(), full_square(9)
    out = model(pack(bag))
    inner = torch.zeros(9, 9, dtype=torch.bool)
    inner[2:6, 2:6] = True
    keep = inner.flatten()
    small = Bag("inner", bag.x[keep], bag.coords[keep], bag.frame)
    alone = model(pack(small))
    assert torch.allclose(out.logits, alone.logits, atol=1e-12)
    assert torch.allclose(out.scores[keep], alone.scores, atol=1e-12)
    assert (out.scores[~keep] == 0).all()
    assert (out.scores[keep] > 0).all()


def test_a_map_that_cannot_be_meant_is_refused():
    bag = grid_bag(3, dim=5, dtype=torch.float64)
    wide = replace(bag, coords=torch.tensor([[0, 0], [1, 0], [90_000, 0]]), frame=Frame((1, 1)))
    with pytest.raises(DataError, match=rf"{bag.id}: its map would have 90,001 × 90,001 cells.*fold='gather'"):
        build()(pack(wide))
    assert build(fold="gather")(pack(wide)).scores.isfinite().all()


CHANGES = [
    GridAugmentation(),
    GridAugmentation(mirror=True, turns=1),
    GridAugmentation(flip=True, zoom=7),
    GridAugmentation(zoom=9, corner=(0, 0), turns=2),
    GridAugmentation(cut=(2, 5)),
    GridAugmentation(True, True, 9, (0, 0), (3, 0), 3),
]


def test_the_grid_grows_to_the_bounding_square():
    positions = torch.tensor([[0, 0], [3, 9]])
    assert [build(size=size)._layout("b", positions).side for size in (4, 10, 48)] == [10, 10, 48]


@pytest.mark.parametrize("changes", CHANGES)
def test_training_on_a_changed_map_reads_scores_where_patches_went(monkeypatch, changes):
    monkeypatch.setattr(GridAugmentation, "draw", lambda side: changes)
    bag = grid_bag(16, dim=5, seed=4, dtype=torch.float64)
    model = build(size=8, augment=True).train()
    shown, cells = feature_map(bag.x, grid_spots(bag.coords, STEP), 8)
    numbers = torch.full((8, 8, 1), -1.0)
    for i, cell in enumerate(cells):
        numbers[cell] = i
    moved = literal_changes(shown.numpy(), changes)
    # Numbers go the same way; shifted by one so that padding, which is 0, means nobody.
    where = np.round(literal_changes(numbers.numpy() + 1, replace(changes, cut=None)) - 1)[..., 0]
    if changes.cut is not None:
        hole = np.zeros((8, 8), dtype=bool)
        hole[changes.cut[0], changes.cut[1]] = True
        where = np.where(np.rot90(hole, changes.turns), -1, where)
    with torch.no_grad():
        out = model(pack(bag))
        logits, taken = literal(model, torch.from_numpy(moved.copy()))
    assert torch.allclose(out.logits, logits, atol=1e-10)
    for i in range(bag.n):
        seen = taken[torch.from_numpy(where == i)]
        truth = seen.mean() if len(seen) else torch.tensor(0.0)
        assert out.scores[i].item() == pytest.approx(truth.item(), abs=1e-12)


def test_augmentation_is_off_by_default_and_in_use():
    batch = pack(*bags((16,)))
    plain, active = build().train(), build(augment=True)
    assert torch.equal(plain(batch).logits, plain.eval()(batch).logits)
    assert torch.equal(active.eval()(batch).logits, plain(batch).logits)
    torch.manual_seed(0)
    assert len({active.train()(batch).logits.item() for _ in range(12)}) > 4
