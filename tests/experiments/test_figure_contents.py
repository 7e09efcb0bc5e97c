"""What figures show: every variant asked for, the right data sets, the correction of the pages, and what is missing."""

import numpy as np
import pandas as pd
import pytest
from support.studies import results_for, tiny_set, tiny_study, variant

from smmil.experiments import figures
from smmil.experiments.figures import _make_figure
from smmil.experiments.study import FigureSpec
from smmil.prediction import Prediction


def test_a_sweep_drops_no_variant(tmp_path, monkeypatch):
    """Two variants of one value cannot come from a file of a study; if they come, both are drawn."""
    drawn = []
    monkeypatch.setattr(figures, "_draw_curves", lambda *given: drawn.append(given) or [])
    both = [variant(name, setting={"steps": 1}) for name in ("A", "B")]
    figure = FigureSpec(name="steps", kind="sweep", setting="steps", metrics=["inst_auroc"])
    study = tiny_study(variants=both)
    _make_figure(study, figure, results_for({"A": [0.5], "B": [0.9]}), tmp_path, tmp_path)
    assert [(value, mean) for value, mean, _ in drawn[0][0]["inst_auroc"]] == [(1, 0.5), (1, 0.9)]


@pytest.mark.parametrize(("values", "told"), [([0.5], ""), ([np.nan], "\nUndefined: instance AUROC at steps 1")])
def test_a_sweep_names_the_points_it_cannot_draw(values, told, tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(figures, "_draw_curves", lambda lines, path, option, title, learned: titles.append(title) or [])
    figure = FigureSpec(name="steps", kind="sweep", setting="steps", metrics=["inst_auroc"], title="T")
    study = tiny_study(variants=[variant("A", setting={"steps": 1}), variant("B", setting={"steps": 2})])
    _make_figure(study, figure, results_for({"A": values, "B": [0.9]}), tmp_path, tmp_path)
    assert titles[0].partition("\n")[1] + titles[0].partition("\n")[2] == told


def test_difficulty_finds_its_sets_by_their_own_name_and_names_the_option(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("smmil.experiments.figures._draw_difficulty", lambda *given: drawn.append(given) or [])
    spec = tiny_set().synthetic
    sets = [
        tiny_set(f"d {d}", dataset="synthetic", extractor=str(d),
                 synthetic=spec.model_copy(update={"options": {**spec.options, "distractors": d}}))
        for d in (0.0, 0.5)
    ]  # fmt: skip
    figure = FigureSpec(name="d", kind="difficulty", setting="distractors", metrics=["inst_auroc"])
    study = tiny_study(datasets=sets, variants=[variant("A")], figures=[figure], caveat="Toy")
    parts = [results_for({"A": [v]}, dataset="synthetic").assign(set=s.name, extractor=s.extractor)
             for s, v in zip(sets, (0.9, 0.7), strict=True)]  # fmt: skip
    _make_figure(study, figure, pd.concat(parts), tmp_path, tmp_path)
    lines, _, option, title = drawn[0]
    assert [(x, y) for x, y, _ in lines["inst_auroc"]["A"]] == [(0.0, 0.9), (0.5, 0.7)]
    assert (option, title) == ("distractors", "Toy: Against distractors of the data")


@pytest.mark.parametrize("kind", ["differences", "pairs"])
def test_differences_of_some_variants_are_corrected_like_those_of_all_and_say_what_is_missing(
    tmp_path, monkeypatch, kind
):
    drawn, family = [], []

    def compared(results, out, metrics, others, **more):
        family.append(sorted(set(results["variant"])) if kind == "differences" else sorted(others))
        rows = [{"set": "s", "metric": "inst_auroc", "variant": v, "value": 0.5, "difference": 0.1} for v in "BCD"]
        return pd.DataFrame(rows)

    name = "_comparisons" if kind == "differences" else "_pair_differences"
    monkeypatch.setattr(f"smmil.experiments.figures.{name}", compared)
    monkeypatch.setattr("smmil.experiments.figures._draw_differences", lambda *given: drawn.append(given) or [])
    figure = FigureSpec(name="f", kind=kind, variants=["B", "C"])
    study = tiny_study(
        variants=[variant(n) for n in "ABCD"], reference="A", pairs=dict.fromkeys("BCD", "A"), figures=[figure]
    )
    results = results_for({name: [0.5, 0.5] for name in "ABCD"})
    plan = results.assign(state="done", reason="")
    plan.loc[plan["run"].isin(["B1", "D0"]), "state"] = "missing"
    other = plan.assign(set="elsewhere", state="missing")
    _make_figure(study, figure, results, tmp_path, tmp_path, pd.concat([plan, other]))
    assert family == [list("ABCD") if kind == "differences" else list("BCD")]
    rows, _, title = drawn[0]
    assert list(rows["variant"]) == ["B", "C"]
    page = "comparisons.md" if kind == "differences" else "pairs.md"
    assert title.endswith(f"\nNot complete ({page} says what is missing): B")
    _make_figure(study, figure, results, tmp_path, tmp_path, results.assign(state="done"))
    assert "\n" not in drawn[1][2]


def test_neighbouring_pairs_are_counted_over_all_cases(monkeypatch, tmp_path):
    """One case with 1 of 1 pair alike, one with 0 of 3: a quarter of the pairs, although the mean of shares is half."""
    drawn = []
    monkeypatch.setattr("smmil.experiments.figures._draw_examples", lambda *given: drawn.append(given) or [])
    cases = [
        Prediction("a", [0.5], [0.0, 0.0], y=1, y_inst=[1, 1], edges=np.array([[0], [1]])),
        Prediction("b", [0.5], [0.0] * 4, y=1, y_inst=[1, 0, 1, 0], edges=np.array([[0, 1, 2], [1, 2, 3]])),
    ]
    monkeypatch.setattr("smmil.experiments.figures._first_predictions", lambda *_: {"A": cases})
    figure = FigureSpec(name="e", kind="examples", cases=2)
    _make_figure(tiny_study(), figure, results_for({"A": [0.5]}), tmp_path, tmp_path)
    assert drawn[0][1] == [1.0, 0.0]
    assert "25.0% of neighbouring pairs have the same label (2 positive cases)" in drawn[0][3]
