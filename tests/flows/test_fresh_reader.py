"""What stopped readers who had only the site: patch folders, next commands, words where numbers are missing."""

import numpy as np
import pytest
from PIL import Image
from support.roads import smmil as run_smmil
from typer.testing import CliRunner

from smmil.cli import app
from smmil.data.sources.patches import patches
from smmil.errors import DataError
from smmil.evaluate.prior import _in_words
from smmil.prediction import Prediction
from smmil.prepare.table import find_sources, patch_folder_note
from smmil.synthetic import synthetic_slides, write_synthetic


def write_patches(folder, names, side=50):
    """Small pictures of these names below a folder."""
    for n, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((side, side, 3), n % 200, np.uint8)).save(folder / name)
    return folder


def lattice(case, folder, side=50):
    return [f"{folder}/{case}_x{side * x}_y{side * y}_class{int(x == y)}.png" for x in range(6) for y in range(5)]


def split_file(folder, *cases):
    (folder / "split.csv").write_text("id,split\n" + "".join(f"{case},train\n" for case in cases))
    return folder / "split.csv"


def command(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize(
    ("names", "side", "told"),
    [
        (lattice("8863_idx5", "8863/0"), 50, "30 small pictures with places in their names"),
        ([f"p{n}.png" for n in range(200)], 50, "200 small pictures of at most 512 pixels"),
        ([f"p{n}.png" for n in range(199)], 50, None),
        (lattice("roi", "a"), 600, None),
    ],
)
def test_a_folder_of_patches_is_told_from_one_of_slides(tmp_path, names, side, told):
    folder = write_patches(tmp_path / "in", names, side)
    note = patch_folder_note([folder], find_sources([folder]))
    assert note is None if told is None else told in note and f"smmil source patches {folder}" in note


def test_prepare_stops_at_patches_unless_each_is_said_to_be_a_slide(tmp_path):
    folder = write_patches(tmp_path / "in", lattice("8863_idx5", "8863/0"))
    done = command("prepare", folder, "--out", tmp_path / "o", "--dry-run")
    assert "look like patches of slides" in str(done.exception)
    assert "--kind slide takes every picture" in str(done.exception)
    asked = command("prepare", folder, "--kind", "slide", "--mpp", "1", "--out", tmp_path / "o", "--dry-run")
    assert asked.exception is None or "patches" not in str(asked.exception)


def test_a_report_on_a_folder_of_patches_says_where_the_mosaics_are(tmp_path):
    Prediction("8863_idx5", [0.5], np.zeros(4), y=1).save(tmp_path / "p" / "a.npz")
    folder = write_patches(tmp_path / "in", lattice("8863_idx5", "8863/0"))
    done = command("report", tmp_path / "p", "--slides", folder, "--out", tmp_path / "r.html", "--resamples", "0")
    assert "holds patches, not slides; give --slides OUT/slides" in done.output


def test_folders_are_patients_when_their_cases_bear_their_names(tmp_path):
    names = [*lattice("8863_idx5", "8863/0"), *lattice("8863_idx6", "8863/1"), *lattice("8864_idx5", "8864/0")]
    split = split_file(tmp_path, "8863_idx5", "8863_idx6", "8864_idx5")
    made = patches(write_patches(tmp_path / "in", names), tmp_path / "o", split=split)
    assert made.groups == {"8863_idx5": "8863", "8863_idx6": "8863", "8864_idx5": "8864"}


def test_folders_of_classes_are_no_patients(tmp_path):
    folder = write_patches(tmp_path / "in", [*lattice("a", "0"), *lattice("b", "1")])
    made = patches(folder, tmp_path / "o", split=split_file(tmp_path, "a", "b"))
    assert made.groups == {"a": "a", "b": "b"}


def test_an_empty_folder_of_patches_is_said_to_be_empty(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match="no pictures here"):
        patches(tmp_path / "in", tmp_path / "o")


def test_training_warns_of_chance_and_predicting_counts_the_other_parts(tmp_path, monkeypatch):
    write_synthetic(tmp_path, synthetic_slides(20, seed=1, size=(12, 14), dim=4))
    monkeypatch.chdir(tmp_path)
    told = command(
        "train", "--manifest", "manifest.csv", "--model", "abmil", "--out", "run", "--epochs", 1, "--lr", 1e-6
    )
    assert "warning: " in told.output.splitlines()[-2]
    assert "do not read the maps yet" in told.output.splitlines()[-2]
    told = command("predict", "run", "--out", "predictions")
    assert "16 cases of other parts are left out (--part all" in told.output
    assert "other parts" not in command("predict", "run", "--out", "all", "--part", "all").output


def test_a_number_without_interval_is_followed_by_the_reason():
    known = {"shortage": "", "truth_p": 0.01, "difference_p": 0.01, "own_difference_p": 0.01}
    values = {"model": 1.0, "truth": 0.6, "own": 0.6, "difference": 0.4, "own_difference": 0.4, "residual": 0.9}
    ends = {f"{name}_{end}": value for name, value in values.items() for end in ("low", "high")}
    words = " ".join(
        _in_words({**known, **values, **ends, "model_low": np.nan, "model_high": np.nan}, True, "12 patients")
    )
    assert "within each case 1.000 (no interval, since it is the same in every resample)" in words
    assert "nan" not in words


def test_help_of_prepare_groups_its_options():
    text = run_smmil("prepare", "--help")
    places = [
        text.index(f"─ {title} ─")
        for title in ("Options", "Table of cases", "Encoder", "Slides", "Scans (CT, MR, stacks)")
    ]
    assert places == sorted(places)
