"""Figures: one file per data set as PNG and SVG, the same bytes for the same numbers, words in their place."""

import numpy as np
import pandas as pd
import pytest
from support.studies import copied, results_for, tiny_study, variant

from smmil.errors import DataError
from smmil.experiments import figures, plots
from smmil.experiments.figures import _make_figure, write_figures
from smmil.experiments.runner import run_study
from smmil.experiments.study import FigureSpec, TableSpec
from smmil.experiments.tables import write_tables
from smmil.prediction import Prediction

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
    assert [p.name for p in _make_figure(study, figure, results, tmp_path, tmp_path)] == [
        "ranks-no_global.png", "ranks-no_global.svg", "ranks-no_global.txt"]  # fmt: skip


def test_ranks_of_the_figure_are_those_of_the_tables(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("smmil.experiments.figures._draw_ranks", lambda v, path, *told: drawn.append(v) or [path])
    results = results_for({"A": [0.90004], "B": [0.9], "C": [0.7]}, metrics=("inst_auroc", "bag_auroc"))
    figure = FigureSpec(name="ranks", kind="critical_difference")
    study = tiny_study(variants=[variant(name) for name in "ABC"], figures=[figure])
    _make_figure(study, figure, results, tmp_path, tmp_path)
    assert (drawn[0].loc["A"] == drawn[0].loc["B"]).all()


def test_few_data_sets_are_a_warning_in_the_figure_and_in_the_text_beside_it(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "_write_both", lambda figure, path: drawn.append(figure) or [path])
    columns = pd.MultiIndex.from_product([["one", "two"], ["r"], ["inst_auroc", "bag_auroc"]])
    values = pd.DataFrame(np.arange(12).reshape(3, 4) / 20, index=list("abc"), columns=columns)
    plots._draw_ranks(values, tmp_path / "ranks", "Preliminary: Mean ranks")
    figure, text = drawn[0], (tmp_path / "ranks.txt").read_text()
    for told in (" ".join(figure.get_supxlabel().split()), text):
        assert "Caution: 4 columns of 2 data sets" in told
        assert "splits of one data set are not independent" in told
    assert figure.get_suptitle() == "Preliminary: Mean ranks"
    assert "Preliminary: Mean ranks" in text
    assert "   1.000  c" in text
    assert "two r: bag AUROC" in text


def test_one_data_set_is_named_as_such_and_ten_are_enough():
    assert "3 columns of one data set." in plots._rank_warning(["a", "a", "a"])
    assert plots._rank_warning([str(i) for i in range(10)]) == ""
    assert plots._rank_warning([str(i % 9) for i in range(20)]) != ""


def test_a_smaller_error_ranks_higher_in_the_figure(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("smmil.experiments.figures._draw_ranks", lambda v, path, *told: drawn.append(v) or [path])
    results = results_for({"A": [0.1], "B": [0.2], "C": [0.3]}, metrics=("bag_brier", "bag_auroc"))
    figure = FigureSpec(name="ranks", kind="critical_difference", metrics=["bag_brier", "bag_auroc"])
    _make_figure(
        tiny_study(variants=[variant(n) for n in "ABC"], figures=[figure]), figure, results, tmp_path, tmp_path
    )
    brier, auroc = (drawn[0].xs(metric, axis=1, level="metric").iloc[:, 0] for metric in ("bag_brier", "bag_auroc"))
    assert list(brier.rank(ascending=False)) == [1, 2, 3]
    assert list(auroc.rank(ascending=False)) == [3, 2, 1]


def test_who_and_what_is_not_ranked_stands_below_the_diagram_and_in_the_text(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "_write_both", lambda figure, path: drawn.append(figure) or [path])
    metrics = ["inst_auroc", "bag_auroc", "energy_mean"]
    results = results_for({"A": [0.9], "B": [0.8], "C": [0.7], "Half": [0.6]}, metrics=metrics)
    results.loc[results["variant"] == "Half", "bag_auroc"] = np.nan
    figure = FigureSpec(name="ranks", kind="critical_difference", metrics=metrics)
    study = tiny_study(variants=[variant(n) for n in ("A", "B", "C", "Half", "Later")], figures=[figure])
    _make_figure(study, figure, results, tmp_path, tmp_path)
    text = (tmp_path / "ranks-no_global.txt").read_text()
    for told in (" ".join(drawn[0].get_supxlabel().split()), text):
        assert "Not ranked, some results are missing: Half, Later." in told
        assert "Not ranked, smoothest is not best: energy fᵀL̃f / N." in told
    assert "over 2 columns" in text


def test_ranks_that_cannot_be_drawn_are_told(tmp_path):
    figure = FigureSpec(name="ranks", kind="critical_difference", metrics=["inst_auroc", "inst_f1"])
    study = tiny_study(variants=[variant("A"), variant("B")], figures=[figure])
    with pytest.raises(DataError, match="three models"):
        _make_figure(study, figure, results_for({"A": [0.9], "B": [0.8]}), tmp_path, tmp_path)


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
    monkeypatch.setattr(figures, "_draw_curves", lambda *given: drawn.append(given) or [])
    swept = [
        variant(f"α={a}", "sm_ap", options={"dim": 6, "att_dim": 3, "alpha": a}, setting={"alpha": a})
        for a in (0.0, 0.9, "learned")
    ]
    figure = FigureSpec(name="alpha", kind="sweep", setting="alpha", metrics=["inst_auroc"])
    study = tiny_study(variants=swept, learning_rates=[1e-2], folds=[0], figures=[figure])
    run_study(study, tmp_path)
    write_figures(study, tmp_path)
    lines, _, label, title, learned = drawn[0]
    assert title == "alpha  ·  tiny"
    assert label == "alpha"
    assert {point[0] for point in lines["inst_auroc"]} == {0.0, 0.9, "learned"}
    assert learned == pytest.approx(0.5, abs=0.1)
    assert learned != 0.5


def test_curves_with_words_and_numbers_are_drawn(tmp_path):
    points = [(0, 0.5, 0.1), (10, 0.7, float("nan")), ("exact", 0.8, 0.1), (True, 0.6, 0.0)]
    paths = plots._draw_curves({"inst_auroc": points, "bag_auroc": points[2:]}, tmp_path / "curve", "steps", "T")
    assert all(path.stat().st_size > 1000 for path in paths)
    assert "Date" not in paths[1].read_text()


@pytest.fixture
def figures_drawn(monkeypatch):
    """The figures that were about to be written."""
    drawn = []
    monkeypatch.setattr(plots, "_write_both", lambda figure, path: drawn.append(figure) or [path])
    return drawn


def test_wide_ranges_are_drawn_by_logarithm_and_said_to_be_and_words_get_a_tick(tmp_path, figures_drawn):
    steps = [(0, 0.5, 0.1), (1, 0.6, 0.1), (20, 0.7, 0.1), ("exact", 0.8, 0.1)]
    alphas = [(0.1, 0.5, 0.1), (0.9, 0.6, 0.1), ("learned", 0.7, 0.1)]
    plots._draw_curves({"inst_auroc": steps}, tmp_path / "a", "steps", "T")
    plots._draw_curves({"inst_auroc": alphas}, tmp_path / "b", "alpha", "A", 0.5)
    by_steps, by_alpha = (figure.axes[0] for figure in figures_drawn)
    assert [t.get_text() for t in by_steps.get_xticklabels()] == ["0", "1", "20", "exact"]
    assert list(by_steps.get_xticks()[:3]) == pytest.approx(np.log1p([0, 1, 20]))
    assert by_steps.get_xlabel().endswith("logarithmic")
    assert [t.get_text() for t in by_alpha.get_xticklabels()] == ["0.1", "0.9"]
    assert "logarithmic" not in by_alpha.get_xlabel()
    assert by_alpha.get_ylabel() == "instance AUROC"
    words = [t.get_text() for t in figures_drawn[1].legends[0].get_texts()]
    assert words == [
        "mean over folds and seeds",
        "± one standard deviation",
        "learned, where it ended on average (0.5)",
    ]


def test_maps_share_one_colour_bar_that_says_what_it_means(figures_drawn, finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "maps")
    write_figures(tiny_study(figures=[FigureSpec(name="maps", kind="maps", cases=1)], caveat="Preliminary"), out)
    figure = figures_drawn[0]
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[0] == "truth"
    assert [t.split(":")[0] for t in titles if "P =" in t] == ["ABMIL", "SmAP"]
    bars = [ax for ax in figure.axes if "2nd and 98th percentile" in ax.get_xlabel()]
    assert len(bars) == 1
    assert len(figure.axes) == 3 + 1  # truth and two models, and no bar of their own
    assert figure.get_suptitle().startswith("Preliminary: Maps of the scores  ·  tiny\n")


def test_the_scale_of_a_map_ends_at_its_own_percentiles():
    scores = np.arange(101) * 3.0 - 7
    scaled = plots._scaled(scores)
    assert np.percentile(scaled, [2, 98]) == pytest.approx([0, 1])
    assert list(plots._scaled(np.full(4, 2.0))) == [0.5] * 4


def test_one_outlier_does_not_squeeze_a_histogram():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=1000)
    scores[0] = 1e6
    cases = [Prediction("a", [0.5], scores[:500], y=1), Prediction("b", [0.5], scores[500:], y=0)]
    cut = np.concatenate([p.scores[:, 0] for p in plots._without_tails(cases)])
    low, high = np.percentile(scores, [0.5, 99.5])
    assert (cut.min(), cut.max()) == (pytest.approx(low), pytest.approx(high))
    inside = (scores > low) & (scores < high)
    assert (cut[inside] == scores[inside]).all()


def test_histograms_name_their_axes_and_keep_the_legend_off_the_data(figures_drawn, finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "histograms")
    write_figures(tiny_study(figures=[FigureSpec(name="h", kind="histograms")]), out)
    figure = figures_drawn[0]
    assert "share of the instances" in figure.get_supylabel()
    assert "the same 40 bins" in figure.get_supxlabel()
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["negative instances", "positive instances"]
    assert all(ax.get_legend() is None for ax in figure.axes)


def test_labelled_examples_carry_the_caveat_and_one_legend(figures_drawn, finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "examples")
    study = tiny_study(figures=[FigureSpec(name="e", kind="examples", cases=2)], caveat="Toy size")
    write_figures(study, out)
    assert figures_drawn[0].get_suptitle().startswith("Toy size: Labels of instances")
    assert len(figures_drawn[0].legends) == 1
    assert all(ax.get_legend() is None for ax in figures_drawn[0].axes)


def test_tables_and_tests_of_a_study_are_written(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "tables")
    table = TableSpec(name="both", metrics=["inst_auroc", "inst_auroc@positive_bags", "bag_f1", "froc"], rank_by="all")
    study = tiny_study(tables=[table], reference="ABMIL", caveat="Toy size, numbers mean nothing")
    paths = write_tables(study, out, resamples=20)
    assert sorted(p.name for p in paths) == [
        "both.csv", "both.md", "both.tex", "comparisons.csv", "comparisons.md", "learning_rates.json", "prior.csv",
        "prior.md"]  # fmt: skip
    text = (out / "tiny/tables/both.md").read_text()
    assert "instance AUROC\N{NO-BREAK SPACE}↑<br>in positive bags" in text
    assert "paper" not in text
    assert text.startswith("## Toy size, numbers mean nothing: both · tiny\n")
    compared = (out / "tiny/tables/comparisons.md").read_text()
    assert compared.startswith("## Toy size, numbers mean nothing: Compared with ABMIL\n")
