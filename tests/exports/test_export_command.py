"""smmil export: files and folders in, files and folders out, mistakes in one line."""

import json

import numpy as np
import pandas as pd
import pytest
from support.export_command import run, tile_case
from support.export_makers import META, scan_case, slide_case

from smmil.errors import ConfigError, DataError, SmmilError
from smmil.exports import FORMATS
from smmil.exports import export as export_predictions
from smmil.frame import Frame
from smmil.prediction import Prediction

ODD_IDS = (
    '"; DROP <b>',
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "..",
    "a/b\\c",
    "C:\\x|y?*",
    "Müller 日本 🦠",
    "line\nbreak\ttab",
    "%2e%2e%2f",
    "=1+1",
    "x" * 400,
    "nul\x00byte",
    ".hidden",
    "{{7*7}}",
)


def test_every_format_of_the_library_is_offered():
    listed = [line.split()[0] for line in run("--formats").splitlines() if line[1:2].strip()]
    assert listed == ["--to", *FORMATS]


def test_one_prediction_gives_the_file_that_was_named(tmp_path):
    tile_case().save(tmp_path / "c.npz")
    out = run(tmp_path / "c.npz", "--to", "geojson", "--out", tmp_path / "deep" / "er.geojson", "--threshold", "1.5")
    assert "1 written, 0 failed" in out
    assert "bounds are unknown" in out
    assert len(json.loads((tmp_path / "deep" / "er.geojson").read_text())["features"]) == 3
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["er.geojson"]


def test_an_existing_folder_gets_a_file_named_after_the_case(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    prediction.save(tmp_path / "p.npz")
    (tmp_path / "out").mkdir()
    run(tmp_path / "p.npz", "--to", "nifti", "--image", folder, "--out", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["scan_heat.nii.gz"]


def test_a_folder_of_odd_ids_gives_one_file_each_and_nothing_elsewhere(tmp_path):
    for number, id_ in enumerate(ODD_IDS):
        tile_case(id_).save(tmp_path / "in" / f"{number}.npz")
    run(tmp_path / "in", "--to", "csv", "--out", tmp_path / "box" / "out")
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".npz")
    assert len(files) == len(ODD_IDS)
    assert {p.parent for p in files} == {tmp_path / "box" / "out"}
    found = {pd.read_csv(p, keep_default_na=False)["bag"][0] for p in files if "nul" not in p.name}
    shown = {"=1+1": "'=1+1"}
    assert found >= {shown.get(id_, id_) for id_ in ODD_IDS if "\x00" not in id_ and "\n" not in id_}


@pytest.mark.parametrize("id_", ODD_IDS)
def test_odd_ids_do_no_harm_to_any_format(tmp_path, id_):
    for to in ("geojson", "tiff", "parquet", "png"):
        done = export_predictions(tile_case(id_), to, tmp_path)
        assert done.written[0].parent == tmp_path
        assert done.written[0].stat().st_size > 0
    content = json.loads(next(tmp_path.glob("*.geojson")).read_text())
    assert content["smmil"]["case"] == id_


def test_odd_names_of_models_do_no_harm_to_dicom_and_nifti(tmp_path):
    folder, _, prediction = scan_case(tmp_path / "ct")
    for number, name in enumerate(ODD_IDS):
        meta = {**META, "model": name, "score_kind": name}
        odd = Prediction(**{**vars(prediction), "id": name, "meta": meta})
        export_predictions(odd, "dicom-pm", tmp_path / f"{number}.dcm", image=folder)
        export_predictions(odd, "nifti", tmp_path / f"{number}.nii.gz", image=folder)


def test_several_cases_find_their_images_by_name_and_the_failures_are_listed(tmp_path):
    for name in ("a", "b"):
        _, _, prediction = scan_case(tmp_path / "scans" / name)
        Prediction(**{**vars(prediction), "id": name}).save(tmp_path / "in" / f"{name}.npz")
    Prediction(**{**vars(prediction), "id": "../scans/a"}).save(tmp_path / "in" / "c.npz")
    out = run(tmp_path / "in", "--to", "nifti", "--image", tmp_path / "scans", "--out", tmp_path / "out", code=3)
    assert "2 written, 1 failed" in out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"a_heat.nii.gz", "b_heat.nii.gz", "export_failures.csv"}
    failures = pd.read_csv(tmp_path / "out" / "export_failures.csv")
    assert failures["id"].tolist() == ["../scans/a"]
    assert "no image of this name" in failures["reason"][0]


def test_the_slide_itself_is_never_overwritten(tmp_path):
    path, prediction = slide_case(tmp_path / "slides", "generic")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="this is the image itself"):
        export_predictions(prediction, "tiff", path, image=path)
    for name in ("slide", "other"):
        Prediction(**{**vars(prediction), "id": name}).save(tmp_path / "in" / f"{name}.npz")
    done = export_predictions(tmp_path / "in", "tiff", tmp_path / "slides", image=tmp_path / "slides")
    assert "this is the image itself" in done.failed["slide"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "nifti", "--out", "x.nii.gz"], r"--to nifti: needs --image"),
        (["--to", "dicom-pm", "--out", "x.dcm"], r"--to dicom-pm: needs --image"),
        (["--to", "dicom-seg", "--out", "x.dcm", "--image", "."], r"--to dicom-seg: needs --threshold"),
        (
            ["--to", "tiff", "--out", "x.tif", "--threshold", "1"],
            r"--threshold 1.0: tiff has no use for it; it is for g",
        ),
        (["--to", "csv", "--out", "x.csv", "--size", "100"], r"--size 100: csv has no use for it; it is for png"),
        (["--to", "png", "--out", "x.png", "--size", "3"], r"--size 3: must be from 16 to 20000 pixels"),
        (["--to", "csv", "--out", "x.csv", "--threshold", "nan"], r"--threshold nan: must be a finite number"),
        (["--to", "csv", "--out", "x.png"], r"--out x.png: a csv file ends with .csv; or name an existing folder"),
        (["--to", "csv", "--out", "x.csv", "--image", "nowhere"], r"--image nowhere: no such file or folder"),
        (["--to", "csv", "--out", "x.csv", "--no-deidentify"], r"--no-deidentify: csv has no use for it; it is for d"),
        (["--to", "nifti", "--out", "x.nii", "--image", ".", "--no-deidentify"], r"--no-deidentify: nifti has no use"),
        (["--to", "csv", "--out", "x.csv", "--replace-uids"], r"--replace-uids: is part of the de-identification"),
        (["--to", "csv", "--out", "x.csv", "--column", "4"], r"column 4 does not exist"),
    ],
)
def test_bad_options_are_explained_in_one_line(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    tile_case().save(tmp_path / "c.npz")
    with pytest.raises(SmmilError, match=message) as problem:
        run("c.npz", *options)
    assert "\n" not in str(problem.value)
    assert [p.name for p in tmp_path.iterdir()] == ["c.npz"]


def test_several_predictions_do_not_fit_into_one_file(tmp_path):
    for name in "ab":
        tile_case(name).save(tmp_path / "in" / f"{name}.npz")
    (tmp_path / "x.csv").write_text("mine")
    with pytest.raises(ConfigError, match="2 predictions need a folder, and this is a file"):
        run(tmp_path / "in", "--to", "csv", "--out", tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == "mine"


def test_a_failed_export_leaves_the_old_file(tmp_path):
    (tmp_path / "x.geojson").write_text("old")
    with pytest.raises(DataError):
        export_predictions(Prediction("c", [0.5], [1.0]), "geojson", tmp_path / "x.geojson")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x.geojson", "old")]


def test_an_unknown_format_gets_a_suggestion(tmp_path):
    with pytest.raises(ConfigError, match="did you mean nifti"):
        export_predictions(tile_case(), "nifty", tmp_path / "x")


def test_importing_exports_brings_no_heavy_library():
    import subprocess
    import sys

    heavy = ("torch", "highdicom", "pydicom", "nibabel", "tifffile", "shapely", "matplotlib", "openslide", "pandas")
    code = f"import sys, smmil.exports; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_of_two_score_columns_the_second_counts(tmp_path):
    two = Prediction("c", [0.5], np.array([[9.0, 1.0], [9.0, 2.0]]), coords=[[0, 0], [8, 0]], frame=Frame((8, 8)))
    export_predictions(two, "csv", tmp_path / "a.csv")
    assert pd.read_csv(tmp_path / "a.csv")["score"].tolist() == [1, 2]
