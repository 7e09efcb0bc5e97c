"""From a trained run to the warning: smmil drift, predict, package, export, evaluate."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from smmil.cli import app
from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, SmmilError
from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.calibration import calibrate
from smmil.evaluate.conformal import applied_calibration
from smmil.exports import export
from smmil.formats.native import write_bag
from smmil.predict.drift import read_drift, save_drift
from smmil.prediction import Prediction, load_predictions
from smmil.synthetic.features import synthetic_slides, write_synthetic

QUICK = ["training.epochs=1", "training.threads=1", "model.options.dim=8", "model.options.att_dim=4"]


def smmil(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """A run on synthetic bags with its summary; new bags as they are and with features moved aside."""
    root = tmp_path_factory.mktemp("road")
    bags = synthetic_slides(70, dim=16, size=(20, 30), seed=0)
    manifest = write_synthetic(root / "bags", bags[:60])
    usual = write_synthetic(root / "usual", bags[60:])
    moved = [replace(bag, x=bag.x + 2.0) for bag in bags[60:]]
    shifted = write_synthetic(root / "shifted", moved)
    settings = [word for setting in QUICK for word in ("--set", setting)]
    done = smmil("train", "--manifest", manifest, "--model", "sm_ap", *settings, "--out", root / "run")
    assert done.exit_code == 0, done.output
    done = smmil("drift", root / "run")
    assert done.exit_code == 0, done.output
    return root, usual, shifted


def predicted(source, manifest, out, *more):
    words = ("--model", source, manifest) if (source / "SHA256SUMS").exists() else (source, "--manifest", manifest)
    done = smmil("predict", *words, "--out", out, *more)
    assert done.exit_code == 0, done.output
    return load_predictions(out), done


def test_the_command_compares_a_folder_and_says_so(road, tmp_path):
    root, usual, shifted = road
    done = smmil("drift", root / "run", "--manifest", shifted, "--out", tmp_path / "drift.csv")
    assert done.exit_code == 0, done.output
    assert "10 of 10 cases look unlike the cases that the model learned from" in done.output
    table = pd.read_csv(tmp_path / "drift.csv")
    assert (table["alarm"] == "unlike").all()
    done = smmil("drift", root / "run" / "drift.safetensors", "--manifest", usual)
    assert "As a whole no difference was shown (10 cases of 8 patients against" in done.output


def test_predict_warns_and_a_second_call_keeps_the_files(road, tmp_path):
    root, usual, shifted = road
    strange, done = predicted(root / "run", shifted, tmp_path / "strange")
    assert "warning: 10 of 10 cases" in done.output
    assert all(applied_drift(p).alarm and p.strangeness is not None for p in strange)
    assert "10 there already" in predicted(root / "run", shifted, tmp_path / "strange")[1].output
    plain, done = predicted(root / "run", shifted, tmp_path / "strange", "--no-drift")
    assert "10 written" in done.output
    assert all("drift" not in p.meta and p.strangeness is None for p in plain)
    like, done = predicted(root / "run", usual, tmp_path / "usual")
    assert "As a whole no difference was shown (10 cases of 8 patients against" in done.output
    assert sum(applied_drift(p).alarm for p in like) <= 3


def test_a_package_carries_the_summary_and_its_predictions_are_the_same(road, tmp_path):
    root, _, shifted = road
    done = smmil("package", root / "run", "--out", tmp_path / "package")
    assert done.exit_code == 0, done.output
    assert "drift.safetensors" in done.output
    assert "## Alarm for unlike cases" in (tmp_path / "package" / "README.md").read_text()
    packed = predicted(tmp_path / "package", shifted, tmp_path / "packed")[0]
    own = predicted(root / "run", shifted, tmp_path / "own")[0]
    for one, other in zip(packed, own, strict=True):
        assert one.meta["drift"] == other.meta["drift"]
        np.testing.assert_array_equal(one.strangeness, other.strangeness)


def test_a_promise_is_withdrawn_where_the_alarm_is_raised(road, tmp_path):
    root, usual, shifted = road
    held_out = predicted(root / "run", usual, tmp_path / "held")[0]
    alone = [replace(p, meta={key: value for key, value in p.meta.items() if key != "group"}) for p in held_out]
    known = [replace(p, id=f"{p.id}_{i}", y=1, y_inst=np.arange(p.n) < 3) for i in range(2) for p in alone]
    made = calibrate(known)
    made.save(tmp_path / "calibration.json")
    options = ("--calibration", tmp_path / "calibration.json")
    strange, done = predicted(root / "run", shifted, tmp_path / "strange", *options)
    assert "warning: the promise is withdrawn for all cases" in done.stderr
    assert "\nNo promise: as a whole these cases look unlike those that the model learned from" in done.stdout
    assert made.sentence not in done.output
    assert "No promise for this case" in applied_calibration(strange[0]).text
    assert not applied_calibration(strange[0]).promise
    assert applied_calibration(strange[0]).threshold == made.threshold
    export(strange[0], "geojson", tmp_path / "case.geojson")
    assert "No promise for this case" in (tmp_path / "case.geojson").read_text()
    assert made.sentence not in (tmp_path / "case.geojson").read_text()
    export(strange[0], "csv", tmp_path / "case.csv")
    assert pd.read_csv(tmp_path / "case.csv", comment="#")["strangeness"].between(0, 1).all()
    cases, done = predicted(root / "run", usual, tmp_path / "like", *options)
    assert made.sentence in done.stdout
    like = [p for p in cases if not applied_drift(p).alarm]
    lost = f"The promise does not hold for {len(cases) - len(like)} of these {len(cases)} cases"
    assert (lost in done.stdout) == (len(like) < len(cases))
    assert like
    assert all(applied_calibration(p).sentence == made.sentence for p in like)


def test_features_of_another_encoder_are_refused(road, tmp_path):
    root, usual, _ = road
    table = Manifest.read(usual)
    bag = table.bag(table.ids[0])
    write_bag(tmp_path / "other.h5", bag, provenance={"encoder": "another@1", "recipe": "r2"})
    (tmp_path / "other.csv").write_text(f"id,path\n{bag.id},other.h5\n")
    stated = root / "run" / "drift.safetensors"
    own = replace(read_drift(stated), source={"encoder": "own@1", "recipe": "r1"})
    save_drift(own, tmp_path / "own.safetensors")
    done = smmil("drift", tmp_path / "own.safetensors", "--manifest", tmp_path / "other.csv")
    assert isinstance(done.exception, ConfigError)
    assert "another@1" in str(done.exception)
    words = ("--manifest", usual, "--drift", tmp_path / "own.safetensors", "--out", tmp_path / "out")
    done = smmil("predict", root / "run", *words)
    assert isinstance(done.exception, ConfigError)
    assert "own@1" in str(done.exception)
    wide = replace(bag, x=torch.zeros(bag.n, 5))
    write_bag(tmp_path / "wide.h5", wide)
    (tmp_path / "wide.csv").write_text("id,path\nw,wide.h5\n")
    done = smmil("drift", stated, "--manifest", tmp_path / "wide.csv")
    assert "5 features per instance, but the summary is of 16" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("drift", "nowhere", "--manifest", "x.csv"), "nowhere"),
        (("drift", "{run}", "--manifest", "x.csv", "--level", "0.1"), "--level"),
        (("drift", "{run}/drift.safetensors"), "give the folder of a run"),
        (("predict", "{run}", "--out", "o", "--drift", "f", "--no-drift"), "--no-drift"),
    ],
)
def test_mistakes_are_told_in_one_line(road, words, expected):
    done = smmil(*(word.format(run=road[0] / "run") for word in words))
    assert isinstance(done.exception, SmmilError)
    assert expected in str(done.exception)


def test_the_summary_names_nobody(road):
    data = (road[0] / "run" / "drift.safetensors").read_bytes()
    assert b"slide" not in data.lower().replace(b"smmil", b"")
    assert str(road[0]).encode() not in data
    facts = json.dumps(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]))
    assert "patients" in facts


def test_a_prediction_of_an_earlier_version_is_read(tmp_path):
    Prediction("a", [0.5], [1.0]).save(tmp_path / "a.npz")
    assert Prediction.load(tmp_path / "a.npz").strangeness is None
