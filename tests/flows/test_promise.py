"""A promise on its whole way: held-out predictions, file, new predictions, exports, report, viewer, package."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.export_makers import slide_case
from support.lesion_cases import META, save_all
from support.lesion_cases import slide_case as lesion_case
from support.viewer_cases import client_of
from typer.testing import CliRunner

from smmil.cli import app
from smmil.errors import ConfigError, DataError
from smmil.evaluate.calibration import Calibration, calibrate
from smmil.evaluate.conformal import applied_calibration
from smmil.exports.batch import export
from smmil.packaging import load_package, write_package
from smmil.prediction import load_predictions
from smmil.report import write_report
from smmil.viewer.data import ViewerData

OLD = Path(__file__).parents[1] / "data_0_1"


def command(*arguments):
    found = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.npz")}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Predictions of all eight cases by a package, and the promise that they allow."""
    folder = tmp_path_factory.mktemp("promise")
    command("predict", "--model", OLD / "packages/sm_ap", OLD / "manifest.csv", "--out", folder / "held")
    said = command("calibrate", folder / "held", "--target", 0.34, "--out", folder / "calibration.json")
    assert "that the model had not seen" in said
    assert "is not recorded with them; it is supposed" in said  # a package knows the number of its cases only
    return folder


def test_the_run_that_trained_the_model_refuses_its_own_cases(held):
    again = ("calibrate", held / "held", "--target", 0.34, "--out", held / "no.json", "--run", OLD / "trained/sm_ap")
    with pytest.raises(DataError, match=r"trained the model or selected its weights, as \d of 8 did"):
        command(*again)
    assert not (held / "no.json").exists()
    parts = held / "parts"
    command("predict", OLD / "trained/sm_ap", "--manifest", OLD / "manifest.csv", "--out", parts)
    with pytest.raises(DataError, match="trained the model or selected its weights"):
        command("calibrate", parts, "--target", 0.34)


def test_new_predictions_carry_the_promise_and_are_kept_or_made_again(held, tmp_path):
    made = Calibration.load(held / "calibration.json")
    road = ("predict", "--model", OLD / "packages/sm_ap", OLD / "manifest.csv", "--out", tmp_path)
    assert "8 written" in command(*road)
    plain = content(tmp_path)
    assert plain == content(held / "held")
    promised = (*road, "--calibration", held / "calibration.json")
    said = command(*promised)
    assert "8 written" in said
    assert made.sentence in said
    for before, p in zip(load_predictions(held / "held"), load_predictions(tmp_path), strict=True):
        assert p.meta["calibration"]["threshold"] == made.threshold
        assert np.array_equal(before.probs, p.probs)
        assert {**p.meta, "calibration": None} == {**before.meta, "calibration": None}
    assert "0 written, 8 there already" in command(*promised)
    assert "8 written" in command(*promised, "--calibrated-probs")
    for p in load_predictions(tmp_path):
        assert p.positive_prob == p.meta["calibration"]["probability"]
    assert "8 written" in command(*road)
    assert content(tmp_path) == plain


def test_another_model_and_an_idle_option_are_refused(held, tmp_path):
    other = ("predict", "--model", OLD / "packages/abmil", OLD / "manifest.csv", "--out", tmp_path)
    with pytest.raises(ConfigError, match=r"calibration.json: calibrated for model 'sm_ap', but here it is 'abmil'"):
        command(*other, "--calibration", held / "calibration.json")
    with pytest.raises(ConfigError, match="--calibrated-probs: needs --calibration"):
        command(*other, "--calibrated-probs")
    assert not list(tmp_path.glob("*.npz"))


def test_a_package_takes_its_promise_along(held, tmp_path):
    run = Path(shutil.copytree(OLD / "trained/sm_ap", tmp_path / "run"))
    made = Calibration.load(held / "calibration.json")
    write_package(run, tmp_path / "package", calibration=held / "calibration.json")
    package = load_package(tmp_path / "package")
    assert package.calibration == made
    card = (tmp_path / "package/README.md").read_text()
    assert f"## What is promised\n\n{made.sentence} {made.conditions}" in card
    counts = f"{made.sets.patients[0]} of class 0, {made.sets.patients[1]} of class 1 calibrated it"
    share = f"at least {100 - 100 * made.sets.target:.0f} % of the patients of each class"
    assert f"{share}, on average over calibrations ({counts})" in card
    assert ("Too few patients had class" in card) == (None in made.sets.thresholds)
    said = command("predict", "--model", tmp_path / "package", OLD / "manifest.csv", "--out", tmp_path / "new")
    assert made.sentence in said
    assert all(applied_calibration(p).digest == made.digest for p in load_predictions(tmp_path / "new"))
    with pytest.raises(ConfigError, match="calibrated for model 'sm_ap', but here it is 'abmil'"):
        write_package(OLD / "trained/abmil", tmp_path / "other", calibration=held / "calibration.json")
    (tmp_path / "package/calibration.json").write_text("{}")
    with pytest.raises(DataError, match=r"calibration.json: is not the file that was packaged"):
        load_package(tmp_path / "package")


@pytest.fixture(scope="module")
def promised(tmp_path_factory):
    """Twelve slides read at a threshold that a calibration on other slides gave."""
    made = calibrate([lesion_case(f"c{i}", i) for i in range(12)])
    folder = tmp_path_factory.mktemp("new")
    (folder / "model").mkdir()
    cases = [made.applied(lesion_case(f"s{i:02}", 20 + i, y=int(i % 3 > 0))) for i in range(12)]
    save_all(folder / "model", cases)
    return folder, made, cases


def test_the_report_repeats_the_sentence_and_uses_the_threshold(promised):
    folder, made, cases = promised
    write_report([folder / "model"], folder / "report.html", resamples=0)
    page = (folder / "report.html").read_text(encoding="utf-8")
    note = page[page.index('class="hint promise"') :].split("</p>")[0]
    assert f"What is promised (model): {made.sentence}</strong>" in note.replace("&#39;", "'")
    conditions = page[page.index('class="hint conditions"') :].split("</p>")[0]
    assert made.conditions in conditions.replace("&#39;", "'")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert (data["models"][0]["threshold"], data["models"][0]["calibrated"]) == (made.threshold, True)
    row = page[page.index("Area to read at guaranteed 90 % sensitivity, negative cases") :].split("</tr>")[0]
    area = np.mean([np.mean(p.scores >= made.threshold) for p in cases if p.y == 0])
    assert f"{area:.3f}" in row
    mixed = [replace(p, id=f"m{i}", meta=META if i else p.meta) for i, p in enumerate(cases)]
    (folder / "mixed").mkdir()
    write_report([save_all(folder / "mixed", mixed)], folder / "mixed.html", resamples=0)
    assert "Nothing is promised (mixed): the cases carry different calibrations" in (folder / "mixed.html").read_text()
    (folder / "bare").mkdir()
    write_report([save_all(folder / "bare", [replace(p, meta=META) for p in cases])], folder / "b.html", resamples=0)
    assert "promised" not in (folder / "b.html").read_text(encoding="utf-8").split("<script")[0]


def test_the_viewer_begins_with_the_threshold_and_says_the_sentence(promised):
    folder, made, _ = promised
    client = client_of(ViewerData.read([folder / "model"]))
    assert client.get("/api/cases").json()["models"][0]["threshold"] == made.threshold
    assert f"model: {made.sentence} {made.conditions}" in client.get("/api/case/1").json()["notes"]
    chosen = client_of(ViewerData.read([folder / "model"], threshold=0.5)).get("/api/cases").json()
    assert chosen["models"][0]["threshold"] == 0.5


def test_exports_flag_at_the_threshold_and_repeat_the_sentence(promised, tmp_path):
    _, made, cases = promised
    done = export(cases[1], "csv", tmp_path / "a.csv")
    assert (cases[1].id, f"{made.sentence} {made.conditions}") in done.notes
    table = pd.read_csv(tmp_path / "a.csv")
    assert table["positive"].tolist() == (cases[1].scores[:, 0] >= made.threshold).tolist()
    assert table["probability"].to_numpy() == pytest.approx(made.instance(cases[1].scores[:, 0]), rel=1e-4)
    export(cases[1], "geojson", tmp_path / "a.geojson")
    about = json.loads((tmp_path / "a.geojson").read_text())["smmil"]
    assert about["threshold"] == made.threshold
    assert about["promise"].startswith(made.sentence)
    export(cases[1], "geojson", tmp_path / "b.geojson", threshold=99.0)
    assert "promise" not in json.loads((tmp_path / "b.geojson").read_text())["smmil"]
    export(replace(cases[1], meta=META), "csv", tmp_path / "c.csv")
    assert "positive" not in pd.read_csv(tmp_path / "c.csv")


def test_a_segment_needs_no_threshold_where_one_is_promised(promised, tmp_path):
    pytest.importorskip("highdicom", reason="needs DICOM: pip install 'smmil[ct]'")
    slide, case = slide_case(tmp_path, "dicom")
    with pytest.raises(ConfigError, match="--to dicom-seg: needs --threshold"):
        export(case, "dicom-seg", tmp_path / "a.dcm", image=slide)
    facts = {**promised[2][0].meta["calibration"], "threshold": float(np.median(case.scores))}
    done = export(replace(case, meta={**case.meta, "calibration": facts}), "dicom-seg", tmp_path / "a.dcm", image=slide)
    assert done.written
