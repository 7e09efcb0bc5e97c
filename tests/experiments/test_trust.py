"""The five questions to a map: stable, on the right side, faithful, not from random labels, not from positions."""

import numpy as np
import pandas as pd
import pytest
import torch
from bags import chain_bag, grid_bag
from experiments.studies import copied, tiny_set, tiny_study
from torch import nn

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.experiments.datasets import neighbour_agreement, prepare
from smmil.experiments.derived import position_bag, positions_only, random_labels
from smmil.experiments.faithfulness import SHARES, curve, deletion_insertion, part_of_bag
from smmil.experiments.stability import inverted_map, inverted_maps, map_stability
from smmil.experiments.trust import _HEADINGS, trust_markdown, trust_report
from smmil.models import Output
from smmil.prediction import Prediction


class LargestValue(nn.Module):
    """Logit: the largest first feature of the bag; score of an instance: its first feature times `sign`."""

    def __init__(self, sign=1.0):
        super().__init__()
        self.sign = sign

    def forward(self, batch):
        parts = batch.split(batch.x)
        return Output(torch.stack([p[:, :1].amax(0) for p in parts]), self.sign * batch.x[:, :1])


def step_bag(n=20, high=3.0):
    """One instance decides: its first feature is high, all others are very low."""
    x = torch.full((n, 2), -9.0)
    x[7] = high
    return Bag("step", x, torch.arange(n)[:, None], y=1)


def scored(case, scores, y=1, y_inst=None, **more):
    return Prediction(case, [0.5], scores, y=y, y_inst=y_inst, **more)


def test_equal_orders_are_stable_and_reversed_ones_are_not():
    up, scaled, down = ([scored("a", s)] for s in ([1, 2, 3, 4.0], [10, 20, 30, 99.0], [4, 3, 2, 1.0]))
    assert map_stability([up, scaled])["stability"] == pytest.approx(1)
    assert map_stability([up, down])["stability"] == pytest.approx(-1)
    three = map_stability([up, scaled, down])
    assert three["stability"] == pytest.approx((1 - 1 - 1) / 3)
    assert (three["stability_worst"], three["n_stability_pairs"]) == (pytest.approx(-1), 3)


def test_a_single_seed_or_a_constant_map_has_no_stability():
    assert np.isnan(map_stability([[scored("a", [1, 2, 3.0])]])["stability"])
    assert np.isnan(map_stability([[scored("a", [1, 1, 1.0])], [scored("a", [1, 2, 3.0])]])["stability"])


def cohort(sign, cases=30, seed=0):
    rng, found = np.random.default_rng(seed), []
    for number in range(cases):
        truth = rng.integers(0, 2, 12)
        truth[:2] = 0, 1
        found.append(scored(f"c{number}", sign * truth + rng.normal(0, 0.7, 12), y_inst=truth))
    return found


def test_an_inverted_map_raises_the_alarm_and_a_good_or_useless_one_does_not():
    assert inverted_map(cohort(-1), n=200)["inverted"]
    assert not inverted_map(cohort(1), n=200)["inverted"]
    assert not inverted_map(cohort(0), n=200)["inverted"]


def test_every_run_is_asked_whether_its_map_is_inverted():
    found = inverted_maps([cohort(1), cohort(-1, seed=1), cohort(1, seed=2)], n=200)
    each = [inverted_map(run, n=200)["inside"] for run in (cohort(1), cohort(-1, seed=1), cohort(1, seed=2))]
    assert (found["inverted"], found["inverted_runs"]) == (True, "1 of 3")
    assert found["inside"] == pytest.approx(np.mean(each))
    assert found["inside_lowest"] == each[1] < 0.5
    assert inverted_maps([cohort(1), cohort(1, seed=2)], n=200)["inverted_runs"] == "0 of 2"


def test_part_of_a_bag_keeps_rows_and_the_edges_among_them():
    bag = grid_bag(30)
    rows = np.array([9, 2, 17, 3, 4, 28])
    part = part_of_bag(bag, rows)
    kept = np.sort(rows)
    assert torch.equal(part.x, bag.x[kept])
    assert torch.equal(part.coords, bag.coords[kept])
    assert torch.equal(part.graph.dense(), bag.graph.dense()[kept][:, kept])


def test_deleting_the_instance_that_decides_lets_the_probability_fall_at_once():
    bag, model = step_bag(), LargestValue()
    order = np.argsort(-bag.x[:, 0].numpy(), kind="stable")
    high, low = 1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(9.0))
    assert curve(model, bag, order) == pytest.approx([high] + [low] * (len(SHARES) - 1))
    assert curve(model, bag, order, insert=True) == pytest.approx([high] * len(SHARES))
    assert curve(model, bag, order[::-1], insert=True) == pytest.approx([low] * len(SHARES))


def test_a_faithful_map_beats_random_order_and_an_inverted_one_loses():
    bags = [step_bag(n) for n in (20, 30, 40)]
    good, bad = (deletion_insertion(LargestValue(sign), bags) for sign in (1.0, -1.0))
    assert good["deletion"] < good["deletion_random"]
    assert good["insertion"] > good["insertion_random"]
    assert bad["deletion"] > bad["deletion_random"]
    assert bad["insertion"] < bad["insertion_random"]
    assert good["n_faithful_cases"] == 3


def test_positions_are_scaled_to_the_case_and_nothing_else_remains():
    bag = position_bag(chain_bag(5, dim=16))
    assert bag.x.tolist() == [[0.0], [0.25], [0.5], [0.75], [1.0]]
    flat = Bag("flat", torch.ones(3, 4), torch.tensor([[5, 0], [5, 2], [5, 4]]))
    assert position_bag(flat).x.tolist() == [[0, 0], [0, 0.5], [0, 1]]


def test_random_labels_leave_test_cases_alone_and_deal_out_the_others(tmp_path):
    dataset = tiny_set()
    ready = prepare(dataset, tmp_path)
    derived = random_labels(dataset, ready, tmp_path)
    old, new = Manifest.read(ready.manifest), Manifest.read(derived.manifest)
    from smmil.data.splits import load_splits

    test = set(load_splits(derived.splits)[0].test)
    others = sorted(set(old.ids) - test)
    assert test
    assert all(old.labels[i] == new.labels[i] for i in test)
    assert [old.labels[i] for i in others] != [new.labels[i] for i in others]
    assert sorted(old.labels[i] for i in others) == sorted(new.labels[i] for i in others)
    assert all(bool((new.bag(i).y_inst == -1).all()) for i in others)
    assert all(torch.equal(new.bag(i).y_inst, old.bag(i).y_inst) for i in test)


def test_positions_only_has_the_same_cases_labels_graphs_and_splits(tmp_path):
    dataset = tiny_set()
    ready = prepare(dataset, tmp_path)
    derived = positions_only(dataset, ready, tmp_path)
    old, new = Manifest.read(ready.manifest), Manifest.read(derived.manifest)
    assert sorted(old.ids) == sorted(new.ids)
    for id_ in old.ids:
        a, b = old.bag(id_), new.bag(id_)
        assert (a.y, a.y_inst.tolist()) == (b.y, b.y_inst.tolist())
        assert a.graph.same_as(b.graph)
        assert b.x.shape == (a.n, 2)


def test_agreement_of_neighbours_by_hand():
    labels, edges = np.array([1, 1, 0, -1]), np.array([[0, 1, 2, 0, 1], [1, 2, 3, 0, 0]])
    assert neighbour_agreement(labels, edges) == pytest.approx(2 / 3)  # 0-1 twice, 1-2 not; unknown and self left out


def test_the_report_answers_every_question_for_every_variant(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "trust")
    paths = trust_report(tiny_study(caveat="Preliminary"), out, resamples=50)
    assert paths[1].read_text().startswith("## Preliminary: Can the maps be trusted?\n")
    rows = pd.read_csv(paths[0])
    assert list(rows["variant"]) == ["ABMIL", "SmAP"]
    for column in ("inside", "deletion", "insertion_random", "random_labels", "positions_bag", "positions_inst"):
        assert rows[column].notna().all()
    assert rows["stability"].isna().all()  # one seed only
    assert paths[1].read_text().count("| tiny |") == 2
    assert len(list((out / "runs").iterdir())) == 8 + 4


def test_an_inverted_map_is_shouted():
    row = {"set": "s", "variant": "M", **dict.fromkeys(_HEADINGS, 0.25), "inverted": True}
    row["inverted_runs"] = "2 of 5"
    assert "**Inverted map**: M on s is high on the wrong side in 2 of 5 runs." in trust_markdown([row])
    assert "Inverted map" not in trust_markdown([{**row, "inverted": False}])
