"""The files of a package: what they tell, what they never tell, and that they are all there or none."""

import json
import os
import platform
import shutil
import socket
from pathlib import Path

import pytest
import torch
import yaml
from support.package_makers import CASE, FOLDER, PATIENT

from smmil import __version__
from smmil.config import load_config
from smmil.errors import DataError
from smmil.evaluate import bag_metrics, bootstrap_ci
from smmil.files import read_json, temporary_path, write_json
from smmil.foreign_weights import convert_weights
from smmil.packaging import load_package, write_package, writing
from smmil.predict import load_trained
from smmil.prediction import load_predictions
from smmil.weights import save_weights


def header(package: Path) -> dict:
    _, text, _ = (package / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(text)


def test_the_weights_come_back_bit_for_bit(road, package):
    before, after = load_trained(road.run), load_package(package, trust_code=True)
    stored = before.model.state_dict()
    assert stored.keys() == after.model.state_dict().keys()
    assert all(torch.equal(value, stored[name]) for name, value in after.model.state_dict().items())
    assert after.trained.weights == before.weights
    assert not after.model.training


def test_config_names_model_training_and_the_source_of_the_features(road, package):
    config, trained = read_json(package / "config.json"), load_trained(road.run)
    assert config["smmil_version"] == __version__
    shape = {key: config["model"][key] for key in ("name", "options", "in_dim", "n_classes")}
    assert shape == {"name": "sm_ap", "options": {"dim": 8, "att_dim": 4}, "in_dim": 3, "n_classes": 1}
    assert config["model"]["classes"] == ["negative", "positive"]
    assert config["weights"] == trained.weights
    hashes = config["training"]["hashes"]
    assert (hashes["config"], hashes["split"]) == (trained.facts["config"], trained.facts["split"])
    assert config["training"]["settings"]["lr"] == 1e-2
    facts = config["features"]
    assert (facts["encoder_name"], facts["encoder_weights"], facts["encoder_licence"]) == ("mean", "1", "none")
    assert facts["recipe"] == trained.facts["features"]["recipe"]


def test_sizes_labels_and_patients_of_the_parts_are_counted(road, package):
    sizes, split = read_json(package / "config.json")["training"]["cases"], read_json(road.run / "split.json")
    for part, ids in split.items():
        odd = sum(int(id_.rpartition("_")[2]) % 2 for id_ in ids)
        labels = {label: n for label, n in (("0", len(ids) - odd), ("1", odd)) if n}
        assert sizes[part] == {"cases": len(ids), "patients": len(ids), "labels": labels}


def test_metrics_of_the_card_are_those_of_evaluate(road, package):
    (result,) = header(package)["model-index"][0]["results"]
    told = {row["name"]: row for row in result["metrics"]}
    predictions = load_predictions(road.test)
    expected = bag_metrics(predictions)
    assert told["AUROC of cases"]["value"] == expected["auroc"]
    assert told["accuracy of cases"]["value"] == expected["accuracy"]
    brier = bootstrap_ci(predictions, "bag_brier", n=50)
    assert told["Brier score of cases (lower is better)"]["value"] == pytest.approx(expected["brier"], abs=1e-15)
    ends = told["Brier score of cases (lower is better)"]["args"]
    assert brier["shortage"] == "3 patients"
    assert (ends["ci_low"], ends["ci_high"]) == ("– (3 patients)", "– (3 patients)")
    text = (package / "README.md").read_text()
    cells = f"{expected['brier']:.4f} | – (3 patients)"
    assert f"| Brier score of cases (lower is better) | {cells} |" in text


def test_the_hub_reads_the_header(package):
    found = header(package)
    assert found["license"] == "other"
    assert found["library_name"] == "smmil"
    assert {"smmil", "multiple-instance-learning", "pathology"} <= set(found["tags"])
    (entry,) = found["model-index"]
    assert entry["name"] == read_json(package / "config.json")["name"]
    assert {"task", "dataset", "metrics"} <= entry["results"][0].keys()


def test_the_card_says_what_it_is_not_for_and_what_scores_mean(package):
    text = (package / "README.md").read_text()
    assert "Research use only. Not a medical device" in text
    assert "attention logit" in text
    assert "smmil predict --model FOLDER slide.svs" in text
    assert "| train |" in text


def test_no_patient_case_folder_computer_or_person_is_told(road, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "station-radiologie-7")
    monkeypatch.setattr(platform, "node", lambda: "station-radiologie-7")
    for variable in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(variable, "dr-eva-planted")
    write_package(road.run, tmp_path / "p", predictions=road.test, resamples=50)
    words = [PATIENT, "Meier", "1931", CASE, FOLDER, "geheim", str(road.root), str(Path.home()), os.getcwd()]
    for path in (tmp_path / "p").iterdir():
        for word in (*words, "station-radiologie-7", "dr-eva-planted"):
            assert word.lower().encode() not in path.read_bytes().lower(), (path.name, word)


def test_only_chosen_facts_of_the_settings_are_told(package):
    training = read_json(package / "config.json")["training"]
    assert training["split"].keys() == {"fold", "folds", "val_share", "test_share", "split_seed"}
    assert not training["settings"].keys() & {"device", "workers", "tensorboard", "checkpoint_minutes"}
    assert training["hashes"].keys() == {"config", "split", "manifest"}


def test_texts_of_an_encoder_lose_their_folders(road, monkeypatch, tmp_path):
    from smmil.packaging import facts

    stated = facts.read_provenance(road.root / "study" / "bags" / f"{CASE}_0.h5")
    stated["encoder_facts"]["source"] = "weights from /home/eva/models/mean.pt"
    monkeypatch.setattr(facts, "read_provenance", lambda _: stated)
    write_package(road.run, tmp_path / "p")
    assert read_json(tmp_path / "p" / "config.json")["features"]["encoder_facts"]["source"] == "weights from mean.pt"


def test_predictions_of_other_weights_are_refused(road, tmp_path):
    shutil.copytree(road.run, tmp_path / "run")
    other = load_trained(road.run)
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    save_weights(tmp_path / "run" / "checkpoints" / "best.safetensors", other.model.state_dict(), other.facts)
    with pytest.raises(DataError, match="3 of 3 predictions were made by other weights"):
        write_package(tmp_path / "run", tmp_path / "p", predictions=road.test)
    assert not (tmp_path / "p").exists()


def test_numbers_on_training_cases_are_called_too_good(road, tmp_path):
    from smmil.predict import predict_run

    predict_run(road.run, out=tmp_path / "train", part="train")
    write_package(road.run, tmp_path / "p", predictions=tmp_path / "train", resamples=50)
    assert "used in training: the numbers are too good" in (tmp_path / "p" / "README.md").read_text()
    assert not header(tmp_path / "p").keys() & {"model-index", "metrics"}


def test_a_run_that_is_not_finished_is_refused(road, tmp_path):
    shutil.copytree(road.run, tmp_path / "run")
    write_json(tmp_path / "run" / "run.json", read_json(road.run / "run.json") | {"status": "interrupted"})
    with pytest.raises(DataError, match="the run is interrupted, not finished"):
        write_package(tmp_path / "run", tmp_path / "p")


def test_bags_that_are_gone_are_a_remark_and_no_recipe(road, tmp_path):
    shutil.copytree(road.root, tmp_path / "moved")
    run = tmp_path / "moved" / road.run.name
    config = load_config(run / "config.yaml")
    (run / "config.yaml").write_text(
        (run / "config.yaml").read_text().replace(config.data.manifest, str(tmp_path / "gone.csv"))
    )
    done = write_package(run, tmp_path / "p")
    assert "recipe.json" not in done.files
    assert any("no recipe.json" in note for note in done.notes)
    assert read_json(tmp_path / "p" / "config.json")["training"]["cases"]["train"] == {"cases": 4}


def test_a_model_trained_elsewhere_is_packaged_without_claims(tmp_path):
    from smmil.models import create_model

    (tmp_path / "dsmil").mkdir()
    model = create_model("dsmil", 6, average=False)
    theirs = {
        "i_classifier.fc.weight": model.instance.weight,
        "i_classifier.fc.bias": model.instance.bias,
        "b_classifier.q.0.weight": model.query[0].weight,
        "b_classifier.q.0.bias": model.query[0].bias,
        "b_classifier.q.2.weight": model.query[2].weight,
        "b_classifier.q.2.bias": model.query[2].bias,
        "b_classifier.fcc.weight": model.head.weight[..., None].reshape(1, 1, 6),
        "b_classifier.fcc.bias": model.head.bias,
    }
    torch.save({k: v.detach() for k, v in theirs.items()}, tmp_path / "theirs.pt")
    convert_weights(tmp_path / "theirs.pt", "dsmil", tmp_path / "dsmil")
    write_package(tmp_path / "dsmil", tmp_path / "p")
    assert "trained outside smmil" in (tmp_path / "p" / "README.md").read_text()
    assert load_package(tmp_path / "p").config["training"]["cases"] == {}


def test_the_same_run_gives_the_same_bytes(road, package, tmp_path):
    write_package(road.run, tmp_path / "again", predictions=road.test, resamples=50)
    for path in package.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


class TestTheFolder:
    def test_whoever_may_read_the_card_may_read_the_weights(self, package):
        assert len({path.stat().st_mode for path in package.iterdir()}) == 1

    def test_a_folder_with_something_else_in_it_is_never_touched(self, road, tmp_path):
        (tmp_path / "thesis.txt").write_text("years of work")
        for force in (False, True):
            with pytest.raises(DataError, match="is not empty and no package of smmil"):
                write_package(road.run, tmp_path, force=force)
        assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]

    def test_a_package_of_the_same_run_is_replaced_only_by_force(self, road, tmp_path):
        write_package(road.run, tmp_path / "p")
        with pytest.raises(DataError, match="--force to replace it"):
            write_package(road.run, tmp_path / "p")
        write_package(road.run, tmp_path / "p", name="second", force=True)
        assert read_json(tmp_path / "p" / "config.json")["name"] == "second"
        assert [p.name for p in tmp_path.iterdir()] == ["p"]

    def test_a_package_of_another_run_is_not_replaced_even_by_force(self, road, tmp_path):
        write_package(road.run, tmp_path / "p")
        config = read_json(tmp_path / "p" / "config.json")
        write_json(tmp_path / "p" / "config.json", config | {"run": "0" * 64})
        with pytest.raises(DataError, match="package of another run"):
            write_package(road.run, tmp_path / "p", force=True)

    @pytest.mark.parametrize("step", ["save_weights", "write_json", "_model_card", "_write_sums"])
    def test_an_interruption_leaves_no_half_folder(self, road, tmp_path, monkeypatch, step):
        def stop(*_args, **_options):
            raise KeyboardInterrupt

        monkeypatch.setattr(writing, step, stop)
        with pytest.raises(KeyboardInterrupt):
            write_package(road.run, tmp_path / "p")
        assert list(tmp_path.iterdir()) == []

    def test_an_interruption_leaves_the_package_that_was_there(self, road, tmp_path, monkeypatch):
        write_package(road.run, tmp_path / "p")
        before = {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()}
        monkeypatch.setattr(writing, "_write_sums", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_package(road.run, tmp_path / "p", name="second", force=True)
        assert {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()} == before
        assert [p.name for p in tmp_path.iterdir()] == ["p"]

    def test_what_a_killed_process_left_is_removed_and_nothing_else(self, road, tmp_path):
        killed, living = tmp_path / ".smmil-tmp-1-ab-p", temporary_path(tmp_path / "p")
        for folder in (killed, living, tmp_path / ".smmil-other"):
            folder.mkdir()
        write_package(road.run, tmp_path / "p")
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted([living.name, ".smmil-other", "p"])

    def test_an_interruption_between_two_renames_brings_the_old_package_back(self, road, tmp_path, monkeypatch):
        write_package(road.run, tmp_path / "p")
        rename, steps = os.replace, []

        def stop(a, b):
            steps.append(b)
            if Path(b) == tmp_path / "p" and len(steps) > 1 and Path(steps[-2]).parent == tmp_path:
                monkeypatch.undo()
                raise KeyboardInterrupt
            rename(a, b)

        monkeypatch.setattr(writing.os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            write_package(road.run, tmp_path / "p", name="second", force=True)
        assert [p.name for p in tmp_path.iterdir()] == ["p"]
        assert json.loads((tmp_path / "p" / "config.json").read_text())["name"] != "second"


def test_options_that_name_a_folder_are_refused():
    from smmil.redact import refuse_folders

    assert refuse_folders({"sm": {"where": "early"}, "dims": (1, 2)}, "options") == {
        "sm": {"where": "early"},
        "dims": (1, 2),
    }
    for value in ("/home/eva/x.pt", "C:\\Users\\eva\\x", "~/secret/x", "file:///srv/x", "see </home/eva/x>"):
        with pytest.raises(DataError, match="options: names a folder"):
            refuse_folders({"path": value}, "options")


def test_config_is_plain_json_without_nan(package):
    json.loads((package / "config.json").read_text(), parse_constant=lambda c: pytest.fail(c))
