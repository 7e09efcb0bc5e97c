"""A patient's cases as one bag: no neighbours between them, one label, and the numbers of the cases themselves."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.bags import STEP, chain_bag, grid_bag, reordered

from smmil.bag import BagBatch
from smmil.data import Manifest
from smmil.data.patients import GAP, StudyBags, join_bags, need_patients, side_by_side
from smmil.data.splits import make_splits
from smmil.errors import DataError
from smmil.formats import write_bag
from smmil.frame import Frame
from smmil.models import create_model, list_models
from smmil.nn.token_grid import EMPTY, lattice_positions, window_index
from smmil.predict.patient_bags import case_slices

SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}}
# Those that say in their docstrings that the order of instances matters.
IN_ORDER = ("trans_mil", "camil", "dtfd_mil", "iib_mil")


def slides(*sizes):
    return [grid_bag(n, seed=n) for n in sizes]


def built(name):
    torch.manual_seed(0)
    return create_model(name, 16, **SMALLER.get(name, {})).eval().double()


def logits(model, bag):
    with torch.no_grad():
        return model(BagBatch.pack([replace(bag, x=bag.x.double())])).logits


def test_no_edge_leads_from_one_case_to_another_and_those_inside_are_kept():
    cases = slides(7, 12, 5)
    bag = join_bags("p", cases, 1)
    expected = torch.zeros(24, 24, dtype=torch.float64)
    for case, rows in zip(cases, case_slices(cases), strict=True):
        expected[rows, rows] = case.graph.dense()
    assert torch.equal(bag.graph.dense(), expected)
    assert torch.equal(bag.x, torch.cat([case.x for case in cases]))
    assert torch.equal(bag.y_inst, torch.cat([case.y_inst for case in cases]))
    assert (bag.id, bag.y) == ("p", 1)


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_slides_lie_apart_on_the_lattice_of_the_first(count):
    rng = np.random.default_rng(count)
    coords = [
        torch.from_numpy(grid_bag(n, seed=n).coords.numpy() + rng.integers(0, 10**5, 2)) for n in range(5, 5 + count)
    ]
    moved = side_by_side(coords, Frame((STEP, STEP)))
    assert torch.equal(moved[0], coords[0])
    for before, after in zip(coords, moved, strict=True):
        assert torch.equal(after - after[0], before - before[0])  # a case keeps its shape
        steps = (after - moved[0].amin(0)).double() / STEP
        assert torch.equal(steps, steps.round())
    for a, b in itertools.combinations(moved, 2):
        gap = (a.double()[:, None] - b.double()[None]).abs().amax(2).min() / STEP
        assert gap >= GAP
    cells = lattice_positions(torch.cat(moved), (STEP,))
    side = max(int(c.max() - c.min()) / STEP + 1 for c in coords)
    assert cells.max() < np.ceil(np.sqrt(count)) * (side + 1 + GAP)  # near a square: memory of models on a lattice


def test_scans_follow_each_other_along_z_with_a_gap():
    one, other = chain_bag(5), chain_bag(7, seed=1)
    coords = join_bags("p", [one, other]).coords
    assert coords[:, 0].tolist() == [*range(5), *range(5 + GAP, 12 + GAP)]
    boxes = [torch.tensor([[0, 0, 0], [8, 0, 0], [0, 0, 4]]), torch.tensor([[8, 8, 0], [8, 8, 4]])]
    moved = side_by_side(boxes, Frame((8, 8, 4)))
    assert moved[1].tolist() == [[0, 0, 4 * (2 + GAP)], [0, 0, 4 * (3 + GAP)]]


@pytest.mark.parametrize("name", list_models())
def test_a_patient_with_one_case_has_exactly_the_numbers_of_the_case(name):
    (case,) = slides(15)
    model = built(name)
    assert torch.equal(logits(model, join_bags("p", [case], 1)), logits(model, case))


@pytest.mark.parametrize("name", [m for m in list_models() if m not in (*IN_ORDER, "set_mil")])
def test_the_order_of_the_cases_does_not_matter(name):
    cases, model = slides(9, 14, 4), built(name)
    first = logits(model, join_bags("p", cases))
    assert torch.allclose(logits(model, join_bags("p", cases[::-1])), first, atol=1e-10)


@pytest.mark.parametrize("name", list_models())
def test_patients_packed_are_patients_one_by_one(name):
    patients = [join_bags("p", slides(9, 14)), join_bags("q", slides(3)), join_bags("r", slides(6, 5, 8))]
    patients = [replace(p, x=p.x.double()) for p in patients]
    model = built(name)
    with torch.no_grad():
        together = model(BagBatch.pack(patients)).logits
    assert torch.allclose(together, torch.cat([logits(model, p) for p in patients]), atol=1e-9)


def test_graph_convolutions_see_no_other_case():
    """Changing one slide leaves the scores of the other as they are, up to the level of the pool."""
    one, other = slides(12, 10)
    model = built("patch_gcn")

    def scores(second):
        bag = join_bags("p", [one, second])
        with torch.no_grad():
            return model(BagBatch.pack([replace(bag, x=bag.x.double())])).scores[: one.n]

    assert torch.allclose(scores(other), scores(replace(other, x=other.x * 3)), atol=1e-12)


def test_no_window_of_set_mil_sees_two_slides():
    """Windows of 5 cells, one for 2 × 2 cells, and over these windows of 7: the widest of its pyramid."""
    cases = slides(9, 30, 14, 5, 40)
    bag = join_bags("p", cases)
    owner = torch.cat([torch.full((case.n,), k) for k, case in enumerate(cases)])
    cells = lattice_positions(bag.coords, bag.frame.step)
    side = int(cells.max()) + 1
    assert len(cells.unique(dim=0)) == bag.n  # no two instances share a cell
    board = torch.full((side, side), EMPTY)
    board[cells[:, 0], cells[:, 1]] = owner
    tokens = [set(window[window != EMPTY].tolist()) for window in window_index(board, 5, stride=2)]
    across = (side + 1) // 2
    for window in window_index(torch.arange(across * across).view(across, across), 7):
        assert len(set().union(*(tokens[t] for t in window[window != EMPTY].tolist()))) <= 1


def test_cases_that_do_not_belong_together_are_refused_by_name():
    one, other = slides(5, 6)
    with pytest.raises(DataError, match=r"grid_5_5 has patch .*512.*grid_6_6 has patch .*256.*one recipe"):
        join_bags("p", [one, replace(other, frame=Frame((256, 256)))])
    with pytest.raises(DataError, match="spacing"):
        join_bags(
            "p",
            [
                replace(one, frame=Frame((512, 512), (0.5, 0.5), "um")),
                replace(other, frame=Frame((512, 512), (0.25, 0.25), "um")),
            ],
        )
    near = [replace(bag, frame=Frame((512, 512), (mpp, mpp), "um")) for bag, mpp in ((one, 0.2500), (other, 0.2505))]
    assert join_bags("p", near).n == 11
    with pytest.raises(DataError, match="grid_6_6 has no graph"):
        join_bags("p", [one, replace(other, graph=None)])
    with pytest.raises(DataError, match="one encoder"):
        join_bags("p", [one, replace(other, x=other.x[:, :4])])
    with pytest.raises(DataError, match="target of"):
        join_bags("p", [replace(one, target=torch.tensor([1.0])), replace(other, target=torch.tensor([2.0]))])


@pytest.fixture
def study(tmp_path):
    """Five cases of three patients; the file names and ids say nothing about who they are."""
    rows = [("b2", 0, "Ann"), ("a1", 1, "Ann"), ("c1", 0, "Bob"), ("d1", 1, "Cid"), ("d2", 1, "Cid")]
    for n, (id_, _, _) in enumerate(rows):
        write_bag(tmp_path / f"{id_}.h5", replace(grid_bag(5 + n, seed=n), id=id_, y=None, y_inst=None))
    table = pd.DataFrame([{"id": i, "path": f"{i}.h5", "label": str(y), "group": g} for i, y, g in rows])
    return Manifest(table, tmp_path, "study")


def test_the_bag_of_a_patient_is_named_by_the_first_case_and_positive_if_one_is(study):
    patients = StudyBags(study, bags="patient")
    assert patients.members == {"a1": ("a1", "b2"), "c1": ("c1",), "d1": ("d1", "d2")}
    assert patients.labels == {"a1": 1, "c1": 0, "d1": 1}
    bag = patients.bag("a1")
    assert (bag.id, bag.y, bag.n) == ("a1", 1, 11)
    assert torch.equal(bag.x, torch.cat([study.bag("a1").x, study.bag("b2").x]))
    assert "Ann" not in repr(bag)


def test_the_order_of_the_table_does_not_matter(study):
    ids = list(study.ids)
    random.Random(1).shuffle(ids)
    a, b = StudyBags(study, bags="patient"), StudyBags(study.select(ids), bags="patient")
    assert a.members.items() == b.members.items() or dict(sorted(a.members.items())) == dict(sorted(b.members.items()))
    assert torch.equal(a.bag("a1").x, b.bag("a1").x)


def test_other_labels_than_0_and_1_must_agree(study):
    several = Manifest(study.table.assign(label=["2", "1", "0", "1", "1"]), study.folder, "study")
    with pytest.raises(DataError, match="a1: 1, b2: 2"):
        dict(StudyBags(several, bags="patient").labels)


def test_classes_of_the_model_decide_not_those_that_happen_to_be_in_a_table(study):
    with pytest.raises(DataError, match="a1: 1, b2: 0"):
        dict(StudyBags(study, bags="patient", classes=3).labels)


def test_an_unknown_label_is_no_negative_one(study):
    labels = Manifest(study.table.assign(label=["0", "", "0", "", "1"]), study.folder, "study")
    assert StudyBags(labels, bags="patient").labels == {"a1": None, "c1": 0, "d1": 1}


def test_patients_are_split_by_their_own_label_and_a_split_names_all_cases():
    n = 24
    rows = [(f"x{p:02d}{s}", p % 2 if s == 0 else 0, f"g{p}") for p in range(n) for s in range(2)]
    table = pd.DataFrame([{"id": i, "path": f"{i}.h5", "label": str(y), "group": g} for i, y, g in rows])
    patients = StudyBags(Manifest(table), bags="patient")
    for split in make_splits(patients.rows(), folds=3, val_share=1 / 3):
        cases = patients.expanded(split).to_dict()
        assert sorted(i for ids in cases.values() for i in ids) == sorted(table["id"])
        for ids in cases.values():
            found = StudyBags(Manifest(table), ids, bags="patient")
            assert all(len(members) == 2 for members in found.members.values())
            assert set(found.labels.values()) == {0, 1}


def test_patients_that_nobody_names_are_refused(study):
    with pytest.raises(DataError, match="needs the column group"):
        need_patients(Manifest(study.table.drop(columns="group"), study.folder, "study"))


def test_instances_may_come_in_any_order_inside_a_patient():
    bag, model = join_bags("p", slides(9, 14)), built("sm_ap")
    order = torch.randperm(bag.n, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(logits(model, reordered(bag, order)), logits(model, bag), atol=1e-10)
