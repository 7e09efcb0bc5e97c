"""Loggers: every number of every epoch once, also after a stop; no names; a failing one does not stop training."""

import os
import sys
from types import SimpleNamespace

import pytest
from support.listener import Listener

from smmil.config import load_config
from smmil.errors import ConfigError, MissingExtra
from smmil.train import train
from smmil.train.loop import Interrupted


class FakeClient:
    """The part of MLflow's client that is used; its content outlives it, as a data base does."""

    stored = None
    fails = False

    def __init__(self, tracking_uri):
        self.uri = tracking_uri
        FakeClient.stored = FakeClient.stored or {"experiments": {}, "runs": [], "metrics": [], "params": {}}

    def get_experiment_by_name(self, name):
        return self.stored["experiments"].get(name)

    def create_experiment(self, name, artifact_location):
        self.stored["experiments"][name] = SimpleNamespace(experiment_id="1", place=artifact_location)
        return "1"

    def search_runs(self, experiments, max_results):
        return self.stored["runs"][:max_results]

    def create_run(self, experiment, run_name):
        self.stored["runs"].append(SimpleNamespace(info=SimpleNamespace(run_id="r")))
        return self.stored["runs"][-1]

    def log_param(self, run, name, value):
        self.stored["params"][name] = value

    def log_metric(self, run, name, value, step):
        if self.fails:
            raise OSError("database is locked")
        self.stored["metrics"].append((name, step, value))

    def get_metric_history(self, run, name):
        return [SimpleNamespace(step=step) for key, step, _ in self.stored["metrics"] if key == name]

    def set_terminated(self, run):
        self.stored["ended"] = run


@pytest.fixture
def mlflow(monkeypatch):
    monkeypatch.setattr(FakeClient, "stored", None)
    for name in ("mlflow", "sqlalchemy", "alembic"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=FakeClient))
    return FakeClient


@pytest.fixture
def wandb(monkeypatch):
    """A module that records the runs that were begun, and what they were given."""
    runs = []

    def init(**given):
        run = SimpleNamespace(given=given, rows=[], ended=False)
        run.log = lambda row, step: run.rows.append((step, row))
        run.finish = lambda: setattr(run, "ended", True)
        runs.append(run)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **given: given))
    return runs


def rows_of(folder):
    lines = (folder / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    return [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]


def told_about(folder, found):
    """Whether {epoch: {name: value}} are the numbers of metrics.csv."""
    rows = rows_of(folder)
    assert sorted(found) == [int(row["epoch"]) for row in rows]
    for row in rows:
        expected = {name: float(value) for name, value in row.items() if name != "epoch"}
        assert found[int(row["epoch"])] == expected


def test_mlflow_gets_every_number_once_also_after_a_stop_and_a_kill_before_the_log(settings, tmp_path, mlflow):
    config = settings("training.loggers=[mlflow]")
    with pytest.raises(Interrupted):
        train(config, tmp_path, progress=Listener(stop_at=4))
    done = {step for _, step, _ in mlflow.stored["metrics"]}
    mlflow.stored["metrics"] = [m for m in mlflow.stored["metrics"] if m[1] != max(done)]  # as if killed before
    train(config, tmp_path)
    found = {}
    for name, step, value in mlflow.stored["metrics"]:
        assert name not in found.setdefault(step, {})
        found[step][name] = value
    told_about(tmp_path, found)
    assert len(mlflow.stored["runs"]) == 1
    assert mlflow.stored["ended"] == "r"
    assert mlflow.stored["params"]["training.lr"] == 1e-2
    assert mlflow.stored["params"]["model.options.dim"] == 8


def test_wandb_runs_offline_and_parts_of_a_run_have_one_id(settings, tmp_path, wandb):
    config = settings("training.loggers=[wandb]")
    with pytest.raises(Interrupted):
        train(config, tmp_path, progress=Listener(stop_at=4))
    train(config, tmp_path)
    first, second = wandb
    assert first.given["id"] == second.given["id"]
    assert all(run.given["settings"]["mode"] == "offline" and run.ended for run in wandb)
    told_about(tmp_path, {step: row for run in wandb for step, row in run.rows})


def test_no_logger_learns_of_files_cases_or_the_machine(settings, study, tmp_path, mlflow, wandb):
    train(settings("training.loggers=[mlflow, wandb]", "training.epochs=1"), tmp_path / "run")
    told = repr((mlflow.stored, [(run.given | {"dir": ""}, run.rows) for run in wandb]))
    names = [str(study.parent), str(tmp_path), "manifest", "device", os.uname().nodename + "'", "synthetic"]
    assert [name for name in names if name in told] == []
    settings_ = wandb[0].given["settings"]
    assert settings_["host"] == settings_["username"] == "hidden"
    assert settings_["x_disable_meta"]


def test_a_logger_that_fails_is_told_once_and_training_ends_with_the_same_bytes(
    settings, tmp_path, mlflow, monkeypatch
):
    train(settings(), tmp_path / "plain")
    monkeypatch.setattr(mlflow, "fails", True)
    listener = Listener()
    train(settings("training.loggers=[mlflow]"), tmp_path / "logged", progress=listener)
    told = [text for text in listener.heard if "mlflow" in text]
    assert told == ["note: the logger mlflow failed (OSError: database is locked); training goes on without it"]
    for name in ("checkpoints/last.safetensors", "checkpoints/best.safetensors", "metrics.csv"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "logged" / name).read_bytes()


@pytest.mark.parametrize(("name", "module"), [("mlflow", "mlflow.tracking"), ("wandb", "wandb")])
def test_a_logger_that_is_not_installed_is_asked_for_by_name(settings, tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"training\.loggers: {name} needs .* pip install 'smmil\[{name}\]'"):
        train(settings(f"training.loggers=[{name}]"), tmp_path)


def test_an_unknown_logger_and_one_without_a_folder_are_refused(study):
    with pytest.raises(ConfigError, match=r"training\.loggers"):
        load_config(None, [f"data.manifest={study}", "model.name=abmil", "training.loggers=[neptune]"])


def test_loggers_may_differ_between_start_and_resume(settings, tmp_path, mlflow):
    with pytest.raises(Interrupted):
        train(settings(), tmp_path, progress=Listener(stop_at=4))
    train(settings("training.loggers=[mlflow]"), tmp_path)
    assert {step for _, step, _ in mlflow.stored["metrics"]} == {1, 2, 3}


def test_the_real_mlflow_keeps_the_numbers_in_the_folder_of_the_run(settings, tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    config = settings("training.loggers=[mlflow]")
    with pytest.raises(Interrupted):
        train(config, tmp_path, progress=Listener(stop_at=4))
    train(config, tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("smmil").experiment_id])
    found = {}
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            assert name not in found.setdefault(point.step, {})
            found[point.step][name] = point.value
    told_about(tmp_path, found)
    assert str(tmp_path).encode() not in (tmp_path / "mlflow.db").read_bytes()


def test_the_real_wandb_writes_an_offline_run_without_names(settings, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(settings("training.loggers=[wandb]"), tmp_path / "run")
    files = [path for path in (tmp_path / "run" / "wandb").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    held = b"".join(path.read_bytes() for path in files)
    assert str(tmp_path).encode() not in held
    assert b"val_auroc" in held
