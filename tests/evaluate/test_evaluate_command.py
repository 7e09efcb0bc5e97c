"""smmil evaluate on folders of files."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from smmil.cli.evaluate import evaluate
from smmil.errors import DataError
from smmil.evaluate import instance_metrics
from smmil.evaluate.folders import summarize_folders
from smmil.prediction import Prediction, load_predictions

app = typer.Typer()
app.command()(evaluate)


def write(folder, prefix="c", noise=0.5, n=6):
    rng = np.random.default_rng(len(prefix))
    for i in range(n):
        y = i % 2
        truth = (np.arange(20) < 4) & bool(y)
        scores = truth + noise * rng.normal(size=20)
        chain = np.stack([np.arange(19), np.arange(1, 20)])
        Prediction(f"{prefix}{i}", [0.3 + 0.4 * y], scores, edges=chain, y=y, y_inst=truth).save(folder / f"{i}.npz")
    return folder


def run(*arguments):
    found = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "160"})
    assert found.exit_code == 0, found.output
    return found.output


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
    found = summarize_folders([tmp_path / "test"], validation=[tmp_path / "val"])
    assert list(found) == ["abmil", "sm_ap"]
    assert found["abmil"]["threshold"]["value"] is not None
    assert "abmil" in run(tmp_path / "test" / "abmil", tmp_path / "test" / "sm_ap")


def test_two_runs_with_equal_folder_names_both_stay(tmp_path):
    write(tmp_path / "x" / "predictions")
    write(tmp_path / "y" / "predictions")
    assert len(summarize_folders([tmp_path / "x" / "predictions", tmp_path / "y" / "predictions"])) == 2


def test_judging_on_the_cases_that_chose_the_threshold_is_refused(tmp_path):
    same = write(tmp_path / "m")
    with pytest.raises(DataError, match=r"m: 6 cases are both judged and used .*c0, c1, c2"):
        summarize_folders([same], validation=[same])


def test_models_on_different_cases_are_noticed(tmp_path):
    found = summarize_folders([write(tmp_path / "a"), write(tmp_path / "b", "other")])
    assert any("not given the same cases" in note for note in found["a"]["bag"]["notes"])


def test_mismatched_validation_and_missing_folders_are_explained(tmp_path):
    models, vals = [write(tmp_path / "a"), write(tmp_path / "b")], [write(tmp_path / "v", "v")]
    with pytest.raises(DataError, match=r"validation: 1 folders \(v\) for 2 models \(a, b\)"):
        summarize_folders(models, validation=vals)
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        summarize_folders([tmp_path / "nowhere"])


def test_json_has_null_for_undefined_numbers(tmp_path):
    Prediction("a", [0.5], [1.0]).save(tmp_path / "m" / "a.npz")
    run(tmp_path / "m", "--json", tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["m"]["bag"]["auroc"] is None


def test_single_files_together_are_one_model(tmp_path):
    folder = write(tmp_path / "m")
    assert list(summarize_folders(sorted(folder.glob("*.npz")))) == ["files"]
