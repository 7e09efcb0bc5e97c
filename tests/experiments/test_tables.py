"""Tables: the paper's ranks from the paper's numbers, places, differences, and the three ways to write them."""

import math

import pandas as pd
import pytest
from experiments.studies import results_for, tiny_study, variant

from smmil.experiments.paper_notes import cell_notes, largest_std
from smmil.experiments.study import Table
from smmil.experiments.tables import make_table, rank_rows, with_paper, with_places
from smmil.experiments.writing import csv_text, latex, markdown, write_table
from smmil.paper import paper_table


def long_rows(values, dataset="CAMELYON16", extractor="ResNet50-BT", metric="inst_auroc", group="no_global", std=0.01):
    facts = {
        "dataset": dataset,
        "extractor": extractor,
        "group": group,
        "metric": metric,
        "std": std,
        "family": "local",
    }
    return pd.DataFrame([{**facts, "model": model, "mean": mean, "n": 5} for model, mean in values.items()])


def table_study(names, **changes):
    from smmil.experiments.study import Dataset

    there = Dataset(name="CAMELYON16", extractor="ResNet50-BT", manifest="m.csv")
    return tiny_study(datasets=[there], variants=[variant(n, family="local") for n in names], **changes)


@pytest.mark.parametrize("name", ["table_localization", "table_classification"])
def test_ranks_of_the_papers_main_tables_follow_from_its_numbers(name):
    table = paper_table(name)
    printed = table[table["dataset"] == "ALL"].set_index("model")
    ranks, missing = rank_rows(table[table["dataset"] != "ALL"])
    assert (len(ranks), missing) == (10, [])
    for row in ranks.itertuples():
        assert (round(row.mean, 3), round(row.std, 3)) == (printed["mean"][row.model], printed["std"][row.model])
        assert (row.dataset, row.extractor, row.metric) == ("ALL", "main", printed["metric"][row.model])


def feature_tables():
    names = [f"feat_ext_{level}_{score}" for level in ("inst", "bag") for score in ("auroc", "f1")]
    return pd.concat([paper_table(name) for name in names])


def test_instance_ranks_of_table_6_follow_when_resnet50_is_mixed_as_the_paper_did():
    printed = paper_table("feat_ext_ranks").set_index(["extractor", "model", "metric"])
    gaps = {}
    for mixed in ({}, {"ResNet50": ["ResNet50-BT"]}):
        ranks, _ = rank_rows(feature_tables(), "extractor", mixed)
        mine = ranks[(ranks["extractor"] == "ResNet50") & (ranks["metric"] == "inst_rank")]
        gaps[len(mixed)] = [abs(r.mean - printed["mean"][r.extractor, r.model, r.metric]) for r in mine.itertuples()]
    assert len(gaps[1]) == 13
    assert max(gaps[1]) < 0.001
    assert max(gaps[0]) > 0.1


def test_a_model_that_lacks_a_column_is_not_ranked_and_said_not_to_be():
    rows = pd.concat([long_rows({"A": 0.9, "B": 0.8}), long_rows({"A": 0.9}, metric="inst_f1")])
    ranks, notes = rank_rows(rows)
    assert list(ranks["model"]) == ["A"]
    assert notes == ["B: not ranked (no_global), some results are missing"]


def ranks_of(rows):
    return {row.model: row.mean for row in rank_rows(rows)[0].itertuples()}


def test_equal_prints_share_a_rank_lower_losses_rank_higher_and_energies_do_not_count():
    assert ranks_of(long_rows({"A": 0.9001, "B": 0.9004, "C": 0.5})) == {"A": 1.5, "B": 1.5, "C": 3.0}
    assert ranks_of(long_rows({"A": 0.1, "B": 0.2}, metric="bag_loss")) == {"A": 1.0, "B": 2.0}
    assert ranks_of(long_rows({"A": 0.1, "B": 0.2}, metric="energy_mean")) == {}


def test_the_two_best_of_each_group_have_a_place_and_equal_prints_share_it():
    rows = long_rows({"A": 0.9001, "B": 0.9004, "C": 0.85, "D": 0.8})
    other = long_rows({"E": 0.5, "F": 0.4}, group="global")
    placed = with_places(pd.concat([rows, other]))
    assert dict(zip(placed["model"], placed["place"], strict=True)) == {
        "A": 1, "B": 1, "C": 2, "D": 0, "E": 1, "F": 2}  # fmt: skip


def test_a_lower_rank_is_better_and_no_energy_is_best():
    assert list(with_places(long_rows({"A": 1.5, "B": 3.0}, metric="inst_rank"))["place"]) == [1, 2]
    assert list(with_places(long_rows({"A": 0.1, "B": 0.2}, metric="bag_loss"))["place"]) == [1, 2]
    assert list(with_places(long_rows({"A": 0.1, "B": 0.2}, metric="energy_rayleigh"))["place"]) == [0, 0]


def test_the_papers_number_stands_beside_ours_with_the_difference_and_a_verdict():
    rows = with_paper(long_rows({"ABMIL": 0.85, "SmAP": 0.98, "Mine": 0.7}), "table_localization")
    abmil, smap, mine = rows.itertuples()
    assert (abmil.paper_mean, abmil.paper_std) == (0.819, 0.074)
    assert abmil.difference == pytest.approx(0.031)
    assert abmil.within_std == "yes"
    assert smap.within_std == "no"
    assert math.isnan(mine.paper_mean)
    assert mine.within_std == ""


def test_where_the_paper_prints_no_deviation_ours_decides():
    near, far = 0.960 + 0.009, 0.960 + 0.011
    for value, verdict in ((near, "yes"), (far, "no")):
        rows = with_paper(long_rows({"SmAP-early": value}, std=0.01), "table_ablation")
        assert rows["within_std"][0] == verdict


def test_energies_stand_beside_the_papers_under_our_name():
    rows = with_paper(long_rows({"ABMIL": 0.4}, metric="energy_rayleigh"), "table_ablation")
    assert rows["paper_mean"][0] == 0.419


@pytest.mark.parametrize(
    ("mean", "largest"), [(0.984, 0.037), (0.978, 0.050), (0.013, 0.030), (0.5, 0.5), (0.6, 0.548)]
)
def test_the_largest_possible_deviation_of_five_numbers(mean, largest):
    assert largest_std(mean) == pytest.approx(largest, abs=0.0006)


def test_the_papers_known_contradictions_are_found():
    notes = cell_notes()
    cam = ("CAMELYON16", "ResNet50-BT")
    assert "0.884 (table 1, 7) and 0.984 (table 4)" in notes[(*cam, "DTFD-MIL", "inst_auroc")][0]
    assert "0.965 (table 5) and 0.976 (table 2, 3, 9)" in notes[(*cam, "SmAP", "bag_auroc")][0]
    assert "0.767 (table 1, 5, 7) and 0.791 (table 3)" in notes["RSNA", "ResNet18", "SmTAP", "inst_auroc"][0]
    assert "±0.183 (table 4) is impossible" in notes[(*cam, "SmDTFD-MIL", "inst_auroc")][0]
    assert "±0.072 (table 10) is impossible" in notes["CAMELYON16", "ResNet50", "SETMIL", "bag_f1"][0]
    assert (*cam, "CLAM", "inst_auroc") not in notes
    impossible = [key for key, found in notes.items() if any("impossible" in text for text in found)]
    assert len(impossible) == 3


@pytest.fixture
def shown():
    study = table_study(["ABMIL", "DTFD-MIL", "Mine_2"])
    table = Table(name="t", title="A & B", metrics=["inst_auroc", "inst_f1"], paper="table_localization", rank_by="all")
    values = {"ABMIL": [0.8, 0.9], "DTFD-MIL": [0.7, 0.7], "Mine_2": [0.95, 0.93]}
    return make_table(study, table, results_for(values))


def test_a_whole_table_has_means_ranks_places_and_warnings(shown):
    rows = shown.rows.set_index(["model", "metric"])
    assert rows["mean"]["ABMIL", "inst_auroc"] == pytest.approx(0.85)
    assert rows["std"]["ABMIL", "inst_auroc"] == pytest.approx(math.sqrt(0.005))
    assert [rows["mean"][m, "inst_rank"] for m in ("Mine_2", "ABMIL", "DTFD-MIL")] == [1, 2, 3]
    assert [rows["place"][m, "inst_f1"] for m in ("Mine_2", "ABMIL", "DTFD-MIL")] == [1, 2, 0]
    assert any(note.startswith("† CAMELYON16 ResNet50-BT DTFD-MIL inst_auroc") for note in shown.notes)


def test_markdown_marks_the_best_two_and_names_the_paper(shown):
    text = markdown(shown)
    assert "**0.940** ± 0.014" in text
    assert "<u>0.850</u> ± 0.071<br>paper 0.819 ± 0.074† (+0.031, within)" in text
    assert "*without global interactions*" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


def test_latex_is_balanced_and_escaped(shown):
    text = latex(shown)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert "\\textbf{0.940}" in text
    assert "\\underline{0.850}" in text
    assert "Mine\\_2" in text
    assert "†" not in "\n".join(body)
    assert "\n".join(body).count("{") == "\n".join(body).count("}")
    rows = [line for line in body if line.endswith("\\\\") and "&" in line]
    assert len({line.count(" & ") for line in rows}) == 1


def test_csv_keeps_every_digit(shown, tmp_path):
    write_table(shown, tmp_path)
    back = pd.read_csv(tmp_path / "t.csv")
    assert list(back["mean"]) == list(shown.rows["mean"])
    assert csv_text(shown) == (tmp_path / "t.csv").read_text()


def test_a_table_says_what_is_not_complete_yet():
    results = results_for({"ABMIL": [0.8, 0.9], "SmAP": [0.7]})
    found = make_table(table_study(["ABMIL", "SmAP"]), Table(name="t", metrics=["inst_f1"]), results)
    assert "not complete yet: CAMELYON16 · SmAP" in found.notes
