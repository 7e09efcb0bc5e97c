"""Training from experts' marks: what they may touch, what they may not, and that the run says so."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from support.listener import Listener
from typer.testing import CliRunner

import smmil
from smmil.annotations.marks import WANTED
from smmil.config import load_config
from smmil.data import Manifest
from smmil.errors import ConfigError, DataError
from smmil.evaluate import instance_metrics
from smmil.packaging import load_package, write_package
from smmil.predict import predict_run
from smmil.prediction import Prediction, corrections_text
from smmil.redact import provenance
from smmil.report import write_report
from smmil.train import Interrupted, train
from smmil.train.run import _choose_split
from smmil.viewer.api import _one_case
from smmil.viewer.data import ViewerData
from smmil.weights import read_weights

WEIGHTS = ("checkpoints/best.safetensors", "checkpoints/lowest_loss.safetensors", "checkpoints/last.safetensors")
SAME = (*WEIGHTS, "metrics.csv", "run.json")


def content(folder, names=SAME):
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def split(study, settings):
    return _choose_split(Manifest.read(study), settings().data)


@pytest.fixture(scope="module")
def marks(study, split, tmp_path_factory):
    """A folder of corrections: the truth of the first eight instances of three training cases and a validation case."""
    manifest, rows = Manifest.read(study), []
    sick = [i for i in split.train if manifest.labels[i]][:2]
    for id_ in (*sick, next(i for i in split.train if not manifest.labels[i]), split.val[0]):
        truth = manifest.bag(id_).y_inst
        chosen = sorted({*range(8), *truth.nonzero().flatten().tolist()[:3]})
        rows += [{"id": id_, "instance": n, "label": int(truth[n])} for n in chosen]
    folder = tmp_path_factory.mktemp("corrections")
    pd.DataFrame(rows).to_csv(folder / "marks.csv", index=False)
    return folder


def taught(settings, marks, *changes, **more):
    return settings(f"data.corrections={marks}", "training.instance_loss=1.0", *changes, **more)


@pytest.fixture(scope="module")
def run(settings, marks, tmp_path_factory):
    folder, listener = tmp_path_factory.mktemp("taught"), Listener()
    train(taught(settings, marks), folder, progress=listener)
    return folder, listener.heard


def test_without_the_option_no_instance_label_can_change_a_weight(study, settings, tmp_path):
    table = pd.read_csv(study, dtype=str, keep_default_na=False)
    table["path"] = [str(study.parent / p) for p in table["path"]]
    for name in ("as_is", "flipped"):
        files = []
        for number, file in enumerate(table["instance_labels"]):
            labels = np.load(study.parent / file) if file else None
            if labels is not None and name == "flipped" and table["label"][number] != "0":
                labels = 1 - labels
                labels[0] = 1
            files.append("" if labels is None else str(tmp_path / f"{name}_{number}.npy"))
            if labels is not None:
                np.save(files[-1], labels)
        table.assign(instance_labels=files).to_csv(tmp_path / f"{name}.csv", index=False)
        train(settings(manifest=tmp_path / f"{name}.csv"), tmp_path / name)
    assert any(files)
    assert content(tmp_path / "as_is", WEIGHTS) == content(tmp_path / "flipped", WEIGHTS)


def test_the_option_changes_nothing_in_a_run_without_it(settings, tmp_path):
    """Neither digest nor notes of a run know the option unless it is set, so that runs of before go on."""
    train(settings("training.epochs=1"), tmp_path)
    _, note = read_weights(tmp_path / WEIGHTS[0])
    facts = json.loads((tmp_path / "run.json").read_text())
    assert "corrections" not in note
    assert "corrections" not in facts
    assert not any("marks" in line for line in (tmp_path / "metrics.csv").read_text().splitlines())
    plain = load_config(None, ["data.manifest=m.csv", "model.name=abmil"])
    assert plain.digest() == "dcc789598ff4f5e238ceff212b331ca18eaebf1495b2d0df8132be82d1acdb11"


def test_marks_teach_and_the_run_and_its_predictions_say_how_many(run, settings, study, split, tmp_path):
    folder, heard = run
    train(settings(), tmp_path / "plain")
    assert content(folder, WEIGHTS[:1]) != content(tmp_path / "plain", WEIGHTS[:1])
    facts = json.loads((folder / "run.json").read_text())["corrections"]
    assert facts["cases"] == 3
    assert facts["weight"] == 1.0
    assert 0 < facts["lesions"] < facts["instances"]
    assert read_weights(folder / WEIGHTS[0])[1]["corrections"] == facts
    done = predict_run(folder, out=tmp_path / "predictions")
    assert Prediction.load(done.paths[0]).meta["corrections"] == facts
    said = [text for text in heard if text.startswith(f"learns from {corrections_text(facts)}")]
    assert said
    assert f"marks in 1 validation and test cases are not used, such as {split.val[0]}" in said[0]
    assert "marks/offset" in (folder / "metrics.csv").read_text().splitlines()[0]


def test_marks_of_validation_and_test_cases_cannot_change_a_weight(run, settings, marks, split, tmp_path):
    table = pd.read_csv(marks / "marks.csv", dtype={"id": str})
    held_out = table["id"] == split.val[0]
    assert held_out.any()
    table.loc[held_out, "label"] = 1 - table.loc[held_out, "label"]
    table.to_csv(tmp_path / "marks.csv", index=False)
    train(taught(settings, tmp_path / "marks.csv"), tmp_path / "run")
    assert content(tmp_path / "run", WEIGHTS) == content(run[0], WEIGHTS)


def test_an_interrupted_run_goes_on_to_the_same_bytes_and_refuses_other_marks(run, settings, marks, tmp_path):
    with pytest.raises(Interrupted):
        train(taught(settings, marks), tmp_path / "run", progress=Listener(stop_at=2))
    table = pd.read_csv(marks / "marks.csv", dtype={"id": str})
    (tmp_path / "fewer").mkdir()
    table.iloc[1:].to_csv(tmp_path / "fewer" / "marks.csv", index=False)
    with pytest.raises(DataError, match="or the corrections have"):
        train(taught(settings, tmp_path / "fewer"), tmp_path / "run")
    train(taught(settings, marks), tmp_path / "run")
    assert content(tmp_path / "run") == content(run[0])


def test_marks_in_memory_teach_as_those_in_files_do(run, settings, marks, study, split):
    manifest = Manifest.read(study)
    parts = [[manifest.bag(id_) for id_ in ids] for ids in (split.train, split.val)]
    given = {}
    for row in pd.read_csv(marks / "marks.csv", dtype={"id": str}).itertuples():
        if row.id in split.train:
            given.setdefault(row.id, torch.full((manifest.bag(row.id).n,), -1))[row.instance] = row.label
    quick = {"epochs": 3, "threads": 1, "lr": 1e-2, "warmup_epochs": 1, "options": {"dim": 8, "att_dim": 4}}
    fitted = smmil.fit("sm_ap", *parts, corrections=given, instance_loss=1.0, **quick)
    tensors, _ = read_weights(run[0] / WEIGHTS[0])
    assert all(torch.equal(tensors[name], value) for name, value in fitted.model.state_dict().items())
    with pytest.raises(ConfigError, match="give both or neither"):
        smmil.fit("sm_ap", *parts, corrections=given, **quick)
    with pytest.raises(ConfigError, match="give both or neither"):
        smmil.fit("sm_ap", *parts, instance_loss=1.0, **quick)
    with pytest.raises(DataError, match="is no training bag; only those may teach"):
        smmil.fit("sm_ap", *parts, corrections={split.val[0]: torch.zeros(3)}, instance_loss=1.0, **quick)


def test_marks_and_weight_go_together_and_some_mark_is_needed(settings, marks, split, tmp_path):
    with pytest.raises(ConfigError, match=r"but training\.instance_loss is 0; set its weight, such as 0.3"):
        settings(f"data.corrections={marks}")
    with pytest.raises(ConfigError, match=r"give data\.corrections, their folder"):
        settings("training.instance_loss=1.0")
    (tmp_path / "val.csv").write_text(f"id,instance,label\n{split.val[0]},0,0\n")
    with pytest.raises(DataError, match=r"no mark in training cases \(1 marked cases validate or test\)"):
        train(taught(settings, tmp_path / "val.csv"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (0, "marks of others, which say no more than that these score below"),
        (1, "marks of lesions, which say no more than that these score above"),
    ],
)
def test_marks_of_one_kind_teach_and_the_run_says_what_they_cannot(settings, study, split, tmp_path, label, words):
    manifest = Manifest.read(study)
    sick = next(id_ for id_ in split.train if manifest.labels[id_])
    rows = "".join(f"{sick},{i},{label}\n" for i in range(3))
    (tmp_path / "one.csv").write_text(f"id,instance,label\n{rows}")
    listener = Listener()
    train(taught(settings, tmp_path / "one.csv"), tmp_path / "run", progress=listener)
    train(settings(), tmp_path / "plain")
    [said] = [text for text in listener.heard if "marked by hand" in text]
    assert f"; all are {words} the average of their case: mark some" in said
    at = WEIGHTS[-1]
    assert (tmp_path / "run" / at).read_bytes() != (tmp_path / "plain" / at).read_bytes()
    assert json.loads((tmp_path / "run/run.json").read_text())["corrections"]["lesions"] == 3 * label


def test_the_loop_closes_predict_suggest_mark_train(settings, study, split, tmp_path):
    """As an expert does it: regions of one case are classed in QuPath, those of the others labelled in the table."""
    from smmil.cli import app

    train(settings("training.epochs=1"), tmp_path / "first")
    predict_run(tmp_path / "first", out=tmp_path / "predictions", part="all")
    words = ["suggest", tmp_path / "predictions", "--out", tmp_path / "marks", "--patches", 20, "--manifest", study]
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    assert f"note: {len(split.val) + len(split.test)} cases validate or test" in done.output
    assert "20 patches in" in done.output
    assert "the most likely lesions of their cases; the model takes about" in done.output
    table = pd.read_csv(tmp_path / "marks" / "marks.csv", dtype={"id": str})
    manifest = Manifest.read(study)
    assert len(table) == 20
    assert set(table["id"]) <= {i for i in split.train if manifest.labels[i]}
    written = (tmp_path / "marks" / "marks.csv").read_bytes()
    (tmp_path / "marks" / "marks.csv").unlink()  # as if the first process had been killed before it
    assert CliRunner().invoke(app, list(map(str, words))).exit_code == 0
    assert (tmp_path / "marks" / "marks.csv").read_bytes() == written
    with pytest.raises(DataError, match="no mark in training cases"):  # nothing is marked yet
        train(taught(settings, tmp_path / "marks"), tmp_path / "second")
    truth = {id_: manifest.bag(id_).y_inst for id_ in set(table["id"])}
    first = table["id"][0]
    drawn = json.loads((tmp_path / "marks" / f"{first}.geojson").read_text())
    for feature in drawn["features"]:
        assert feature["properties"]["classification"]["name"] == WANTED
        feature["properties"]["classification"]["name"] = "Normal"
    (tmp_path / "marks" / f"{first}.geojson").write_text(json.dumps(drawn))
    by_hand = table["id"] != first
    labels = ["lesion" if truth[i][n] else "not lesion" for i, n in zip(table["id"], table["instance"], strict=True)]
    table["label"] = np.where(by_hand, labels, "")
    table.to_csv(tmp_path / "marks" / "marks.csv", index=False)
    if "lesion" not in set(table["label"]):
        table.loc[by_hand.idxmax(), "label"] = "lesion"
        table.to_csv(tmp_path / "marks" / "marks.csv", index=False)
    train(taught(settings, tmp_path / "marks", "training.epochs=1"), tmp_path / "second")
    facts = json.loads((tmp_path / "second" / "run.json").read_text())["corrections"]
    assert facts["instances"] == 20  # the regions of the drawing are those of the table, patch by patch
    again = CliRunner().invoke(app, list(map(str, words)))
    assert isinstance(again.exception, DataError)
    assert "is there already, maybe with your marks" in str(again.exception)


def test_every_page_says_that_marks_were_seen(run, study, tmp_path):
    folder, _ = run
    sentence = corrections_text(json.loads((folder / "run.json").read_text())["corrections"])
    done = predict_run(folder, out=tmp_path / "sm_ap")
    one = Prediction.load(done.paths[0])
    notes = instance_metrics([Prediction.load(p) for p in done.paths])["notes"]
    assert f"the model also learned from {sentence}" in notes
    assert provenance(one)["corrections"] == sentence
    write_report([tmp_path / "sm_ap"], tmp_path / "report.html")
    assert sentence in (tmp_path / "report.html").read_text()
    write_package(folder, tmp_path / "package", name="taught", licence="mit")
    assert sentence in (tmp_path / "package" / "README.md").read_text()
    loaded = load_package(tmp_path / "package")
    assert loaded.trained.facts["corrections"]["instances"] == one.meta["corrections"]["instances"]
    shown = ViewerData.read([tmp_path / "sm_ap"])
    assert any(sentence in note for note in _one_case(shown, 0)["notes"])
    shown.close()
