"""Plausible mistakes of a new user: one line that says what to do, and nothing written."""

import sys

import numpy as np
import pytest
from support import prepare_makers as makers

import smmil.cli
from smmil.cli.options import _check_place
from smmil.errors import ConfigError
from smmil.prediction import Prediction
from smmil.synthetic import synthetic_slides, write_synthetic

# Words of the command line, and what the answer must say.
MISTAKES = [
    ("prepare slides --out labels.csv --labels labels.csv", "labels.csv: is a file where a folder is needed"),
    ("prepare set/bags --out o", "slide_0000.h5 holds features already, which a manifest brings to smmil train"),
    ("prepare labels.csv --out o", "labels.csv: no slide or scan; give images or folders of them"),
    ("prepare slides --labels set/manifest.csv --out o", "slide_0000.h5: holds features or predictions, not pixels"),
    ("prepare slides --labels semicolons.csv --out o", "separated by semicolons (';')"),
    ("train --manifest set/manifest.csv --out o", "no model; give --model sm_ap"),
    ("train --manifest labels.csv --model abmil --out o", "smmil prepare IMAGES --labels labels.csv --out study"),
    ("train set/manifest.csv --model abmil --out o", "is a table, not a config; give it with --manifest"),
    (
        "train --manifest exams.csv --model abmil --out o",
        "the table has exam, finding; rename the one that names the cases",
    ),
    ("train --manifest set/manifest.csv --model abmil --out o --set epochs=3", "expected training.epochs=3"),
    ("train --manifest set/manifest.csv --model abmil --out o --weight-decay 3", "give --set training.weight_decay=…"),
    (
        "train --manifest set/manifest.csv --model abmil --out o --lr 1 --set training.lr=2",
        "is given twice, as 1.0 and",
    ),
    (
        "prepare slides --labels exams.csv --out o",
        "rename the one that names the cases to id, or name it with --id-column",
    ),
    ("prepare slides --labels exams.csv --id-column exma --out o", "no column 'exma' (--id-column); did you mean exam"),
    (
        "prepare slides --labels exams.csv --id-column exam --label-column finding --out o",
        "take them as --class NEGATIVE_WORD",
    ),
    ("prepare slides --id-column exam --out o", "need a table; give --labels"),
    ("source features set/bags --table exams.csv --out o", "or name it with --id-column"),
    ("source features set/bags --table exams.csv --id-column exam --out o", "or name it with --label-column"),
    ("source folder slides --table labels.csv --class a --out o", "--class: is not for the data set folder"),
    ("train --manifest set --model abmil --out o", "is a folder; give the table in it"),
    ("convert slides --to native --out o", "pixels of slides, not features; use smmil prepare"),
    ("convert slides/s0.svs --to native --out o", "pixels of slides, not features; use smmil prepare"),
    ("convert predictions --to native --out o", "holds predictions, not features; use smmil evaluate"),
    ("convert-weights set --from clam --out o", "set: is a folder; give the file in it"),
    ("convert-weights labels.csv --from clam --out o", "it is no checkpoint, is damaged, or holds more than weights"),
    ("evaluate predictions --json set", "set: is a folder where a file is to be written"),
    ("source rsna_ich slides --out o", "stage_2_train.csv: no such file; it belongs to the data set"),
    ("source folder slides --table labels.csv --task isup --out o", "--task: is not for the data set folder"),
    ("experiment run absent.yaml --out o", "absent.yaml: no such file; give the YAML file of a study"),
    ("experiment run absent.yaml --out o --workers 2", "--workers: the executor serial works alone"),
    ("experiment trust absent.yaml --out o --workers 0", "--workers: must be at least 1, got 0"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    makers.write_slide(folder / "slides" / "s0.svs", makers.speckled(0))
    (folder / "labels.csv").write_text("id,label\ns0,1\n")
    (folder / "exams.csv").write_text("exam,finding\ns0,sick\ns1,well\n")
    (folder / "semicolons.csv").write_text("id;label\ns0;1\n")
    write_synthetic(folder / "set", synthetic_slides(2, size=(12, 20), dim=5))
    Prediction("a", [0.5], np.zeros(4), y=1).save(folder / "predictions" / "a.npz")
    return folder


def call(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["smmil", *words])
    with pytest.raises(SystemExit) as left:
        smmil.cli.main()
    told = capsys.readouterr()
    return left.value.code or 0, told.out, told.err


@pytest.mark.parametrize(("words", "answer"), MISTAKES)
def test_a_mistake_is_answered_in_one_line_and_leaves_nothing(place, monkeypatch, capsys, words, answer):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    code, _, noted = call(monkeypatch, capsys, words.split())
    assert code == 2
    assert answer in noted
    assert noted.splitlines()[-1].startswith("error: ")
    assert sorted(place.rglob("*")) == before


def test_labels_of_no_case_and_labels_without_a_place_are_told(place, tmp_path, monkeypatch, capsys):
    words = ["convert", str(place / "set" / "bags"), "--to", "native", "--out", str(tmp_path / "out"), "--labels"]
    _, _, noted = call(monkeypatch, capsys, [*words, str(place / "labels.csv")])
    assert "labels.csv: 1 of 1 ids are no case here, such as s0" in noted
    _, told, _ = call(monkeypatch, capsys, [*words, str(place / "set" / "manifest.csv")])
    assert "those of 2 cases are in" in told
    assert (tmp_path / "out" / "convert_labels.csv").exists()


def test_paragraphs_of_the_help_flow(monkeypatch, capsys):
    """A paragraph is broken by the terminal alone: at 200 columns its sentences stand in one line."""
    monkeypatch.setenv("COLUMNS", "200")
    _, shown, _ = call(monkeypatch, capsys, ["prepare", "--help"])
    assert "A run can be stopped at any time and repeated" in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("processes", 0, None), "--workers: must be at least 1, got 0"),
        (("serial", 2, None), "--workers: the executor serial works alone"),
        (("processes", None, "tcp://x:1"), "--dask: is for the executor dask, not processes"),
        (("dask", 2, "tcp://x:1"), "--workers: the cluster at --dask has its own"),
        (("dask", None, None, ["timeout_min=5"]), "--slurm: is for the executor submitit, not dask"),
    ],
)
def test_options_that_the_executor_would_pass_over_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        _check_place(*given)


@pytest.mark.parametrize("given", [("auto", 2, None), ("auto", None, "tcp://x:1"), ("dask", 2, None),
                                   ("submitit", None, None, ["a=1"]), ("serial", None, None)])  # fmt: skip
def test_options_that_the_executor_takes_are_let_pass(given):
    _check_place(*given)
