"""The folder of a run: what it holds, what it refuses, and that repeating does no harm."""

import csv
import json
import shutil
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml
from support.listener import Listener

from smmil.config import load_config
from smmil.data import Manifest
from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.train import Interrupted, Progress, train
from smmil.train.loop import _stop_on_signals, _StopRequest
from smmil.weights import read_weights

SAME = ("checkpoints/best.safetensors", "checkpoints/lowest_loss.safetensors", "checkpoints/last.safetensors",
        "metrics.csv", "split.json", "config.yaml", "run.json")  # fmt: skip


def content(folder, names=SAME):
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    train(settings(), folder)
    return folder


def test_a_run_holds_settings_split_logs_and_checkpoints(finished, settings, study):
    facts = json.loads((finished / "run.json").read_text())
    split = json.loads((finished / "split.json").read_text())
    assert (finished / "config.yaml").read_text() == settings().to_yaml()
    assert load_config(finished / "config.yaml") == settings()
    assert facts["status"] == "finished"
    assert facts["config"] == settings().digest()
    assert facts["manifest"]["digest"] == Manifest.read(study).digest()
    assert facts["features"]["encoder"] == "synthetic-6"
    assert facts["bags"] == {part: len(members) for part, members in split.items()}
    assert facts["versions"]["torch"] == torch.__version__
    assert len(list(csv.DictReader((finished / "metrics.csv").open()))) == 3
    assert len(list(csv.DictReader((finished / "timing.csv").open()))) == 3


def test_the_same_settings_give_the_same_bytes_with_any_number_of_workers(finished, settings, tmp_path):
    train(settings(), tmp_path / "again")
    assert content(tmp_path / "again") == content(finished)
    train(settings("training.workers=2"), tmp_path / "workers")
    free = [name for name in SAME if name != "config.yaml"]
    assert content(tmp_path / "workers", free) == content(finished, free)


def test_another_seed_gives_other_weights(finished, settings, tmp_path):
    train(settings("training.seed=1"), tmp_path)
    a, b = (read_weights(f / "checkpoints/best.safetensors")[0] for f in (finished, tmp_path))
    assert not torch.equal(a["embed.weight"], b["embed.weight"])


def test_a_finished_run_says_so_and_changes_nothing(finished, settings):
    before, listener = content(finished, (*SAME, "timing.csv")), Listener()
    result = train(settings(), finished, progress=listener)
    assert "finished already (all 3 epochs done); nothing to do" in listener.heard[0]
    assert listener.steps == 0
    assert result.best["epoch"] == json.loads((finished / "run.json").read_text())["best"]["epoch"]
    assert content(finished, (*SAME, "timing.csv")) == before


def test_the_folder_of_another_run_is_refused_and_the_differing_keys_are_named(finished, settings):
    before = content(finished)
    with pytest.raises(ConfigError, match=r"holds another run: training\.lr \(0\.01 there, 0\.5 now\), training\.seed"):
        train(settings("training.lr=0.5", "training.seed=4"), finished)
    assert content(finished) == before


def test_ctrl_c_finishes_the_step_saves_and_goes_on_to_the_same_bytes(finished, settings, tmp_path):
    with pytest.raises(Interrupted, match="everything is saved, the same command goes on from there") as stopped:
        train(settings(), tmp_path, progress=Listener(stop_at=2))
    assert stopped.value.signal == 2
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "interrupted"
    listener = Listener()
    train(settings(), tmp_path, progress=listener)
    assert any("goes on at epoch 1, batch 3" in text for text in listener.heard)
    assert content(tmp_path) == content(finished)


def test_asking_twice_to_stop_stops_at_once():
    request = _StopRequest()
    request.ask(2)
    with pytest.raises(KeyboardInterrupt):
        request.ask(2)


def test_signal_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with _stop_on_signals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_changed_labels_are_noticed_when_a_run_goes_on(settings, study, tmp_path):
    manifest = Manifest.read(study)
    absolute = manifest.table.assign(path=[str(manifest.path_of(i)) for i in manifest.ids])
    absolute = absolute.drop(columns=["instance_labels"])
    Manifest(absolute).write(tmp_path / "m.csv")
    config = settings(manifest=tmp_path / "m.csv")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=Listener(stop_at=1))
    split = json.loads((tmp_path / "run/split.json").read_text())
    one, two = (next(i for i in split["train"] if manifest.labels[i] == y) for y in (0, 1))
    swapped = absolute.set_index("id", drop=False)
    swapped.loc[[one, two], "label"] = ["1", "0"]
    (tmp_path / "splits.json").write_text(json.dumps([split]))
    Manifest(swapped).write(tmp_path / "m.csv")
    with pytest.raises(DataError, match="labels of the training and validation bags have changed"):
        train(settings(f"data.splits={tmp_path / 'splits.json'}", manifest=tmp_path / "m.csv"), tmp_path / "run")


def test_a_damaged_checkpoint_is_named_and_not_silently_restarted(finished, settings, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run/checkpoints/last.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"last\.safetensors: damaged or not written by smmil"):
        train(settings(), tmp_path / "run")


def test_a_finished_run_with_other_weights_under_the_name_of_the_best_is_noticed(finished, settings, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    train(settings("training.seed=9"), tmp_path / "other")
    shutil.copy(tmp_path / "other/checkpoints/best.safetensors", tmp_path / "run/checkpoints/best.safetensors")
    with pytest.raises(DataError, match="not the weights this run selected"):
        train(settings(), tmp_path / "run")


def test_metrics_are_restored_from_the_checkpoint(finished, settings, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run/metrics.csv").write_text("half a li")
    train(settings(), tmp_path / "run")
    assert content(tmp_path / "run") == content(finished)


def test_a_run_killed_before_it_could_say_so_is_marked_finished(finished, settings, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    facts = json.loads((tmp_path / "run/run.json").read_text())
    stale = {**facts, "status": "running", "ended": None, "best": None, "lowest_loss": None}
    (tmp_path / "run/run.json").write_text(json.dumps(stale))
    train(settings(), tmp_path / "run")
    assert content(tmp_path / "run") == content(finished)


def test_a_fold_that_does_not_exist_is_refused(settings, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.fold: 2 was asked for, but there are only folds 0 to 1"):
        train(settings("data.fold=2"), tmp_path)


def test_unknown_models_and_options_are_refused_before_training(settings, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown name 'sm_pa'; did you mean sm_ap"):
        train(settings(model="sm_pa"), tmp_path / "a")
    with pytest.raises(ConfigError, match="unknown option 'wher'; did you mean where"):
        train(settings("model.options.wher=late"), tmp_path / "b")


def test_a_mistake_does_not_claim_the_folder(settings, tmp_path):
    with pytest.raises(ConfigError, match="unknown name"):
        train(settings(model="sm_pa"), tmp_path / "run")
    assert train(settings("training.epochs=1"), tmp_path / "run").ended == "all 1 epochs done"


def test_tensorboard_is_asked_for_by_name_when_missing(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'smmil\[tensorboard\]'"):
        train(settings("training.tensorboard=true"), tmp_path)


def test_tensorboard_gets_every_number_of_every_epoch_and_forgets_repeated_ones(settings, tmp_path, monkeypatch):
    told = []

    class Writer:
        def __init__(self, folder, purge_step):
            told.append(("from", purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, step))

        def flush(self): ...

        def close(self): ...

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    config = settings("training.tensorboard=true")
    with pytest.raises(Interrupted):
        train(config, tmp_path, progress=Listener(stop_at=3))
    train(config, tmp_path)
    begins = [step for name, step in told if name == "from"]
    assert begins[0] == 1
    assert begins[1] == 1 + sum(step <= begins[1] - 1 for name, step in told if name == "val_auroc")
    assert [step for name, step in told if name == "val_auroc"] == [1, 2, 3]


def test_a_manifest_named_from_the_working_folder_is_found_again_later(study, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(study.parent)
    named = settings("training.epochs=1", manifest=study)
    here = named.model_copy(update={"data": named.data.model_copy(update={"manifest": study.name})})
    train(here, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["data"]["manifest"] == str(study.resolve())


class LabelRemover(Progress):
    """Deletes the instance label files of a study as soon as its bags have been checked."""

    def __init__(self, folder):
        self.folder, self.removed = folder, False

    def checked(self, done, total):
        if done == total:
            shutil.rmtree(self.folder)
            self.removed = True


@pytest.mark.parametrize("workers", [0, 2])
def test_training_opens_no_instance_label_file_after_the_checks_at_the_start(
    workers, study, settings, finished, tmp_path
):
    shutil.copytree(study.parent, tmp_path / "study")
    config = settings(f"training.workers={workers}", manifest=tmp_path / "study" / "manifest.csv")
    remover = LabelRemover(tmp_path / "study" / "labels")
    train(config, tmp_path / "run", progress=remover)
    assert remover.removed
    same = ("checkpoints/best.safetensors", "checkpoints/lowest_loss.safetensors", "metrics.csv")
    assert content(tmp_path / "run", same) == content(finished, same)


def test_a_new_run_is_refused_when_an_instance_label_file_is_missing(study, settings, tmp_path):
    shutil.copytree(study.parent, tmp_path / "study")
    next((tmp_path / "study" / "labels").iterdir()).unlink()
    with pytest.raises(DataError, match="1 files are missing"):
        train(settings(manifest=tmp_path / "study" / "manifest.csv"), tmp_path / "run")
