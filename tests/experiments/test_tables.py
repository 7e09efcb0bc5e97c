"""Tables: the paper's ranks from the paper's numbers, places, and the paper's numbers beside ours."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from support.studies import feature_tables, long_rows

from smmil.evaluate import bag_metrics
from smmil.evaluate.bags import by_patient, whole_patients
from smmil.experiments.paper import _cell_notes, _largest_std, paper_table
from smmil.experiments.ranking import _rank_rows, _rank_values, _with_paper
from smmil.experiments.tables import _by_patient, _judged, _with_best_marked
from smmil.prediction import Prediction


@pytest.mark.parametrize("name", ["table_localization", "table_classification"])
def test_ranks_of_the_papers_main_tables_follow_from_its_numbers(name):
    table = paper_table(name)
    printed = table[table["dataset"] == "ALL"].set_index("model")
    ranks, missing = _rank_rows(table[table["dataset"] != "ALL"])
    assert (len(ranks), missing) == (10, [])
    for row in ranks.itertuples():
        assert (round(row.mean, 3), round(row.std, 3)) == (printed["mean"][row.model], printed["std"][row.model])
        assert (row.dataset, row.extractor, row.metric) == ("ALL", "main", printed["metric"][row.model])


def test_instance_ranks_of_table_6_follow_when_resnet50_is_mixed_as_the_paper_did():
    printed = paper_table("feat_ext_ranks").set_index(["extractor", "model", "metric"])
    gaps = {}
    for mixed in ({}, {"ResNet50": ["ResNet50-BT"]}):
        ranks, _ = _rank_rows(feature_tables(), "extractor", mixed)
        mine = ranks[(ranks["extractor"] == "ResNet50") & (ranks["metric"] == "inst_rank")]
        gaps[len(mixed)] = [abs(r.mean - printed["mean"][r.extractor, r.model, r.metric]) for r in mine.itertuples()]
    assert len(gaps[1]) == 13
    assert max(gaps[1]) < 0.001
    assert max(gaps[0]) > 0.1


def test_a_model_that_lacks_a_column_is_not_ranked_and_said_not_to_be():
    rows = pd.concat([long_rows({"A": 0.9, "B": 0.8, "C": 0.7}), long_rows({"A": 0.9, "C": 0.7}, metric="inst_f1")])
    ranks, notes = _rank_rows(rows)
    assert dict(zip(ranks["model"], ranks["state"], strict=True)) == {"A": "", "C": "", "B": "not ranked"}
    assert math.isnan(ranks.set_index("model")["mean"]["B"])
    assert notes == ["not ranked (no_global), some results are missing: B"]


def test_a_model_alone_in_its_group_has_no_rank():
    ranks, notes = _rank_rows(pd.concat([long_rows({"A": 0.9, "B": 0.8}), long_rows({"E": 0.5}, group="global")]))
    found = ranks.set_index("model")
    assert list(found["mean"][["A", "B"]]) == [1, 2]
    assert math.isnan(found["mean"]["E"])
    assert found["state"]["E"] == "not ranked"
    assert notes == ["not ranked (global), nobody to be ranked with: E"]


def test_the_values_behind_ranks_are_rounded_signed_and_without_energies():
    parts = [long_rows({"A": 0.90004, "B": 0.1}, metric=m) for m in ("inst_auroc", "bag_brier", "energy_mean")]
    values = _rank_values(pd.concat([*parts, long_rows({"C": 0.2}, metric="bag_brier")]))
    assert {column[2]: list(values[column]) for column in values.columns}["bag_brier"] == [-0.9, -0.1, -0.2]
    assert sorted(column[2] for column in values.columns) == ["bag_brier", "inst_auroc"]
    assert list(values.dropna().index) == ["A", "B"]


def test_froc_counts_among_the_ranks_of_instances():
    rows = pd.concat([long_rows({"A": 0.9, "B": 0.8}), long_rows({"A": 0.1, "B": 0.2}, metric="froc")])
    ranks, _ = _rank_rows(rows)
    assert list(zip(ranks["metric"], ranks["mean"], strict=True)) == [("inst_rank", 1.5), ("inst_rank", 1.5)]


def ranks_of(rows):
    return {row.model: row.mean for row in _rank_rows(rows)[0].itertuples()}


def test_equal_prints_share_a_rank_lower_losses_rank_higher_and_energies_do_not_count():
    assert ranks_of(long_rows({"A": 0.9001, "B": 0.9004, "C": 0.5})) == {"A": 1.5, "B": 1.5, "C": 3.0}
    assert ranks_of(long_rows({"A": 0.1, "B": 0.2}, metric="bag_loss")) == {"A": 1.0, "B": 2.0}
    assert ranks_of(long_rows({"A": 0.1, "B": 0.2}, metric="energy_mean")) == {}


def test_the_two_best_of_each_group_have_a_place_and_equal_prints_share_it():
    rows = long_rows({"A": 0.9001, "B": 0.9004, "C": 0.85, "D": 0.8})
    other = long_rows({"E": 0.5, "F": 0.4}, group="global")
    placed = _with_best_marked(pd.concat([rows, other]))
    assert dict(zip(placed["model"], placed["place"], strict=True)) == {
        "A": 1, "B": 1, "C": 2, "D": 0, "E": 1, "F": 2}  # fmt: skip


def test_a_lower_rank_is_better_and_no_energy_is_best():
    assert list(_with_best_marked(long_rows({"A": 1.5, "B": 3.0}, metric="inst_rank"))["place"]) == [1, 2]
    assert list(_with_best_marked(long_rows({"A": 0.1, "B": 0.2}, metric="bag_loss"))["place"]) == [1, 2]
    assert list(_with_best_marked(long_rows({"A": 0.1, "B": 0.2}, metric="energy_rayleigh"))["place"]) == [0, 0]


def test_the_papers_number_stands_beside_ours_with_the_difference_and_a_verdict():
    panda = {"dataset": "PANDA", "extractor": "ResNet18"}
    rows = _with_paper(long_rows({"CLAM": 0.75, "SmAP": 0.98, "Mine": 0.7}, **panda), "table_localization")
    clam, smap, mine = rows.itertuples()
    assert (clam.paper_mean, clam.paper_std) == (0.727, 0.046)
    assert clam.difference == pytest.approx(0.023)
    assert clam.within_std == "yes"
    assert smap.within_std == "no"
    assert math.isnan(mine.paper_mean)
    assert mine.within_std == ""


def test_where_the_paper_prints_no_deviation_ours_decides():
    near, far = 0.799 + 0.009, 0.799 + 0.011
    for value, verdict in ((near, "yes"), (far, "no")):
        panda = long_rows({"SmAP-early": value}, std=0.01, dataset="PANDA", extractor="ResNet18")
        rows = _with_paper(panda, "table_ablation")
        assert rows["within_std"][0] == verdict


def test_energies_stand_beside_the_papers_under_our_name():
    rows = _with_paper(long_rows({"ABMIL": 0.4}, metric="energy_rayleigh"), "table_ablation")
    assert rows["paper_mean"][0] == 0.419


@pytest.mark.parametrize(
    ("mean", "largest"), [(0.984, 0.037), (0.978, 0.050), (0.013, 0.030), (0.5, 0.5), (0.6, 0.548)]
)
def test_the_largest_possible_deviation_of_five_numbers(mean, largest):
    assert _largest_std(mean) == pytest.approx(largest, abs=0.0006)


def test_the_papers_known_contradictions_are_found():
    notes = _cell_notes()
    cam = ("CAMELYON16", "ResNet50-BT")
    assert "0.884 (table 1, 7) and 0.984 (table 4)" in notes[(*cam, "DTFD-MIL", "inst_auroc")][0]
    assert "0.965 (table 5) and 0.976 (table 2, 3, 9)" in notes[(*cam, "SmAP", "bag_auroc")][0]
    assert "0.767 (table 1, 5, 7) and 0.791 (table 3)" in notes["RSNA", "ResNet18", "SmTAP", "inst_auroc"][0]
    assert "±0.183 (table 4) is impossible" in notes[(*cam, "SmDTFD-MIL", "inst_auroc")][0]
    assert "±0.072 (table 10) is impossible" in notes["CAMELYON16", "ResNet50", "SETMIL", "bag_f1"][0]
    assert (*cam, "CLAM", "inst_auroc") not in notes
    impossible = [key for key, found in notes.items() if any("impossible" in text for text in found)]
    assert len(impossible) == 3


def test_tables_by_patient_of_another_target_hold_its_metrics(tmp_path):
    """A survival study has no AUROC of cases; its C-index counts patients, whose risk is the mean of their cases."""
    rng = np.random.default_rng(0)
    facts = {"kind": "survival", "columns": ["time", "event"], "edges": [10.0]}
    cases = []
    for i in range(24):
        meta = {"target": facts, "patient": f"p{i // 2}", "score_kind": "attention logit"}
        target = [float(rng.uniform(1, 20)) if i % 2 == 0 else cases[-1].target[0], 1.0]
        cases.append(Prediction(f"c{i}", [0.5], [0.0], value=float(rng.normal()), target=target, meta=meta))
        cases[-1].save(tmp_path / "runs" / "one" / "test" / f"c{i}.npz")
    found = _by_patient(pd.DataFrame({"run": ["one"]}), tmp_path, partial(_judged, by="patient", aggregate="mean"))
    patients = whole_patients(by_patient(cases, "mean"))
    assert found["n_test"][0] == len(patients) == 12
    assert found["bag_c_index"][0] == pytest.approx(bag_metrics(patients)["c_index"])
