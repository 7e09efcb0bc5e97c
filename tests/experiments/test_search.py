"""Search for settings: validation alone decides, what is done is not repeated, kills change nothing."""

import json
import os
import shutil
import signal
import sys
import time

import numpy as np
import pytest
import yaml
from support.kills import PROCESSES
from support.studies import tiny_set, tiny_study, variant

from smmil.config import load_config
from smmil.data import Manifest
from smmil.errors import ConfigError, MissingExtra
from smmil.experiments import search
from smmil.experiments.search import run_search
from smmil.experiments.search_space import changed, corners
from smmil.experiments.study import load_study
from smmil.train import train

pytest.importorskip("optuna")
SPACE = {"training.lr": {"low": 1e-3, "high": 1e-1, "log": True}, "model.options.dim": [4, 6]}
TRIALS = 4


def searched(**changes):
    content = {"variants": [variant("ABMIL")], "training": {"epochs": 1, "warmup_epochs": 0}, "search": SPACE}
    return tiny_study(**{**content, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("search")
    (found,) = run_search(searched(), out, trials=TRIALS)
    return out, found


@pytest.fixture
def trainings(monkeypatch):
    """How many trainings were asked for in this process."""
    begun, real = [], search.train
    monkeypatch.setattr(search, "train", lambda config, out: (begun.append(out), real(config, out))[1])
    return begun


def files_of(out):
    """What a search wrote, with the name of its folder left out."""
    names = ("trials.json", "trials.csv", "trials.md", "best.yaml")
    return {name: (out / name).read_bytes().replace(str(out).encode(), b"") for name in names}


def test_the_best_trial_is_the_one_with_the_highest_mean_validation_auroc(finished):
    out, found = finished
    assert [trial.state for trial in found.trials] == ["done"] * TRIALS
    for trial in found.trials:
        rows = []
        for fold in (0, 1):
            config = load_config(
                out / "best.yaml", [f"data.fold={fold}", *(f"{k}={v}" for k, v in trial.values.items())]
            )
            run = next(
                p for p in out.glob("runs/*/train") if load_config(p / "config.yaml").digest() == config.digest()
            )
            rows.append(json.loads((run / "run.json").read_text())["best"])
        assert trial.auroc == pytest.approx(np.mean([row["auroc"] for row in rows]))
        assert trial.loss == pytest.approx(np.mean([row["loss"] for row in rows]))
        assert trial.epochs == [row["epoch"] for row in rows]
    ranked = sorted(found.trials, key=lambda t: (-t.auroc, t.loss, t.number))
    assert found.best == ranked[0]
    assert 1e-3 <= found.best.values["training.lr"] <= 1e-1


def test_the_best_settings_train_as_they_are(finished, tmp_path):
    out, found = finished
    content = yaml.safe_load((out / "best.yaml").read_text())
    assert content["training"]["lr"] == found.best.values["training.lr"]
    assert content["model"]["options"]["dim"] == found.best.values["model.options.dim"]
    result = train(load_config(out / "best.yaml"), tmp_path / "run")
    same = next(p for p in out.glob("runs/*/train") if load_config(p / "config.yaml") == load_config(out / "best.yaml"))
    assert result.best["weights"] == json.loads((same / "run.json").read_text())["best"]["weights"]


def test_no_prediction_of_any_case_is_made_and_no_test_bag_is_opened(finished, tmp_path):
    out, _ = finished
    assert not [path for path in out.rglob("*.npz") if "runs" in path.parts]
    study = tiny_study().datasets[0]
    copy = tmp_path / "data"
    shutil.copytree(out / "data", copy)
    manifest = next(copy.glob("slides-*/manifest.csv"))
    tested = json.loads(next(out.glob("runs/*/train/split.json")).read_text())["test"]
    table = Manifest.read(manifest)
    for id_ in tested:
        table.path_of(id_).write_bytes(b"no bag at all")
    there = study.model_copy(update={"synthetic": None, "manifest": str(manifest)})
    (again,) = run_search(searched(datasets=[there]), tmp_path / "out", trials=1)
    assert again.best is not None


def test_a_repeated_call_trains_nothing_and_more_trials_go_on(finished, tmp_path, trainings):
    out, found = finished
    shutil.copytree(out, tmp_path / "copy")
    run_search(searched(), tmp_path / "copy", trials=TRIALS)
    assert trainings == []
    assert files_of(tmp_path / "copy") == files_of(out)
    (more,) = run_search(searched(), tmp_path / "copy", trials=TRIALS + 1)
    assert len(trainings) == 2  # one trial of two folds
    assert more.trials[:TRIALS] == found.trials


def search_slowly(out, folder):
    """What runs in the process that is killed."""
    os.chdir(folder)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    run_search(searched(), out, trials=TRIALS)


def test_a_killed_search_goes_on_to_the_same_bytes(finished, tmp_path):
    out, _ = finished
    killed = tmp_path / "killed"
    hits = 0
    for wanted in (1, 2):
        process = PROCESSES.Process(target=search_slowly, args=(killed, tmp_path))
        process.start()
        end = time.monotonic() + 60
        while time.monotonic() < end and process.is_alive():
            done = (
                json.loads((killed / "trials.json").read_text())["trials"] if (killed / "trials.json").exists() else []
            )
            if sum(trial["state"] == "done" for trial in done) >= wanted:
                os.kill(process.pid, signal.SIGKILL)
                hits += 1
                break
            time.sleep(0.005)
        process.join()
    assert hits == 2
    run_search(searched(), killed, trials=TRIALS)
    assert files_of(killed) == files_of(out)


def test_another_search_in_the_same_folder_is_refused(finished):
    other = searched(search={"training.lr": SPACE["training.lr"]})
    with pytest.raises(ConfigError, match=r"trials\.json: holds another search .*another --out"):
        run_search(other, finished[0], trials=1)


def test_where_test_sets_rotate_every_fold_has_its_own_search(tmp_path):
    study = searched(datasets=[tiny_set(test="rotate", val_share=0.4)], search={"training.lr": [1e-2, 1e-3]})
    found = run_search(study, tmp_path, trials=2)
    assert [one.folder.name for one in found] == ["fold0", "fold1"]
    for fold, one in enumerate(found):
        config = load_config(one.folder / "best.yaml")
        assert (config.data.fold, config.data.test) == (fold, "rotate")
        assert all(len(trial.epochs) == 1 for trial in one.trials)


def test_a_trial_that_fails_is_listed_and_the_others_go_on(tmp_path, monkeypatch):
    real = search.train

    def fails_once(config, out):
        if config.model.options["dim"] == 4:
            raise RuntimeError("out of\nmemory")
        return real(config, out)

    monkeypatch.setattr(search, "train", fails_once)
    (found,) = run_search(searched(search={"model.options.dim": [4, 6]}), tmp_path, trials=5)
    states = {trial.values["model.options.dim"]: trial.state for trial in found.trials}
    assert states == {4: "failed", 6: "done"}
    assert found.best.values == {"model.options.dim": 6}
    assert "failed: RuntimeError: out of memory" in (tmp_path / "trials.md").read_text()


@pytest.mark.slow
def test_several_runs_at_once_on_processes_give_a_complete_search(tmp_path):
    (found,) = run_search(searched(folds=[0]), tmp_path, trials=2, executor="processes", workers=2)
    assert [trial.state for trial in found.trials] == ["done", "done"]


def test_values_reach_nested_settings_and_leave_others_alone():
    content = {"model": {"name": "abmil", "options": {"dim": 8, "att_dim": 3}}, "training": {"lr": 1}}
    values = {"model.options.dim": 4, "training.penalty.weight": 0.1}
    assert changed(content, values) == {
        "model": {"name": "abmil", "options": {"dim": 4, "att_dim": 3}},
        "training": {"lr": 1, "penalty": {"weight": 0.1}},
    }
    assert content["model"]["options"]["dim"] == 8
    space = searched(search={"training.lr": {"low": 1e-3, "high": 1e-1}, "model.options.dim": [4, 6, 8]}).search
    assert [tuple(one.values()) for one in corners(space)] == [(1e-3, 4), (1e-1, 4), (1e-3, 6), (1e-3, 8)]


@pytest.mark.parametrize(("space", "message"), [
    ("data.fold: [0, 1]", "decides which cases train"),
    ("training.seed: [0, 1]", "is chance, not a setting"),
    ("lr: [1e-3]", "'lr' is no setting"),
    ("training.lr: {low: 1e-3, high: 1e-4}", "low 0.001 is not below high 0.0001"),
    ("training.lr: {low: 0, high: 1, log: true}", "log needs low above 0"),
    ("training.lr: []", "has no values"),
    ("training.lr: {low: 1, hihg: 2}", "hihg"),
])  # fmt: skip
def test_a_space_that_cannot_be_searched_is_one_line(tmp_path, space, message):
    path = tmp_path / "study.yaml"
    path.write_text(f"datasets: [slides]\nvariants: [ABMIL]\nsearch: {{{space}}}\n")
    with pytest.raises(ConfigError, match=message) as found:
        load_study(path)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("changes", "options", "message"), [
    ({"search": {}}, {}, "nothing to search; give the study a section such as search:"),
    ({"search": {"model.options.dims": [4]}}, {}, "unknown option 'dims'"),
    ({"search": {"training.epoch": [4]}}, {}, "unknown key; did you mean epochs"),
    ({"variants": [variant("A"), variant("B", options={"dim": 4})]}, {}, "has 2 variants; choose one with --variant"),
    ({}, {"variant": "SmAP"}, "unknown variant 'SmAP'"),
    ({}, {"trials": 0}, "--trials: must be at least 1"),
])  # fmt: skip
def test_a_search_that_cannot_begin_is_refused_before_training(tmp_path, trainings, changes, options, message):
    with pytest.raises(ConfigError, match=message):
        run_search(searched(**changes), tmp_path, **options)
    assert trainings == []


def test_without_optuna_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna.distributions", None)
    with pytest.raises(MissingExtra, match=r"smmil experiment search needs optuna.*pip install 'smmil\[search\]'"):
        run_search(searched(), tmp_path)
