"""Figures: one file per data set as PNG and SVG, the same bytes for the same numbers, words in their place."""

import pytest
from experiments.studies import copied, results_for, tiny_study, variant

from smmil.errors import DataError
from smmil.experiments import drawing
from smmil.experiments.figures import make_figure
from smmil.experiments.output import write_figures, write_tables
from smmil.experiments.runner import run_study
from smmil.experiments.study import FigureSpec, Table

FIGURES = [
    FigureSpec(name="histograms", kind="histograms"),
    FigureSpec(name="maps", kind="maps", cases=1),
    FigureSpec(name="examples", kind="examples", cases=2),
]


def test_every_kind_is_drawn_and_drawn_alike_twice(finished_study, tmp_path):
    study, found = tiny_study(figures=FIGURES), []
    for name in ("one", "two"):
        out = copied(finished_study, tmp_path / name)
        paths, failed = write_figures(study, out)
        assert failed == {}
        found.append({path.name: path.read_bytes() for path in paths})
    assert found[0] == found[1]
    names = sorted(found[0])
    assert [n.split("-")[0] for n in names if n.endswith(".svg")] == ["examples", "histograms", "maps"]


def test_ranks_are_drawn_for_groups_of_three_and_more(tmp_path):
    values = {"A": [0.9], "B": [0.8], "C": [0.7], "D": [0.6], "E": [0.5]}
    group = {"D": "global", "E": "global"}
    results = results_for(values, metrics=("inst_auroc", "bag_auroc"), group=group)
    figure = FigureSpec(name="ranks", kind="critical_difference")
    study = tiny_study(variants=[variant(name) for name in values], figures=[figure])
    assert [p.name for p in make_figure(study, figure, results, tmp_path, tmp_path)] == ["ranks-no_global.png"]


def test_ranks_of_the_figure_are_those_of_the_tables(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("smmil.experiments.figures.critical_difference", lambda v, path, title: drawn.append(v) or path)
    results = results_for({"A": [0.90004], "B": [0.9], "C": [0.7]}, metrics=("inst_auroc", "bag_auroc"))
    figure = FigureSpec(name="ranks", kind="critical_difference")
    study = tiny_study(variants=[variant(name) for name in "ABC"], figures=[figure])
    make_figure(study, figure, results, tmp_path, tmp_path)
    assert (drawn[0].loc["A"] == drawn[0].loc["B"]).all()


def test_ranks_that_cannot_be_drawn_are_told(tmp_path):
    figure = FigureSpec(name="ranks", kind="critical_difference", metrics=["inst_auroc", "inst_f1"])
    study = tiny_study(variants=[variant("A"), variant("B")], figures=[figure])
    with pytest.raises(DataError, match="three models"):
        make_figure(study, figure, results_for({"A": [0.9], "B": [0.8]}), tmp_path, tmp_path)


def test_a_figure_that_cannot_be_drawn_is_named_and_the_others_are_drawn(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "partly")
    nothing = FigureSpec(name="nothing", kind="maps", variants=["Later"])
    later = [*tiny_study().variants, variant("Later", "max_pool", options={"dim": 6})]
    paths, failed = write_figures(tiny_study(figures=[nothing, FIGURES[0]], variants=later), out)
    assert list(failed) == ["nothing (tiny)"]
    assert "begin with smmil experiment run" in failed["nothing (tiny)"]
    assert paths


def test_a_sweep_puts_the_learned_value_where_it_ended(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(drawing, "curves", lambda *given: drawn.append(given) or [])
    swept = [
        variant(f"α={a}", "sm_ap", options={"dim": 6, "att_dim": 3, "alpha": a}, setting={"alpha": a})
        for a in (0.0, 0.9, "learned")
    ]
    figure = FigureSpec(name="alpha", kind="sweep", setting="alpha", metrics=["inst_auroc"])
    study = tiny_study(variants=swept, learning_rates=[1e-2], folds=[0], figures=[figure])
    run_study(study, tmp_path)
    write_figures(study, tmp_path)
    lines, _, label, _, learned = drawn[0]
    assert label == "alpha"
    assert {point[0] for point in lines["inst_auroc"]} == {0.0, 0.9, "learned"}
    assert learned == pytest.approx(0.5, abs=0.1)
    assert learned != 0.5


def test_curves_with_words_and_numbers_are_drawn(tmp_path):
    points = [(0, 0.5, 0.1), (10, 0.7, float("nan")), ("exact", 0.8, 0.1), (True, 0.6, 0.0)]
    paths = drawing.curves({"inst_auroc": points, "bag_auroc": points[2:]}, tmp_path / "curve", "steps", "T")
    assert all(path.stat().st_size > 1000 for path in paths)
    assert "Date" not in paths[1].read_text()


def test_tables_and_tests_of_a_study_are_written(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "tables")
    table = Table(name="both", metrics=["inst_auroc", "inst_auroc@positive_bags", "bag_f1", "froc"], rank_by="all")
    paths = write_tables(tiny_study(tables=[table], reference="ABMIL"), out, resamples=20)
    assert sorted(p.name for p in paths) == [
        "both.csv", "both.md", "both.tex", "comparisons.csv", "comparisons.md", "learning_rates.json"]  # fmt: skip
    text = (out / "tiny/tables/both.md").read_text()
    assert "inst auroc@positive bags" in text
    assert "paper" not in text
