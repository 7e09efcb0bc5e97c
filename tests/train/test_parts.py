"""Training on parts of bags: the same bytes after a stop, whole bags where they fit, and always in validation."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from support.bags import grid_bag
from support.patients import write_patients

import smmil
from smmil.config import load_config
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, DataError
from smmil.predict import predict_run
from smmil.prediction import load_predictions
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import loop
from smmil.train.loop import Interrupted, Progress, Trainer
from smmil.train.run import train
from smmil.weights import read_weights

PARTS = ("training.max_instances=11", "training.batch_size=2", "training.epochs=2")
QUICK = {"epochs": 2, "threads": 1, "lr": 1e-2}
SMALL = {"dim": 4, "att_dim": 2}


class Stopper(Progress):
    def __init__(self):
        self.steps, self.messages = 0, []

    def step_done(self, epoch, step, loss):
        self.steps += 1
        if self.steps == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def message(self, text):
        self.messages.append(text)


def last(folder):
    return (folder / "checkpoints/last.safetensors").read_bytes()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stopped_run_on_parts_goes_on_to_the_same_bytes(settings, tmp_path, workers):
    config = settings(*PARTS)
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", progress=Stopper())
    train(settings(*PARTS, f"training.workers={workers}"), tmp_path / "stopped")
    assert last(tmp_path / "whole") == last(tmp_path / "stopped")
    for change in ("training.sampling=window", "training.seed=1") if workers else ():
        train(settings(*PARTS, change), tmp_path / change)
        assert last(tmp_path / change) != last(tmp_path / "whole")


def test_parts_as_large_as_the_bags_are_the_bags(settings, tmp_path, study):
    largest = max(Manifest.read(study).bag(i).n for i in Manifest.read(study).ids)
    runs = {"none": (), "largest": (f"training.max_instances={largest}",)}
    found = {}
    for name, changes in runs.items():
        folder = tmp_path / name
        train(settings("training.epochs=1", *changes), folder)
        tensors, _ = read_weights(folder / "checkpoints/best.safetensors")
        found[name] = (folder / "metrics.csv").read_bytes(), {key: t.numpy().tobytes() for key, t in tensors.items()}
    assert found["none"] == found["largest"]


@pytest.mark.parametrize("model", ["sm_ap", "trans_mil"])
def test_steps_see_parts_and_validation_whole_bags(model, monkeypatch):
    bags = [replace(grid_bag(20 + 5 * n, seed=n, y=n % 2), id=f"b{n}") for n in range(8)]
    seen, validated, real = [], [], Trainer.forward
    monkeypatch.setattr(
        Trainer,
        "forward",
        lambda self, state, batch, *part: seen.extend(batch.sizes) or real(self, state, batch, *part),
    )
    metrics = loop.bag_metrics
    monkeypatch.setattr(loop, "bag_metrics", lambda p: validated.extend(len(one.scores) for one in p) or metrics(p))
    options = SMALL if model == "sm_ap" else {"dim": 8}
    smmil.fit(model, bags[:6], bags[6:], **{**QUICK, "epochs": 1}, options=options, max_instances=30)
    assert sorted(seen) == [20, 25, 30, 30, 30, 30]
    assert validated == [50, 55]


@pytest.mark.slow
def test_validation_in_blocks_measures_what_whole_bags_do(settings, tmp_path):
    history = {}
    for able in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not able:
                patch.setattr(Trainer, "block", None)
            train(settings(*PARTS), tmp_path / str(able))
        history[able] = [row.split(",") for row in (tmp_path / str(able) / "metrics.csv").read_text().splitlines()]
    for one, other in zip(history[True][1:], history[False][1:], strict=True):
        assert [float(v) for v in one] == pytest.approx([float(v) for v in other], abs=1e-6)


def test_bags_in_memory_and_survival_train_on_parts_too():
    bags = [replace(grid_bag(30, seed=n, y=n % 2), id=f"b{n}") for n in range(8)]
    found = smmil.fit("sm_ap", bags[:6], bags[6:], **QUICK, options=SMALL, max_instances=9, sampling="walk")
    again = smmil.fit("sm_ap", bags[:6], bags[6:], **QUICK, options=SMALL, max_instances=9, sampling="walk")
    whole = smmil.fit("sm_ap", bags[:6], bags[6:], **QUICK, options=SMALL)
    assert found.history == again.history != whole.history
    times = [replace(b, y=None, target=torch.tensor([1.0 + n, 1.0])) for n, b in enumerate(bags)]
    fitted = smmil.fit("sm_ap", times[:6], times[6:], **QUICK, options=SMALL, target="cox", max_instances=9)
    assert smmil.predict(fitted.model, times[7])[0].value is not None


def test_a_file_that_was_damaged_between_start_and_resume_is_noticed(settings, tmp_path, study):
    manifest = write_synthetic(tmp_path / "own", synthetic_slides(12, seed=3, size=(20, 30), dim=6))
    config = settings(*PARTS, manifest=manifest)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", progress=Stopper())
    for path in sorted((tmp_path / "own" / "bags").glob("*.h5")):
        content = bytearray(path.read_bytes())
        at = content.index(Manifest.read(manifest).bag(path.stem, verify=False).x.numpy().tobytes())
        content[at : at + 2] = b"\x00\x3c"
        path.write_bytes(content)
    with pytest.raises(DataError, match="checksum"):
        train(config, tmp_path / "run")


def test_what_contradicts_parts_is_refused_and_unset_they_leave_settings_as_they_were(study, tmp_path, settings):
    least = [f"data.manifest={study}", "model.name=abmil"]
    plain = load_config(None, least)
    assert "max_instances" not in plain.to_yaml()
    assert "sampling" not in plain.to_yaml()
    set_ = load_config(None, [*least, "training.max_instances=5"])
    assert "max_instances: 5" in set_.to_yaml()
    assert load_config(None, [*least, "training.max_instances=null"]).digest() == plain.digest() != set_.digest()
    assert load_config(None, [*least, "training.max_instances=5", "training.sampling=walk"]).digest() != set_.digest()
    with pytest.raises(ConfigError, match="sampling: walk draws parts of bags; give their size, max_instances"):
        load_config(None, [*least, "training.sampling=walk"])
    with pytest.raises(ConfigError, match=r"training\.sampling"):
        load_config(None, [*least, "training.max_instances=5", "training.sampling=wander"])
    with pytest.raises(ConfigError, match="instance_loss needs whole bags"):
        load_config(None, [*least, "training.max_instances=5", "training.instance_loss=0.3", "data.corrections=x"])
    bags = [replace(grid_bag(12, seed=n, y=n % 2), id=f"b{n}") for n in range(4)]
    with pytest.raises(ConfigError, match="IIBMIL remembers instances by row"):
        smmil.fit("iib_mil", bags[:2], bags[2:], **QUICK, max_instances=5)


def test_predictions_in_blocks_are_those_of_whole_bags(settings, tmp_path, study):
    train(settings("training.epochs=1"), tmp_path / "run")
    whole = predict_run(tmp_path / "run", out=tmp_path / "whole")
    found = predict_run(tmp_path / "run", out=tmp_path / "found", block=5)
    assert len(found.written) > 1
    assert not found.failed
    for one, wanted in zip(load_predictions(found.paths), load_predictions(whole.paths), strict=True):
        assert one.scores == pytest.approx(wanted.scores, abs=1e-6)
        assert one.probs == pytest.approx(wanted.probs, abs=1e-6)
        assert (one.id, one.y, one.meta) == (wanted.id, wanted.y, wanted.meta)
        for name in ("coords", "edges", "y_inst"):
            assert (getattr(one, name) == getattr(wanted, name)).all()
    with pytest.raises(ConfigError, match="dropout would differ"):
        predict_run(tmp_path / "run", out=tmp_path / "dropped", block=5, mc_dropout=2)


@pytest.mark.slow
def test_patients_with_covariates_train_on_parts_and_are_predicted_in_blocks_too(settings, tmp_path):
    manifest = write_patients(tmp_path, 12)
    train(settings(*PARTS, "data.bags=patient", "data.covariates=[age, sex]", manifest=manifest), tmp_path / "run")
    whole = predict_run(tmp_path / "run", out=tmp_path / "whole", part="all")
    found = predict_run(tmp_path / "run", out=tmp_path / "found", part="all", block=5)
    for one, wanted in zip(load_predictions(found.paths), load_predictions(whole.paths), strict=True):
        assert one.scores == pytest.approx(wanted.scores, abs=1e-6)
        assert one.probs == pytest.approx(wanted.probs, abs=1e-6)
        assert one.meta == wanted.meta
