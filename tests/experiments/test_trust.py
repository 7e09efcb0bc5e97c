"""The five questions to a map: stable, on the right side, faithful, not from random labels, not from positions."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.bags import grid_bag
from support.studies import copied, tiny_set, tiny_study
from torch import nn

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.evaluate.prior import prior_maps
from smmil.experiments.datasets import (
    _agreeing_pairs,
    _prepare,
    _random_labels,
    _share_of,
)
from smmil.experiments.results import _chosen_rows
from smmil.experiments.trust import (
    _HEADINGS,
    SHARES,
    _curve,
    _deletion_insertion,
    _inverted_map,
    _inverted_maps,
    _map_stability,
    _part_of_bag,
    _position_priors,
    _trust_markdown,
    trust_report,
)
from smmil.models import Output
from smmil.prediction import Prediction, load_predictions


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
    assert _map_stability([up, scaled])["stability"] == pytest.approx(1)
    assert _map_stability([up, down])["stability"] == pytest.approx(-1)
    three = _map_stability([up, scaled, down])
    assert three["stability"] == pytest.approx((1 - 1 - 1) / 3)
    assert (three["stability_worst"], three["n_stability_pairs"]) == (pytest.approx(-1), 3)


def test_a_single_seed_or_a_constant_map_has_no_stability():
    assert np.isnan(_map_stability([[scored("a", [1, 2, 3.0])]])["stability"])
    assert np.isnan(_map_stability([[scored("a", [1, 1, 1.0])], [scored("a", [1, 2, 3.0])]])["stability"])


def cohort(sign, cases=30, seed=0):
    rng, found = np.random.default_rng(seed), []
    for number in range(cases):
        truth = rng.integers(0, 2, 12)
        truth[:2] = 0, 1
        found.append(scored(f"c{number}", sign * truth + rng.normal(0, 0.7, 12), y_inst=truth))
    return found


def test_an_inverted_map_raises_the_alarm_and_a_good_or_useless_one_does_not():
    assert _inverted_map(cohort(-1), n=200)["inverted"]
    assert not _inverted_map(cohort(1), n=200)["inverted"]
    assert not _inverted_map(cohort(0), n=200)["inverted"]


def levelled(cases=30):
    """Perfect inside every case; but cases with a large lesion lie low and those with a small one high."""
    found = []
    for number in range(cases):
        share, level = (0.8, 0.0) if number % 2 else (0.2, 5.0)
        truth = (np.arange(20) < 20 * share).astype(int)
        found.append(scored(f"c{number}", level + truth, y_inst=truth))
    return found


def test_levels_that_differ_between_cases_raise_no_alarm():
    pooled = roc_auc_score(
        np.concatenate([p.y_inst for p in levelled()]), np.concatenate([p.scores[:, 0] for p in levelled()])
    )
    assert pooled == pytest.approx(0.8 * 0.2 + 0.2)
    found = _inverted_map(levelled(), n=200)
    assert (found["inside"], found["inverted"]) == (1, False)


def test_only_positive_cases_are_asked():
    upside_down = [scored(f"n{i}", [3, 2, 1.0], y=y, y_inst=[0, 0, 1]) for i, y in enumerate([0, None] * 40)]
    found = _inverted_map([*levelled(), *upside_down], n=200)
    assert (found["inside"], found["inverted"]) == (1, False)


def test_without_an_interval_there_is_no_alarm():
    alone = _inverted_map([scored("a", [3, 2, 1, 0.0], y_inst=[0, 0, 1, 1])], n=50)
    assert (alone["inside"], alone["inverted"]) == (0, False)
    assert np.isnan([alone["inside_low"], alone["inside_high"]]).all()
    unknown = _inverted_map([scored("a", [3, 2, 1.0]), scored("b", [1, 2, 3.0])], n=50)
    assert np.isnan(unknown["inside"])
    assert not unknown["inverted"]


def test_a_map_that_is_upside_down_in_every_case_raises_the_alarm():
    found = _inverted_map([scored(c, [3, 2, 1, 0.0], y_inst=[0, 0, 1, 1]) for c in "abcdefghijkl"], n=50)
    assert (found["inside"], found["inverted"]) == (0, True)
    few = _inverted_map([scored(c, [3, 2, 1, 0.0], y_inst=[0, 0, 1, 1]) for c in "abcdef"], n=50)
    assert not few["inverted"]


def test_every_run_is_asked_whether_its_map_is_inverted():
    found = _inverted_maps([cohort(1), cohort(-1, seed=1), cohort(1, seed=2)], n=200)
    each = [_inverted_map(run, n=200)["inside"] for run in (cohort(1), cohort(-1, seed=1), cohort(1, seed=2))]
    assert (found["inverted"], found["inverted_runs"]) == (True, "1 of 3")
    assert found["inside"] == pytest.approx(np.mean(each))
    assert found["inside_lowest"] == each[1] < 0.5
    assert _inverted_maps([cohort(1), cohort(1, seed=2)], n=200)["inverted_runs"] == "0 of 2"


def test_part_of_a_bag_keeps_rows_and_the_edges_among_them():
    bag = grid_bag(30)
    rows = np.array([9, 2, 17, 3, 4, 28])
    part = _part_of_bag(bag, rows)
    kept = np.sort(rows)
    assert torch.equal(part.x, bag.x[kept])
    assert torch.equal(part.coords, bag.coords[kept])
    assert torch.equal(part.graph.dense(), bag.graph.dense()[kept][:, kept])


def test_deleting_the_instance_that_decides_lets_the_probability_fall_at_once():
    bag, model = step_bag(), LargestValue()
    order = np.argsort(-bag.x[:, 0].numpy(), kind="stable")
    high, low = 1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(9.0))
    assert _curve(model, bag, order) == pytest.approx([high] + [low] * (len(SHARES) - 1))
    assert _curve(model, bag, order, insert=True) == pytest.approx([high] * len(SHARES))
    assert _curve(model, bag, order[::-1], insert=True) == pytest.approx([low] * len(SHARES))


def test_a_faithful_map_beats_random_order_and_an_inverted_one_loses():
    bags = [step_bag(n) for n in (20, 30, 40)]
    good, bad = (_deletion_insertion(LargestValue(sign), bags) for sign in (1.0, -1.0))
    assert good["deletion"] < good["deletion_random"]
    assert good["insertion"] > good["insertion_random"]
    assert bad["deletion"] > bad["deletion_random"]
    assert bad["insertion"] < bad["insertion_random"]
    assert good["n_faithful_cases"] == 3


def test_random_labels_leave_test_cases_alone_and_deal_out_the_others(tmp_path):
    dataset = tiny_set()
    ready = _prepare(dataset, tmp_path)
    derived = _random_labels(dataset, ready, tmp_path)
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


def test_agreement_of_neighbours_by_hand():
    labels, edges = np.array([1, 1, 0, -1]), np.array([[0, 1, 2, 0, 1], [1, 2, 3, 0, 0]])
    # 0-1 twice, 1-2 not; unknown and self left out
    assert _share_of(*_agreeing_pairs(labels, edges)) == pytest.approx(2 / 3)


@pytest.fixture(scope="module")
def reported(finished_study, tmp_path_factory):
    """Folder of the tiny study with its trust report; its data have moved since the runs were trained."""
    out = copied(finished_study, tmp_path_factory.mktemp("trust") / "study")
    for config in out.glob("runs/*/train/config.yaml"):
        text = config.read_text()
        assert str(finished_study) in text
        config.write_text(text.replace(str(finished_study), "/where/they/lay"))
    trust_report(tiny_study(caveat="Preliminary"), out, resamples=50)
    return out


def test_the_report_answers_every_question_for_every_variant_wherever_the_data_lie_now(reported):
    text, rows = (reported / "tiny" / "trust.md").read_text(), pd.read_csv(reported / "tiny" / "trust.csv")
    assert text.startswith("## Preliminary: Can the maps be trusted?\n")
    assert list(rows["variant"]) == ["ABMIL", "SmAP"]
    for column in ("inside", "deletion", "insertion_random", "random_labels", "prior", "own_prior", "residual"):
        assert rows[column].notna().all()
    assert rows["stability"].isna().all()  # one seed only
    assert text.count("| tiny |") == 2
    assert len(list((reported / "runs").iterdir())) == 8 + 2


def own_auroc(out, run):
    """Mean over positive test cases of the AUROC within each, by another route."""
    cases = [p for p in load_predictions(out / "runs" / run / "test") if p.y == 1]
    return np.mean([roc_auc_score(p.y_inst, p.scores[:, 0]) for p in cases])


def test_position_is_measured_like_the_model_beside_it(reported):
    answers = pd.read_csv(reported / "tiny" / "trust.csv").set_index("variant")
    own = _chosen_rows(pd.read_csv(reported / "tiny" / "results.csv"))
    for variant, row in answers.iterrows():
        runs = own[own["variant"] == variant]
        assert len(runs) == 2
        assert row["inside"] == pytest.approx(np.mean([own_auroc(reported, run) for run in runs["run"]]))
        assert row["bag_auroc"] == pytest.approx(runs["bag_auroc"].mean())
        assert row["inside"] - row["prior"] == pytest.approx(row["prior_difference"])
        maps = [prior_maps([p for p in load_predictions(reported / "runs" / r / "test") if p.y]) for r in runs["run"]]
        inside = [np.mean([roc_auc_score(p.y_inst, p.scores[:, 0]) for p in one.truth]) for one in maps]
        assert row["prior"] == pytest.approx(np.mean(inside))


def heights(cases, score):
    """Scans with a lesion around the relative height 0.3, one per patient."""
    rng, found = np.random.default_rng(0), []
    for i in range(cases):
        height = np.linspace(0, 1, 30 + i)
        truth = (np.abs(height - 0.3 - 0.05 * rng.normal()) < 0.1).astype(int)
        found.append(
            scored(
                f"c{i}", score(height, truth, rng), y_inst=truth, coords=np.arange(len(height), dtype=float)[:, None]
            )
        )
    return found


def test_maps_of_position_alone_are_counted_and_shouted():
    habit = heights(20, lambda height, truth, rng: -np.abs(height - 0.3))
    finder = heights(20, lambda height, truth, rng: truth + 0.1 * rng.normal(size=len(height)))
    found = _position_priors([habit, finder], n=100)
    assert (found["no_better"], found["no_better_runs"]) == (True, "1 of 2")
    assert _position_priors([finder], n=100)["no_better_runs"] == "0 of 1"
    assert found["prior"] > 0.9
    row = {"set": "s", "variant": "M", **dict.fromkeys(_HEADINGS, 0.25), "inverted": False, **found}
    text = _trust_markdown([row])
    assert "**No better than position**: M on s does not beat knowing where lesions usually lie in 1 of 2 runs" in text
    assert "No better than position**" not in _trust_markdown([{**row, "no_better": False}])
    nothing = _position_priors([cohort(1)], n=50)  # no coordinates
    assert (nothing["no_better"], nothing["no_better_runs"]) == (False, "–")


def test_the_models_own_values_stand_before_those_of_position_and_random_labels():
    row = {"set": "s", "variant": "M", **dict.fromkeys(_HEADINGS, 0.0), "inverted": False, "inverted_runs": "0 of 5"}
    row |= {"inside": 0.91, "inside_lowest": 0.85, "prior": 0.52, "own_prior": 0.53, "residual": 0.9}
    row |= {"no_better": False, "no_better_runs": "0 of 5", "bag_auroc": 0.97, "random_labels": 0.48}
    line = next(line for line in _trust_markdown([row]).splitlines() if line.startswith("| s |"))
    assert "| 0.910 | 0.850 | 0.520 | 0.530 | 0.900 | 0 of 5 | 0 of 5 |" in line
    assert line.endswith("| 0.970 | 0.480 |")


def test_an_inverted_map_is_shouted():
    row = {"set": "s", "variant": "M", **dict.fromkeys(_HEADINGS, 0.25), "inverted": True, "no_better": False}
    row["inverted_runs"] = "2 of 5"
    assert "**Inverted map**: M on s is high on the wrong side in 2 of 5 runs." in _trust_markdown([row])
    assert "Inverted map" not in _trust_markdown([{**row, "inverted": False}])
