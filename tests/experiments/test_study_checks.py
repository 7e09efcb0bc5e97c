"""What cannot be meant in a study is refused when it is read, in words that say what to do."""

import numpy as np
import pytest
from support.studies import tiny_set, tiny_study, variant

from smmil.errors import ConfigError
from smmil.evaluate.metrics import pooled_names, registered
from smmil.experiments.run import _measured_row
from smmil.experiments.study import load_study
from smmil.prediction import Prediction

START = "datasets: [slides]\nvariants: [ABMIL, SmAP]\n"


def problem_of(tmp_path, text, **variables):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError) as found:
        load_study(tmp_path / "s.yaml", variables)
    return str(found.value)


def test_the_metrics_of_a_study_are_those_of_a_row_of_results():
    rng = np.random.default_rng(0)
    cases = [Prediction(f"c{i}", [0.2 + 0.1 * i], rng.normal(size=5), y=i % 2, y_inst=[i % 2] * 2 + [0] * 3,
                        edges=np.array([[0, 1], [1, 2]])) for i in range(6)]  # fmt: skip
    row = _measured_row(cases, cases)
    assert {n for n in row if n.startswith(("bag_", "inst_", "energy_", "froc"))} == {
        n for n in pooled_names() if "class" in registered(n.partition("@")[0]).targets
    }


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("inst_auroc@positive_bag", "did you mean inst_auroc@positive_bags"),
        ("inst_auroc@all", "unknown metric 'inst_auroc@all'"),
        ("froc@positive_bags", "write froc"),
        ("bag_auroc@per_bag", "write bag_auroc"),
    ],
)
@pytest.mark.parametrize("place", ["tests: [{}]", "tables: [{{name: a, metrics: [{}]}}]"])
def test_a_metric_that_no_row_has_is_refused_with_a_suggestion(tmp_path, metric, words, place):
    text = problem_of(tmp_path, START + place.format(metric))
    assert f"unknown metric '{metric}'" in text
    assert words in text


@pytest.mark.parametrize("empty", ["learning_rates: []", "folds: []", "tests: []", "tables: [{name: a, metrics: []}]"])
def test_nothing_to_choose_from_is_refused(tmp_path, empty):
    assert empty.partition(":")[0] in problem_of(tmp_path, START + empty)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (START + "training: {lr: 1e-3}", "training.lr"),
        ("datasets: [slides]\nvariants: [{name: A, model: abmil, training: {lr: 1e-3}}]", "variant 'A': training.lr"),
        ("datasets: [{name: s, from: slides, training: {lr: 1e-3}}]\nvariants: [ABMIL]", "data set 's': training.lr"),
        (
            "datasets: [{name: s, from: slides, training_of: {ABMIL: {lr: 1e-3}}}]\nvariants: [ABMIL]",
            "data set 's': ABMIL: training.lr",
        ),
    ],
)
def test_a_learning_rate_among_the_settings_is_sent_to_its_place(tmp_path, text, where):
    told = problem_of(tmp_path, text)
    assert f"{where} has no effect in a study; give the study learning_rates: [" in told
    assert "seeds: [" in problem_of(tmp_path, text.replace("lr: 1e-3", "seed: 3"))


def test_two_data_sets_of_one_column_are_refused_and_a_sweep_without_dataset_is_not(tmp_path):
    told = problem_of(tmp_path, "datasets: [RSNA, RSNA ResNet18]\nvariants: [ABMIL]")
    assert "data sets 'RSNA' and 'RSNA ResNet18' would share the column 'RSNA ResNet18'" in told
    sweep = "datasets: [{{name: 'c {{}}', {}synthetic: {{kind: slides}}, sweep: {{contrast: [1.0, 2.0]}}}}]\n"
    assert "column 'x'" in problem_of(tmp_path, sweep.format("dataset: x, ") + "variants: [ABMIL]")
    (tmp_path / "s.yaml").write_text(sweep.format("") + "variants: [ABMIL]")
    assert [d.name for d in load_study(tmp_path / "s.yaml").datasets] == ["c 1.0", "c 2.0"]
    tiny_study(datasets=[tiny_set("a", dataset="x", extractor="1"), tiny_set("b", dataset="x", extractor="2")])
    with pytest.raises(ValueError, match="share the column 'a'"):
        tiny_study(datasets=[tiny_set("a"), tiny_set("b", dataset="a")])


def test_a_figure_shows_one_sweep(tmp_path):
    two = """datasets: [slides]
variants:
  - {name: "SmAP {}", from: SmAP, sweep: {alpha: [0.1, 0.5]}}
  - {name: "Late {}", from: SmAP-late, sweep: {alpha: [0.5, 0.9]}}
figures: [{name: a, kind: sweep, setting: alphaVARIANTS}]
"""
    told = problem_of(tmp_path, two.replace("VARIANTS", ""))
    assert "figure 'a': 'SmAP 0.5' and 'Late 0.5' have the same alpha" in told
    assert "variants: [...]" in told
    (tmp_path / "s.yaml").write_text(two.replace("VARIANTS", ", variants: [SmAP 0.1, SmAP 0.5, Late 0.9]"))
    load_study(tmp_path / "s.yaml")


def test_difficulty_is_drawn_against_numbers(tmp_path):
    sets = "datasets: [{name: '{}', synthetic: {kind: slides, bags: 9}, sweep: {size: [[9, 12], [9, 16]]}}]\n"
    figure = "variants: [ABMIL]\nfigures: [{name: f, kind: difficulty, setting: size, metrics: [bag_auroc]}]\n"
    assert "values that are no numbers" in problem_of(tmp_path, sets + figure)


@pytest.mark.parametrize("name", ["../outside", "a/b", ".hidden", "", "runs", "data", "slurm"])
def test_a_study_is_a_folder_of_its_own_inside_the_place_it_is_given(name):
    with pytest.raises(ValueError, match="name"):
        tiny_study(name=name)


@pytest.mark.parametrize("name", ["crchisto", "crchisto-toy", "étude 2 (new)", "v1.2+x"])
def test_ordinary_names_are_names(name):
    assert tiny_study(name=name, variants=[variant("A")]).name == name


def test_a_variable_of_splits_that_nobody_set_is_named(tmp_path, monkeypatch):
    for name in ("MINE", "MINE_SPLITS"):
        monkeypatch.delenv(name, raising=False)
    text = "datasets: [{name: mine, manifest: '${MINE}', splits: '${MINE_SPLITS}'}]\nvariants: [ABMIL]\n"
    told = problem_of(tmp_path, text, MINE="m.csv")
    assert "data set 'mine'" in told
    assert "give --data MINE_SPLITS=splits.json" in told
    assert load_study(tmp_path / "s.yaml").datasets[0].missing == "MINE"
