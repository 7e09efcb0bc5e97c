"""Figures over many variants: what is drawn is what was computed."""

import re

import pandas as pd
import pytest
from support.studies import tiny_set, tiny_study

from smmil.errors import ConfigError
from smmil.experiments import figures, plots
from smmil.experiments.figures import write_figures
from smmil.experiments.study import FigureSpec, Synthetic, load_study

BASE = {"set": "s", "metric": "inst_auroc", "value": 0.8, "low": 0.7, "high": 0.9, "reference": "ABMIL",
        "resampled": "10 cases resampled, patients unknown"}  # fmt: skip


def rows(*given):
    names = ("variant", "difference", "difference_low", "difference_high", "p_holm")
    return pd.DataFrame([{**BASE, **dict(zip(names, row, strict=True))} for row in given])


def drawn(monkeypatch, call):
    """The axes of the figure that `call` would write."""
    kept = []
    monkeypatch.setattr(plots, "_write_both", lambda figure, path: kept.append(figure) or [path])
    call()
    return kept[0].axes


def test_whiskers_end_at_the_interval_and_only_real_differences_are_filled(monkeypatch, tmp_path):
    table = rows(("A", 0.2, 0.1, 0.3, 0.01), ("B", -0.1, -0.2, 0.1, 0.4))
    (ax,) = drawn(monkeypatch, lambda: plots._draw_differences(table, tmp_path / "f", "t"))
    lines = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_xdata()[0] != line.get_xdata()[1]]
    assert [list(line.get_xdata()) for line in lines] == [[0.1, 0.3], [-0.2, 0.1]]
    assert [list(line.get_ydata()) for line in lines] == [[0, 0], [1, 1]]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in dots] == [0.2, -0.1]
    assert [line.get_markerfacecolor() == "white" for line in dots] == [False, True]
    assert dots[0].get_color() != dots[1].get_markeredgecolor()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A", "B"]
    assert ax.get_xlabel() == "instance AUROC\n10 cases resampled, patients unknown"
    assert "patients" not in ax.figure.get_suptitle()


def test_variants_with_partners_of_their_own_name_both(monkeypatch, tmp_path):
    table = rows(("SmX", 0.2, 0.1, 0.3, 0.01), ("SmY", 0.1, 0.0, 0.2, 0.01))
    table["reference"] = ["X", "Y"]
    (ax,) = drawn(monkeypatch, lambda: plots._draw_differences(table, tmp_path / "f", "t"))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["SmX − X", "SmY − Y"]


def test_lines_by_difficulty_go_from_small_to_large_values(monkeypatch, tmp_path):
    lines = {"inst_auroc": {"ABMIL": [(1.0, 0.9, 0.01), (0.5, 0.6, 0.02)], "SmAP": [(0.5, 0.7, 0.0)]}}
    (ax,) = drawn(monkeypatch, lambda: plots._draw_difficulty(lines, tmp_path / "f", "contrast", "t"))
    curves = [container.lines[0] for container in ax.containers]
    assert [list(curve.get_xdata()) for curve in curves] == [[0.5, 1.0], [0.5]]
    assert [list(curve.get_ydata()) for curve in curves] == [[0.6, 0.9], [0.7]]


@pytest.fixture(scope="module")
def harder(tmp_path_factory):
    """A tiny study on two difficulties, run."""
    from smmil.experiments.runner import run_study

    options = {"size": [10, 16], "dim": 4, "lesion": [0.1, 0.3]}
    sets = [tiny_set(f"contrast {c}", synthetic=Synthetic(kind="slides", bags=12, options={**options, "contrast": c}))
            for c in (0.5, 2.0)]  # fmt: skip
    wanted = [FigureSpec(name="d", kind="difficulty", setting="contrast", metrics=["bag_auroc"]),
              FigureSpec(name="f", kind="differences", metrics=["bag_auroc"]),
              FigureSpec(name="p", kind="pairs", metrics=["bag_auroc"])]  # fmt: skip
    study = tiny_study(datasets=sets, figures=wanted, reference="ABMIL", pairs={"SmAP": "ABMIL"}, folds=[0],
                       learning_rates=[1e-2])  # fmt: skip
    out = tmp_path_factory.mktemp("harder")
    run_study(study, out)
    return study, out


def test_a_study_draws_difficulty_once_and_differences_for_every_set(harder, monkeypatch):
    study, out = harder
    monkeypatch.setattr(figures, "RESAMPLES", 50)
    told = {}
    monkeypatch.setattr(figures, "_draw_difficulty", lambda lines, path, *words: told.update(lines) or [path])
    paths, failed = write_figures(study, out)
    assert failed == {}
    assert sorted(p.name for p in paths if p.suffix != ".svg") == [
        "d", "f-contrast_0.5.png", "f-contrast_2.0.png", "p-contrast_0.5.png", "p-contrast_2.0.png",
    ]  # fmt: skip
    results = pd.read_csv(out / "tiny" / "results.csv")
    for variant in ("ABMIL", "SmAP"):
        true = results[results["variant"] == variant].set_index("set")["bag_auroc"]
        expected = [(0.5, true["contrast 0.5"]), (2.0, true["contrast 2.0"])]
        assert [(x, pytest.approx(y)) for x, y, _ in sorted(told["bag_auroc"][variant])] == expected


@pytest.mark.parametrize(
    ("more", "words"),
    [("figures: [{name: f, kind: differences}]", "differences need a reference"),
     ("figures: [{name: f, kind: pairs}]", "give the study pairs"),
     ("figures: [{name: f, kind: difficulty, setting: contrst}]", "no option of a data set"),
     ("pairs: {SmAP: ABMLI}", "unknown variant 'ABMLI'")],
)  # fmt: skip
def test_figures_without_anything_to_compare_are_refused(tmp_path, more, words):
    path = tmp_path / "s.yaml"
    path.write_text(f"datasets: [slides]\nvariants: [ABMIL, SmAP]\n{more}\n")
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_study(path)
