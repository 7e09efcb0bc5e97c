"""smmil evaluate on folders of files."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from support.evaluate_command import app, run, write
from typer.testing import CliRunner

from smmil.errors import ConfigError, DataError, SmmilError
from smmil.evaluate import best_f1_threshold, bootstrap_ci, compare, froc, holm, instance_metrics, position_prior
from smmil.evaluate.folders import load_models, summarize_models
from smmil.prediction import Prediction, load_predictions


def summaries(places, **options):
    """What the command prints, as numbers."""
    return summarize_models(load_models(places), **options)


def test_a_folder_gives_metrics_in_every_pool_and_the_missing_threshold_is_explained(tmp_path):
    out = run(write(tmp_path / "sm_ap"))
    for words in ("bags", "all instances", "positive bags", "mean over bags", "energy", "rayleigh", "sm_ap"):
        assert words in out
    assert "instance threshold: none (no validation predictions were given)" in out
    assert "f1 = dice" not in out


def test_the_threshold_comes_from_validation_and_is_applied(tmp_path):
    test, val = write(tmp_path / "test"), write(tmp_path / "val", "v")
    out = run(test, "--validation", val, "--json", tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())["test"]
    cut = found["threshold"]["value"]
    assert f"instance threshold: {cut:.6g} (best instance F1 on validation" in out
    assert found["instance"]["all"]["f1"] == instance_metrics(load_predictions(test), cut)["f1"]


def test_a_given_threshold_wins(tmp_path):
    out = run(write(tmp_path / "m"), "--threshold", "0.25")
    assert "instance threshold: 0.25 (given by the user)" in out


def test_a_folder_of_folders_is_several_models_side_by_side(tmp_path):
    for model in ("abmil", "sm_ap"):
        write(tmp_path / "test" / model)
        write(tmp_path / "val" / model, "v")
    found = summaries([tmp_path / "test"], validation=[tmp_path / "val"])
    assert list(found) == ["abmil", "sm_ap"]
    assert found["abmil"]["threshold"]["value"] is not None
    assert "abmil" in run(tmp_path / "test" / "abmil", tmp_path / "test" / "sm_ap")


def test_two_runs_with_equal_folder_names_both_stay(tmp_path):
    write(tmp_path / "x" / "predictions")
    write(tmp_path / "y" / "predictions")
    assert len(summaries([tmp_path / "x" / "predictions", tmp_path / "y" / "predictions"])) == 2


def test_judging_on_the_cases_that_chose_the_threshold_is_refused(tmp_path):
    same = write(tmp_path / "m")
    with pytest.raises(DataError, match=r"m: 6 cases are both judged and used .*c0, c1, c2"):
        summaries([same], validation=[same])


def test_models_on_different_cases_are_noticed(tmp_path):
    found = summaries([write(tmp_path / "a"), write(tmp_path / "b", "other")])
    assert any("not given the same cases" in note for note in found["a"]["bag"]["notes"])


def test_mismatched_validation_and_missing_folders_are_explained(tmp_path):
    models, vals = [write(tmp_path / "a"), write(tmp_path / "b")], [write(tmp_path / "v", "v")]
    with pytest.raises(DataError, match=r"validation: 1 folders \(v\) for 2 models \(a, b\)"):
        summaries(models, validation=vals)
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        summaries([tmp_path / "nowhere"])


def test_json_has_null_for_undefined_numbers(tmp_path):
    Prediction("a", [0.5], [1.0]).save(tmp_path / "m" / "a.npz")
    run(tmp_path / "m", "--json", tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["m"]["bag"]["auroc"] is None


def test_single_files_together_are_one_model(tmp_path):
    folder = write(tmp_path / "m")
    assert list(summaries(sorted(folder.glob("*.npz")))) == ["files"]


def test_intervals_are_printed_and_written(tmp_path):
    out = run(write(tmp_path / "m", n=26), "--ci", "--resamples", 50, "--threshold", 0.5, "--json", tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())["m"]["ci"]
    assert list(found) == ["bag_auroc", "bag_f1", "inst_auroc", "inst_auroc@positive_bags", "inst_f1"]
    expected = bootstrap_ci(load_predictions(tmp_path / "m"), "inst_f1", n=50, threshold=0.5)
    assert found["inst_f1"]["low"] == expected["low"]
    assert f"{expected['value']:.3f} ({expected['low']:.3f} to {expected['high']:.3f})" in out
    assert "95% intervals, 50 resamples by patient" in out
    assert "every case counts as a patient of its own" in out


def test_two_models_are_compared_on_their_cases(tmp_path):
    good, bad = write(tmp_path / "good", n=24), write(tmp_path / "bad", noise=3.0, n=24)
    options = ("--resamples", 60, "--metric", "inst_auroc", "--metric", "bag_auroc", "--metric", "froc")
    out = run(good, "--compare", bad, *options, "--json", tmp_path / "m.json")
    rows = json.loads((tmp_path / "m.json").read_text())["good"]["comparisons"]
    assert [row["measure"] for row in rows] == ["inst_auroc", "bag_auroc", "froc"]
    usual = " ".join(run(good, "--compare", bad, "--resamples", 60).split())
    assert "a difference in pointing, for good." in usual
    expected = compare(load_predictions(good), load_predictions(bad), "inst_auroc", n=60)
    assert rows[0]["p"] == expected["p"] == rows[0]["p_holm"]
    assert rows[1]["delong"]["p"] == 1
    values = f"{expected['a']:.3f} − {expected['b']:.3f} = {expected['difference']:.3f}"
    ends = f"({expected['low']:.3f} to {expected['high']:.3f})"
    assert any(values in line and ends in after for line, after in pairwise(out.splitlines()))


def test_p_values_of_several_models_are_corrected(tmp_path):
    for name, noise in (("a", 0.5), ("b", 1.0), ("c", 2.0)):
        write(tmp_path / "models" / name, noise=noise, n=24)
    other = write(tmp_path / "other", noise=3.0, n=24)
    run(tmp_path / "models", "--compare", other, "--metric", "inst_auroc", "--resamples", 60, "--json", tmp_path / "m")
    rows = [found["comparisons"][0] for found in json.loads((tmp_path / "m").read_text()).values()]
    assert [row["p_holm"] for row in rows] == holm([row["p"] for row in rows])


def test_each_model_is_cut_at_the_threshold_of_its_own_validation(tmp_path):
    a, b = write(tmp_path / "a", n=12), write(tmp_path / "b", noise=2.0, n=12)
    val_a, val_b = write(tmp_path / "va", "v"), write(tmp_path / "vb", "v", noise=2.0)
    arguments = (a, "--compare", b, "--validation", val_a, "--metric", "inst_f1", "--resamples", 20)
    run(*arguments, "--compare-validation", val_b, "--json", tmp_path / "m.json")
    row = json.loads((tmp_path / "m.json").read_text())["a"]["comparisons"][0]
    assert row["threshold"] == [best_f1_threshold(load_predictions(v)) for v in (val_a, val_b)]
    with pytest.raises(ConfigError, match="inst_f1: no threshold given"):
        CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_a_comparison_without_thresholds_says_what_it_leaves_out(tmp_path):
    out = run(write(tmp_path / "a", n=12), "--compare", write(tmp_path / "b", n=12), "--resamples", 20)
    assert "inst_f1 has no interval and no comparison" in out
    assert out.count("inst_f1") == 1


def test_lesions_found_are_printed_and_written(tmp_path):
    out = run(write(tmp_path / "m"), "--froc", "--json", tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())["m"]["froc"]
    assert found["froc"] == froc(load_predictions(tmp_path / "m"))["froc"]
    assert "Lesions found (FROC)" in out
    assert "3 / 6" in out


def test_every_number_is_a_row_of_the_csv_file(tmp_path):
    good, bad = write(tmp_path / "good", n=24), write(tmp_path / "bad", noise=3.0, n=24)
    run(good, "--ci", "--froc", "--compare", bad, "--resamples", 20, "--csv", tmp_path / "m.csv")
    table = pd.read_csv(tmp_path / "m.csv").set_index(["part", "metric"])
    expected = instance_metrics(load_predictions(good), pool="per_bag")["auroc"]
    assert table.value["instance@per_bag", "auroc"] == pytest.approx(expected)
    assert table.low["ci", "inst_auroc"] <= table.value["ci", "inst_auroc"] <= table.high["ci", "inst_auroc"]
    assert 0 < table.p_holm["difference to bad", "inst_auroc"] <= 1
    assert table.value["froc", "n_lesions"] == 12


def test_an_unknown_metric_pool_or_opponent_is_refused(tmp_path):
    folder = write(tmp_path / "m")
    for name in ("x", "y"):
        write(tmp_path / "others" / name)
    for arguments, words in (
        (("--ci", "--metric", "inst_auc"), "metric: unknown value"),
        (("--ci", "--metric", "inst_auroc@positive"), "pool of inst_auroc: unknown value 'positive'"),
        (("--compare", tmp_path / "others"), "no model m among x, y"),
    ):
        with pytest.raises(SmmilError, match=words):
            CliRunner().invoke(app, [str(a) for a in (folder, *arguments)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "nan"], "--threshold nan: expected a finite number, such as 0.5"),
        (["--threshold", "1", "--validation", "v"], "--threshold 1.0: --validation chooses the threshold; give one"),
        (["--ci", "--resamples", "-3"], "--resamples -3: expected at least 2"),
        (["--resamples", "100"], "--resamples: has no effect without --ci or --compare"),
        (["--stratified"], "--stratified: has no effect without --ci or --compare"),
        (["--compare-validation", "v"], "--compare-validation: has no effect without --compare"),
    ],
)
def test_options_that_cannot_be_meant_or_do_nothing_are_refused(tmp_path, words, message):
    found = CliRunner().invoke(app, [str(write(tmp_path / "p")), *words])
    assert isinstance(found.exception, ConfigError)
    assert message in str(found.exception)


def test_a_model_of_three_classes_asks_for_the_column_as_it_is_typed(tmp_path):
    Prediction("a", [0.2, 0.3, 0.5], np.zeros((4, 3)), y=1, y_inst=np.ones(4)).save(tmp_path / "a.npz")
    found = CliRunner().invoke(app, [str(tmp_path)])
    assert "choose one (--column)" in str(found.exception)


def write_scans(folder, score, patients=12):
    """Two scans per patient with a lesion between the relative heights 0.2 and 0.4, roughly."""
    rng = np.random.default_rng(7)
    for i in range(2 * patients):
        height = np.linspace(0, 1, 20 + i)
        truth = (np.abs(height - 0.3 - 0.05 * rng.normal()) < 0.1).astype(int)
        meta = {"patient": f"p{i // 2}"}
        scores, coords = score(height, truth, rng), np.arange(len(height))[:, None]
        Prediction(f"c{i}", [0.5], scores, coords=coords, y=1, y_inst=truth, meta=meta).save(folder / f"{i}.npz")
    return folder


def test_the_position_prior_stands_beside_the_numbers_and_speaks(tmp_path):
    folder = write_scans(tmp_path / "habit", lambda height, truth, rng: -np.abs(height - 0.3))
    out = run(folder, "--json", tmp_path / "m.json", "--csv", tmp_path / "m.csv")
    found, expected = (
        json.loads((tmp_path / "m.json").read_text())["habit"]["prior"],
        position_prior(load_predictions(folder)),
    )
    assert found == expected
    assert "truth: where lesions of other patients lie" in out
    inside = expected["per_bag"]
    assert f"{inside['truth']:.3f} ({inside['truth_low']:.3f} to {inside['truth_high']:.3f})" in out
    assert "This map is no better than knowing where lesions usually lie" in " ".join(out.split())
    rows = pd.read_csv(tmp_path / "m.csv").set_index(["part", "metric"])
    assert rows.loc[("prior@per_bag", "difference"), "p"] == pytest.approx(inside["difference_p"])
    assert rows.loc[("prior@all", "truth"), "value"] == pytest.approx(expected["all"]["truth"])


def test_intervals_of_the_prior_are_drawn_as_those_of_the_metrics(tmp_path):
    folder = write_scans(tmp_path / "m", lambda height, truth, rng: truth + rng.normal(size=len(height)))
    run(folder, "--ci", "--resamples", 60, "--seed", 3, "--json", tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())["m"]
    for measure, pool in (("inst_auroc", "all"), ("inst_auroc@positive_bags", "positive_bags")):
        ends = [found["prior"][pool][f"model_{end}"] for end in ("low", "high")]
        assert ends == pytest.approx([found["ci"][measure][end] for end in ("low", "high")])


def test_training_cases_can_make_the_prior(tmp_path):
    folder = write_scans(tmp_path / "m", lambda height, truth, rng: truth + rng.normal(size=len(height)))
    for path in (tmp_path / "m").iterdir():
        case = Prediction.load(path)
        turned = replace(case, id=f"t{case.id}", y_inst=case.y_inst[::-1].copy(), meta={})
        turned.save(tmp_path / "train" / path.name)
    run(folder, "--prior", tmp_path / "train", "--json", tmp_path / "m.json")
    found = json.loads((tmp_path / "m.json").read_text())["m"]["prior"]
    assert found["source"] == "24 cases given for it"
    assert found["per_bag"]["truth"] < 0.3  # those lesions lie at the other end


def test_without_coordinates_the_reason_for_having_no_prior_is_printed(tmp_path):
    assert "There is no position prior: no case has coordinates" in run(write(tmp_path / "m"))


def test_a_threshold_of_scores_of_another_kind_is_refused(tmp_path):
    for folder, prefix, kind in (("test", "t", "attention logit"), ("val", "v", "LRP relevance")):
        (tmp_path / folder).mkdir()
        for path in write(tmp_path / folder, prefix).glob("*.npz"):
            case = Prediction.load(path)
            replace(case, meta={"score_kind": kind}).save(path)
    words = (
        "test: its scores are attention logit, those of validation LRP relevance; a threshold of one kind says nothing"
    )
    with pytest.raises(DataError, match=words):
        summarize_models(load_models([tmp_path / "test"]), validation=[tmp_path / "val"])


def test_a_threshold_of_an_ensemble_that_was_scaled_on_other_cases_is_refused(tmp_path):
    for folder, prefix in (("test", "t"), ("val", "v")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, prefix)

    def scaled(folder, low):
        for path in (tmp_path / folder).glob("*.npz"):
            replace(Prediction.load(path), meta={"ensemble": {"scales": [[low, 1.0], [0.0, 2.0]]}}).save(path)

    scaled("test", 0.5)
    scaled("val", 0.5)
    summarize_models(load_models([tmp_path / "test"]), validation=[tmp_path / "val"])
    scaled("val", 0.6)
    with pytest.raises(DataError, match="test: the runs of this ensemble were brought to one scale on other cases"):
        summarize_models(load_models([tmp_path / "test"]), validation=[tmp_path / "val"])


def test_without_truth_words_stand_in_place_of_dashes(tmp_path):
    for path in write(tmp_path).glob("*.npz"):
        replace(Prediction.load(path), y=None, y_inst=None).save(path)
    text = run(tmp_path)
    assert "There is no truth: none of the 6 cases has a label, and no instance has one." in text
    assert "What can be shown without truth: how smooth the maps are" in text
    assert "auroc" not in text.split("There is no truth")[0]
    assert "geary" in text


def test_without_labels_of_instances_only_the_cases_are_judged(tmp_path):
    for path in write(tmp_path).glob("*.npz"):
        replace(Prediction.load(path), y_inst=None).save(path)
    text = run(tmp_path)
    assert "No instance has a label: where the maps are right cannot be said" in text
    assert "bags" in text
    assert "all instances" not in text.split("labelled cases")[0]


def test_the_cell_of_a_number_that_few_patients_carry_says_how_few(tmp_path):
    for name, noise in (("good", 0.1), ("bad", 4.0)):
        write(tmp_path / name, noise=noise, n=6)
    words = (
        "--ci",
        "--compare",
        tmp_path / "bad",
        "--metric",
        "inst_auroc",
        "--metric",
        "bag_auroc",
        "--resamples",
        50,
    )
    out = run(tmp_path / "good", *words, "--csv", tmp_path / "m.csv")
    assert " ".join(out.split()).count("– (3 negative cases)") >= 2  # of the value and of the difference
    table = pd.read_csv(tmp_path / "m.csv").set_index(["part", "metric"])
    assert table.low["ci", "inst_auroc"] == "– (3 cases with positive instances)"
    assert table.p["difference to bad", "bag_auroc"] == table.p_holm["difference to bad", "bag_auroc"]
    assert table.p["difference to bad", "bag_auroc"] == "– (3 negative cases)"


@pytest.mark.parametrize("options", [(), ("--ci", "--froc", "--resamples", 20)])
def test_tables_are_whole_at_80_columns_whatever_the_number_of_models(tmp_path, options):
    names = [f"a_rather_long_name_{i}" for i in range(5)]
    for name in names:
        write(tmp_path / "models" / name, n=12)
    other = write(tmp_path / "other_model", noise=3.0, n=12)
    words = [str(w) for w in (tmp_path / "models", "--compare", other, *options)]
    words += [] if options else ["--resamples", "20"]
    out = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).output
    rows = [line for line in out.splitlines() if line[:1] in "┏┃┡│├└"]
    assert max(map(len, rows)) <= 80
    assert "…" not in "".join(rows)
    headings = "".join(line for line in rows if line.startswith("┃"))
    assert all(name in headings for name in names)


def test_notes_of_several_measures_stand_in_one_line(tmp_path):
    out = run(write(tmp_path / "m", n=12), "--ci", "--resamples", 20, "--metric", "bag_auroc", "--metric", "bag_f1")
    note = "no prediction names its patient"
    assert len([line for line in out.splitlines() if note in line and "bag_" in line]) == 1
    assert f"m: note (bag_auroc, bag_f1): {note}" in out


def test_the_number_of_patients_stands_beside_the_verdict_on_the_map(tmp_path):
    folder = write_scans(tmp_path / "m", lambda height, truth, rng: -np.abs(height - 0.3))
    assert ", in 12 patients." in run(folder)
    for path in folder.iterdir():
        replace(Prediction.load(path), meta={}).save(path)
    assert ", in 24 cases, patients unknown." in run(folder)
