"""What a file says of a case that drifted, alone or with its folder: no promise, a warning, and a name of its own."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.export_command import run
from support.export_makers import scan_case
from support.lesion_cases import META, slide_case
from support.viewer_cases import client_of

from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.calibration import calibrate
from smmil.evaluate.folder_drift import folder_drift, promise_of_cases
from smmil.exports import FORMATS, export
from smmil.prediction import Prediction, load_predictions
from smmil.viewer.data import ViewerData

USUAL = (0.4, 0.9, 0.6, 0.3, 0.7, 0.5)  # p-values of a folder like the training cases
LOW = (1 / 31, 1 / 31, 0.1, 0.12, 0.08, 0.09)  # a folder that differs, of which two cases raise the alarm
ALONE = "No promise for this case: it looks unlike"
TOGETHER = "No promise for this case: as a whole the cases beside which it was predicted look unlike"


@pytest.fixture(scope="module")
def made():
    return calibrate([slide_case(f"c{i}", i) for i in range(12)])


def compared(case, p):
    alarm = p <= 0.05
    why = ["look"] if alarm else []
    drift = {"p": p, "alarm": alarm, "share": 0.4, "level": 0.05, "patients": 30, "why": why, "digest": "d"}
    return replace(case, meta={**case.meta, "drift": drift})


def folder_of(place, ranks, made=None):
    """Cases s0 … in a folder, compared with a drift summary at these p-values; calibrated if `made` is given."""
    for i, p in enumerate(ranks):
        case = compared(slide_case(f"s{i}", 30 + i, y=i % 2), p)
        (case if made is None else made.applied(case)).save(place / f"s{i}.npz")
    return place


def said(path):
    return json.loads(path.read_text())["smmil"]


def test_a_folder_that_differs_withdraws_the_promise_in_the_file_of_every_case(made, tmp_path):
    source = folder_of(tmp_path / "in", LOW, made)
    verdict = folder_drift(load_predictions(source))
    assert (verdict.alarm, verdict.alarmed) == (True, 2)
    told = run(source, "--to", "geojson", "--out", tmp_path / "out")
    assert made.sentence not in told
    for i, p in enumerate(LOW):
        facts = said(tmp_path / "out" / f"s{i}.geojson")
        assert facts["promise"].startswith(ALONE if p <= 0.05 else TOGETHER)
        assert facts["threshold"] == made.threshold
        assert facts["warning"] == (applied_drift(Prediction.load(source / f"s{i}.npz")).text or verdict.text)
        assert made.sentence not in (tmp_path / "out" / f"s{i}.geojson").read_text()


def test_one_file_or_some_of_a_folder_that_differs_say_what_the_whole_folder_does(made, tmp_path):
    source = folder_of(tmp_path / "in", LOW, made)
    run(source, "--to", "csv", "--out", tmp_path / "all")
    run(source / "s3.npz", "--to", "csv", "--out", tmp_path / "s3.csv")
    run(source / "s4.npz", source / "s5.npz", "--to", "csv", "--out", tmp_path / "some")
    assert (tmp_path / "s3.csv").read_bytes() == (tmp_path / "all" / "s3.csv").read_bytes()
    assert (tmp_path / "some" / "s5.csv").read_bytes() == (tmp_path / "all" / "s5.csv").read_bytes()
    assert pd.read_csv(tmp_path / "s3.csv")["promise"].str.startswith(TOGETHER).all()
    (source / "s0.npz").write_bytes(b"damaged")  # takes no part in the test
    run(source / "s3.npz", "--to", "csv", "--out", tmp_path / "again.csv")
    assert pd.read_csv(tmp_path / "again.csv")["promise"].str.startswith(TOGETHER).all()


def test_folders_are_judged_apart_and_a_usual_one_keeps_its_promise(made, tmp_path):
    usual = folder_of(tmp_path / "usual", USUAL, made)
    other = compared(made.applied(slide_case("other", 50)), 0.3)
    other.save(folder_of(tmp_path / "low", LOW, made) / "other.npz")
    run(usual, tmp_path / "low" / "other.npz", "--to", "geojson", "--out", tmp_path / "out")
    for i in range(len(USUAL)):
        assert said(tmp_path / "out" / f"s{i}.geojson")["promise"].startswith(made.sentence)
        assert "warning" not in said(tmp_path / "out" / f"s{i}.geojson")
    assert said(tmp_path / "out" / "other.geojson")["promise"].startswith(TOGETHER)


def test_the_download_of_the_viewer_says_what_the_export_says(made, tmp_path):
    source = folder_of(tmp_path / "in", LOW, made)
    client = client_of(ViewerData.read([source]))
    for i in (0, 3):
        file = client.get(f"/export/{i}/0/geojson?threshold={made.threshold!r}")
        assert file.status_code == 200, file.text
        run(source / f"s{i}.npz", "--to", "geojson", "--out", tmp_path / f"s{i}.geojson")
        expected = said(tmp_path / f"s{i}.geojson")
        found = file.json()["smmil"]
        assert [found[key] for key in ("promise", "warning")] == [expected[key] for key in ("promise", "warning")]


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_alarm_is_written_without_a_calibration_and_at_another_threshold(made, tmp_path, calibrated):
    source = folder_of(tmp_path / "in", (1 / 31, *USUAL), made if calibrated else None)
    assert not folder_drift(load_predictions(source)).alarm
    text = applied_drift(Prediction.load(source / "s0.npz")).text
    told = run(source, "--to", "csv", "--threshold", "99", "--out", tmp_path / "out")
    assert "under warning (1 case)" in " ".join(told.split())
    alarmed, other = (pd.read_csv(tmp_path / "out" / f"s{i}.csv") for i in (0, 1))
    assert (alarmed["warning"] == text).all()
    assert "warning" not in other
    assert not {"promise"} & {*alarmed, *other}


def test_scans_carry_the_warning_and_another_layer_replaces_no_scores(tmp_path):
    nibabel = pytest.importorskip("nibabel", reason="needs NIfTI: pip install 'smmil[ct]'")
    image, _, case = scan_case(tmp_path / "ct")
    case = compared(replace(case, uncertainty=np.linspace(1, 2, case.n, dtype=np.float32)), 1 / 31)
    case.save(tmp_path / "in" / "a.npz")
    (tmp_path / "out").mkdir()
    words = (tmp_path / "in" / "a.npz", "--to", "nifti", "--image", image, "--out", tmp_path / "out")
    run(*words)
    scores = (tmp_path / "out" / "scan_heat.nii.gz").read_bytes()
    run(*words, "--layer", "uncertainty")
    assert (tmp_path / "out" / "scan_heat.nii.gz").read_bytes() == scores
    for name, highest in (("scan_heat", case.scores.max()), ("scan_uncertainty", 2.0)):
        found = nibabel.load(tmp_path / "out" / f"{name}.nii.gz")
        assert np.nanmax(found.get_fdata()) == pytest.approx(highest)
        facts = json.loads(found.header.extensions[0].get_content().rstrip(b"\0"))
        assert facts["warning"] == applied_drift(case).text


@pytest.mark.parametrize(
    ("to", "ending"), [("geojson", ".geojson"), ("csv", ".csv"), ("tiff", ".tif"), ("png", ".png")]
)
def test_several_cases_name_the_layer_in_every_format(tmp_path, to, ending):
    for i in range(2):
        case = replace(slide_case(f"s{i}", i), meta=META)
        replace(case, uncertainty=np.ones(case.n, np.float32)).save(tmp_path / "in" / f"{i}.npz")
    export(tmp_path / "in", to, tmp_path / "out")
    export(tmp_path / "in", to, tmp_path / "out", layer="uncertainty")
    names = {path.name for path in (tmp_path / "out").iterdir()} - {"export_failures.csv"}
    assert names == {f"s{i}{layer}{FORMATS[to].endings[0]}" for i in range(2) for layer in ("", "_uncertainty")}


def test_a_promise_for_many_cases_counts_those_that_lost_it():
    def words(*ranks):
        cases = [compared(Prediction(f"s{i}", [0.5], [1.0]), p) for i, p in enumerate(ranks)]
        return promise_of_cases("Kept.", folder_drift(cases), len(cases))

    assert words(*USUAL) == "Kept."
    assert words(1 / 31, *USUAL).startswith("Kept. The promise does not hold for 1 of these 7 cases: it looks unlike")
    assert words(*LOW).startswith("No promise: as a whole these cases look unlike")
    bare = folder_drift([compared(Prediction("a", [0.5], [1.0]), 1 / 31)])._replace(alarm=False)
    assert promise_of_cases("Kept.", bare, 1).startswith("No promise: this case looks unlike")
    assert promise_of_cases("Kept.", bare, 2).startswith("Kept. The promise does not hold for 1 of these 2 cases")
    assert promise_of_cases("Kept.", None, 2) == "Kept."
