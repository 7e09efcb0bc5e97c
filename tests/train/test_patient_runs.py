"""Runs on bags of patients and on covariates: what they read, save, resume and predict."""

import json
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from support.patients import write_patients

from smmil.bag import BagBatch
from smmil.cli.train import _doubt
from smmil.config import load_config
from smmil.data import Manifest
from smmil.data.patients import StudyBags
from smmil.data.splits import run_split
from smmil.errors import DataError
from smmil.evaluate import bag_metrics
from smmil.predict import load_run, load_trained, predict, predict_run
from smmil.prediction import load_predictions
from smmil.train import fit, train
from smmil.train.loop import Interrupted, Progress

QUICK = ("training.epochs=2", "training.threads=1", "model.options.dim=8", "model.options.att_dim=4", "data.folds=2",
         "data.val_share=0.5", "training.lr=1e-2", "training.warmup_epochs=1", "training.batch_size=3")  # fmt: skip
PATIENTS, KNOWN = "data.bags=patient", "data.covariates=[age, sex]"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_patients(tmp_path_factory.mktemp("patients") / "study", 14)


def settings(study, *changes, model="sm_ap"):
    return load_config(None, [f"data.manifest={study}", f"model.name={model}", *QUICK, *changes])


@pytest.fixture(scope="module")
def run(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(settings(study, PATIENTS, KNOWN), folder)
    return folder


@pytest.fixture(scope="module")
def predictions(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("predictions")
    done = predict_run(run, out=folder, part="all")
    assert not done.failed
    return load_predictions(folder)


def test_every_case_has_a_map_of_its_own_and_the_probabilities_of_its_patient(run, study, predictions):
    table = Manifest.read(study)
    patients = StudyBags(table, bags="patient")
    model, _ = load_run(run)
    facts = load_trained(run).facts
    from smmil.predict.cases import bags_to_read

    bags = bags_to_read(load_trained(run), table, table.ids)
    assert facts["bags"] == "patient"
    assert {p.id for p in predictions} == set(table.ids)
    by_id = {p.id: p for p in predictions}
    for patient, cases in patients.members.items():
        whole = predict(model, [bags.bag(patient)])[0]
        parts = [by_id[case] for case in cases]
        assert all(np.array_equal(p.probs, whole.probs) and p.y == patients.labels[patient] for p in parts)
        assert np.array_equal(np.concatenate([p.scores for p in parts]), whole.scores)
        for n, (case, part) in enumerate(zip(cases, parts, strict=True)):
            own = table.bag(case)
            assert np.array_equal(part.coords, own.coords.numpy())
            assert np.array_equal(part.edges, own.graph.edges().numpy())
            assert np.array_equal(part.y_inst, own.y_inst.numpy())
            assert part.meta["patient_bag"] == {"patient": patient, "cases": len(cases), "part": n}
            assert "Name" not in json.dumps(part.meta)
    assert bag_metrics(predictions)["n"] == len(patients.members) < len(predictions)


def test_predicting_again_keeps_everything_and_a_missing_case_renews_its_patient(run, tmp_path):
    first = predict_run(run, out=tmp_path)
    again = predict_run(run, out=tmp_path)
    assert (again.written, again.kept) == ([], first.written)
    groups = {p.id: p.meta["patient_bag"] for p in load_predictions(tmp_path)}
    several = next(i for i, facts in groups.items() if facts["cases"] > 1)
    (tmp_path / f"{several}.npz").unlink()
    third = predict_run(run, out=tmp_path)
    assert len(third.written) == groups[several]["cases"]


def test_a_case_that_cannot_be_read_fails_with_all_of_its_patient(run, study, tmp_path):
    table = pd.read_csv(study, dtype=str)
    group = table["group"].value_counts().index[0]
    ids = sorted(table["id"][table["group"] == group])
    assert len(ids) > 1
    (study.parent / "broken.h5").write_bytes(b"no bag")
    broken = study.parent / "broken.csv"
    table.loc[table["id"] == ids[-1], "path"] = "broken.h5"
    table.to_csv(broken, index=False)
    done = predict_run(run, out=tmp_path, manifest=broken)
    assert sorted(done.failed) == ids
    assert len(done.written) == len(table) - len(ids)


def test_a_split_names_every_case_and_training_counts_patients(run, study):
    split = json.loads((run / "split.json").read_text())
    table = Manifest.read(study)
    assert sorted(i for part in split.values() for i in part) == sorted(table.ids)
    groups = [{table.groups[i] for i in part} for part in split.values()]
    facts = json.loads((run / "run.json").read_text())
    assert facts["bags"] == {part: len(ids) for part, ids in split.items()}
    assert facts["reading"]["bags"] == "patient"
    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]


def test_new_settings_that_are_not_used_leave_no_trace(study):
    plain = settings(study)
    assert "bags" not in plain.to_yaml()
    assert "covariates" not in plain.to_yaml()
    assert plain.digest() == settings(study, "data.bags=case").digest()
    assert plain.digest() != settings(study, PATIENTS).digest() != settings(study, KNOWN).digest()
    assert settings(study, PATIENTS, KNOWN).data.covariates == ["age", "sex"]


def test_resuming_ends_with_the_same_bytes(run, study, tmp_path):
    class Stop(Progress):
        def step_done(self, epoch, step, loss):
            if (epoch, step) == (1, 1):
                raise KeyboardInterrupt

    folder = tmp_path / "stopped"
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        train(settings(study, PATIENTS, KNOWN, "training.checkpoint_minutes=0"), folder, progress=Stop())
    train(settings(study, PATIENTS, KNOWN), folder)
    for name in ("best.safetensors", "last.safetensors"):
        assert (folder / "checkpoints" / name).read_bytes() == (run / "checkpoints" / name).read_bytes()


def changed(study, name, change):
    """The same study with other cells in a column, for the cases that a function names."""
    table = pd.read_csv(study, dtype=str)
    table = change(table)
    table.to_csv(study.parent / name, index=False)
    return study.parent / name


def test_covariates_of_test_patients_do_not_change_training(run, study, tmp_path):
    split = json.loads((run / "split.json").read_text())

    def permute(table):
        test = table["id"].isin(split["test"])
        groups = dict.fromkeys(table["group"][test])
        ages = {g: str(20.5 + 7 * n) for n, g in enumerate(groups)}
        table.loc[test, "age"] = [ages[g] for g in table["group"][test]]
        return table

    other = changed(study, "permuted.csv", permute)
    train(settings(other, PATIENTS, KNOWN), tmp_path / "run")
    weights = [(folder / "checkpoints" / "best.safetensors").read_bytes() for folder in (run, tmp_path / "run")]
    assert weights[0] == weights[1]


def test_a_manifest_without_the_columns_or_with_an_unknown_word_is_refused(run, study, tmp_path):
    lacking = changed(study, "lacking.csv", lambda table: table.drop(columns="age"))
    with pytest.raises(DataError, match=r"reads the covariate 'age', which is no column here"):
        predict_run(run, out=tmp_path, manifest=lacking)
    first = Manifest.read(study).ids[0]

    def strange(table):
        table.loc[table["group"] == table.set_index("id").loc[first, "group"], "sex"] = "X"
        return table

    done = predict_run(run, out=tmp_path, manifest=changed(study, "strange.csv", strange))
    assert first in done.failed
    assert all("sex: 'X' was not seen in training, which knows 'F', 'M'" in text for text in done.failed.values())
    assert len(done.written) == len(Manifest.read(study).ids) - len(done.failed) > 0


def test_training_says_which_test_cases_cannot_be_predicted(run, study, tmp_path):
    test = run_split(run).test

    def strange(table):
        table.loc[table["id"].isin(test), "sex"] = "X"
        return table

    class Heard(Progress):
        texts: ClassVar[list] = []

        def message(self, text):
            self.texts.append(text)

    train(settings(changed(study, "strange_test.csv", strange), PATIENTS, KNOWN), tmp_path / "run", progress=Heard())
    assert any(f"{len(test)} test cases cannot be predicted as they are" in text for text in Heard.texts)
    assert any("'X' was not seen in training" in text for text in Heard.texts)


def test_whether_a_model_of_patients_learned_is_doubted_by_patients_not_by_their_cases(tmp_path):
    study = write_patients(tmp_path / "few", 14, slides=(3, 3))
    config = settings(study, PATIENTS, "data.val_share=0.3")
    result = train(config, tmp_path / "run")
    table, val = Manifest.read(study), run_split(tmp_path / "run").val
    people = {table.groups[i] for i in val}
    positive = {table.groups[i] for i in val if table.labels[i]}
    assert len(val) == 3 * len(people)
    assert math.comb(len(people), len(positive)) < 20  # a perfect order of so few is no rare chance
    said = _doubt(config, replace(result, best={**result.best, "auroc": 1.0}))
    assert said.startswith(f"{len(people)} validation patients ({len(positive)} positive) are too few")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["abmil", "sm_ap"])
def test_a_planted_covariate_is_learnt_where_features_are_noise(model, tmp_path):
    study = write_patients(tmp_path / "noise", 120, seed=3, slides=(1, 1), noise=True)
    found = {}
    for name, changes in {"without": (), "with": ("data.covariates=[age]",)}.items():
        longer = ("training.epochs=12", "training.lr=0.03", "data.test_share=0.3")
        train(settings(study, *longer, *changes, model=model), tmp_path / name)
        predict_run(tmp_path / name, out=tmp_path / f"{name}_test")
        found[name] = bag_metrics(load_predictions(tmp_path / f"{name}_test"))["auroc"]
    assert found["with"] > 0.9
    assert abs(found["without"] - 0.5) < 0.3


def test_the_library_trains_and_predicts_bags_that_hold_covariates(study, tmp_path):
    table = Manifest.read(study)
    rng = np.random.default_rng(0)
    bags = [replace(table.bag(i), covariates=torch.from_numpy(rng.standard_normal(2)).float()) for i in table.ids]
    quick = {"epochs": 2, "threads": 1, "options": {"dim": 8, "att_dim": 4}, "lr": 0.1}
    result = fit("abmil", bags[4:], bags[:4], out=tmp_path / "run", **quick)
    model = load_trained(tmp_path / "run").model
    assert model.covariates.abs().sum() > 0
    batch = BagBatch.pack(bags[:3])
    with torch.no_grad():
        assert torch.equal(model(batch).logits, result.model(batch).logits)
