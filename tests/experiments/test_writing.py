"""Whole tables and the three ways to write them: Markdown, LaTeX, CSV."""

import math

import pandas as pd
import pytest
from support.studies import results_for, table_study

from smmil.experiments.study import TableSpec
from smmil.experiments.tables import _make_table
from smmil.experiments.writing import _for_spreadsheets, _latex, _markdown, _write_table


@pytest.fixture
def shown():
    study = table_study(["ABMIL", "DTFD-MIL", "Mine_2"])
    table = TableSpec(
        name="t", title="A & B", metrics=["inst_auroc", "inst_f1"], paper="table_localization", rank_by="all"
    )
    values = {"ABMIL": [0.8, 0.9], "DTFD-MIL": [0.7, 0.7], "Mine_2": [0.95, 0.93]}
    return _make_table(study, table, results_for(values))


def test_a_whole_table_has_means_ranks_places_and_warnings(shown):
    rows = shown.rows.set_index(["model", "metric"])
    assert rows["mean"]["ABMIL", "inst_auroc"] == pytest.approx(0.85)
    assert rows["std"]["ABMIL", "inst_auroc"] == pytest.approx(math.sqrt(0.005))
    assert [rows["mean"][m, "inst_rank"] for m in ("Mine_2", "ABMIL", "DTFD-MIL")] == [1, 2, 3]
    assert [rows["place"][m, "inst_f1"] for m in ("Mine_2", "ABMIL", "DTFD-MIL")] == [1, 2, 0]
    assert any(note.startswith("† CAMELYON16 ResNet50-BT DTFD-MIL instance AUROC: ") for note in shown.notes)


def spaced(text):
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_numbers_keep_their_deviation_and_headings_their_arrow_in_narrow_columns(shown):
    cells = [line for line in _markdown(shown).splitlines() if line.startswith("|")]
    assert not any(sign in line for line in cells for sign in ("± ", " ±", " ↑"))
    assert any("\N{NO-BREAK SPACE}↑" in line for line in cells)


def test_markdown_marks_the_best_two_and_names_the_paper(shown):
    text = spaced(_markdown(shown))
    assert "**0.940** ± 0.014" in text
    assert "<u>0.850</u> ± 0.071<br>paper 0.819 ± 0.074† (+0.031, not judged (flagged))" in text
    assert "*without global interactions*" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


def test_latex_is_balanced_and_escaped(shown):
    text = _latex(shown)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert "\\textbf{0.940}" in text
    assert "\\underline{0.850}" in text
    assert "Mine\\_2" in text
    assert "†" not in "\n".join(body)
    assert "\n".join(body).count("{") == "\n".join(body).count("}")
    rows = [line for line in body if line.endswith("\\\\") and "&" in line]
    assert len({line.count(" & ") for line in rows}) == 1


def test_csv_keeps_every_digit(shown, tmp_path):
    _write_table(shown, tmp_path)
    back = pd.read_csv(tmp_path / "t.csv")
    assert list(back["mean"]) == list(shown.rows["mean"])
    text = _for_spreadsheets(shown.rows)
    assert text == (tmp_path / "t.csv").read_text()
    assert "ABMIL,inst_auroc,0.8500000000000001,0.0707106781186547" in text.replace("no_global,", "")
    assert ",2,0.0001,local,CAMELYON16,2,False," in text  # counts are whole numbers, ranks or not


def test_a_table_without_title_is_called_by_its_name_and_carries_the_caveat():
    results = results_for({"ABMIL": [0.8, 0.9], "SmAP": [0.7, 0.7]})
    table = TableSpec(name="plain", metrics=["inst_f1"])
    found = _make_table(table_study(["ABMIL", "SmAP"]), table, results)
    assert _markdown(found).startswith("## plain · CAMELYON16 ResNet50-BT\n")
    toy = _make_table(table_study(["ABMIL", "SmAP"], caveat="Toy size"), table, results)
    assert _markdown(toy).startswith("## Toy size: plain · ")
    assert "\\caption{Toy size: plain $\\cdot$ CAMELYON16 ResNet50-BT}" in _latex(toy)


def test_the_data_set_stands_above_columns_where_there_are_several_and_in_the_title_where_there_is_one(shown):
    assert "| instance AUROC ↑ | instance F1 ↑ | instance rank ↓ |" in spaced(_markdown(shown))
    two = pd.concat([results_for({"A": [0.8]}), results_for({"A": [0.7]}, dataset="PANDA", extractor="ResNet18")])
    study = table_study(["A"])
    other = study.datasets[0].model_copy(update={"name": "PANDA", "extractor": "ResNet18"})
    both = _make_table(
        study.model_copy(update={"datasets": [*study.datasets, other]}), TableSpec(name="t", metrics=["inst_f1"]), two
    )
    assert "| CAMELYON16 ResNet50-BT<br>instance F1 ↑ | PANDA ResNet18<br>instance F1 ↑ |" in spaced(_markdown(both))


def test_the_reference_is_marked_and_metrics_are_explained_below():
    results = results_for({"ABMIL": [0.8], "SmAP": [0.7]}, metrics=["inst_f1", "energy_mean"])
    study = table_study(["ABMIL", "SmAP"], reference="ABMIL")
    text = _markdown(_make_table(study, TableSpec(name="t", metrics=["inst_f1", "energy_mean"]), results))
    assert "| ABMIL (reference) |" in text
    assert "- instance F1: 2TP / (2TP + FP + FN)" in text
    assert "- energy fᵀL̃f / N: roughness per instance" in text


@pytest.mark.parametrize(
    ("metric", "mean", "words"),
    [
        ("energy_mean", 2029.137, "2029 ± 832"),
        ("energy_mean", 24.137, "24.1 ± 832.4"),
        ("energy_mean", 2.5, "2.500 ± 832.387"),
        ("inst_f1", 0.5, "0.500 ± 832.387"),
    ],
)
def test_large_numbers_have_fewer_digits(metric, mean, words):
    folds = [mean - 832.387 / math.sqrt(2), mean + 832.387 / math.sqrt(2)]
    results = results_for({"A": folds}, metrics=[metric])
    text = _markdown(_make_table(table_study(["A"]), TableSpec(name="t", metrics=[metric]), results))
    assert f"| {words} |" in spaced(text)


def test_ranks_have_two_digits_and_come_in_the_order_of_their_metrics(shown):
    assert "**1.00** ± 0.00" in spaced(_markdown(shown))
    metrics = ["inst_auroc", "bag_auroc"]
    results = results_for({"A": [0.8], "B": [0.7]}, metrics=metrics)
    text = _markdown(_make_table(table_study(["A", "B"]), TableSpec(name="t", metrics=metrics, rank_by="all"), results))
    assert "| instance rank ↓ | bag rank ↓ |" in spaced(text)


def test_latex_holds_no_sign_that_pdflatex_cannot_print():
    from smmil.evaluate import METRIC_NAMES

    metrics = [*METRIC_NAMES, "inst_auroc@per_bag"]
    results = results_for({"SmAP α=0.1 ^~<|>\\": [0.8, 0.9]}, metrics=metrics)
    study = table_study(["SmAP α=0.1 ^~<|>\\"])
    text = _latex(_make_table(study, TableSpec(name="t", metrics=metrics, rank_by="all"), results))
    assert text.isascii()
    assert "SmAP $\\alpha$=0.1 \\textasciicircum{}\\textasciitilde{}$<$$|$$>$\\textbackslash{}" in text
    assert "f$^\\top$$\\tilde L$f / N" in text
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0


def test_a_name_that_looks_like_a_formula_stays_a_name_and_numbers_stay_numbers():
    text = _for_spreadsheets(pd.DataFrame({"model": ["=A1", "-x"], "difference": [-0.5, 1.25]}))
    assert text.splitlines() == ["model,difference", "'=A1,-0.5", "'-x,1.25"]


def test_where_a_metric_is_undefined_in_a_run_the_cell_says_so_and_the_papers_number_stays():
    results = results_for({"ABMIL": [0.8, math.nan, 0.9], "SmAP": [0.7, 0.7, 0.7]})
    table = TableSpec(name="t", metrics=["inst_auroc"], paper="table_localization")
    text = spaced(_markdown(_make_table(table_study(["ABMIL", "SmAP"]), table, results)))
    assert "| undefined in 1 of 3 runs<br>paper 0.819 ± 0.074† |" in text
    assert "undefined in 1 of 3 runs" in _latex(_make_table(table_study(["ABMIL", "SmAP"]), table, results))


def test_the_papers_number_stays_beside_a_variant_that_failed():
    results = results_for({"ABMIL": [0.8], "SmAP": [0.7]})
    plan = results.assign(state=["failed", "done"], reason="x")
    table = TableSpec(name="t", metrics=["inst_auroc"], paper="table_localization")
    text = spaced(_markdown(_make_table(table_study(["ABMIL", "SmAP"]), table, results[1:], plan)))
    assert "| failed (1 run)<br>paper 0.819 ± 0.074† |" in text


def test_the_order_of_families_is_the_order_of_their_words():
    from typing import get_args

    from smmil.experiments.study import FAMILIES, Variant

    assert tuple(FAMILIES) == get_args(Variant.model_fields["family"].annotation)
