"""Calibrated probabilities and classes on their way: report, viewer, table and metadata of exports."""

import json

import numpy as np
import pandas as pd
import pytest
from support.lesion_cases import save_all, slide_case
from support.viewer_cases import client_of

from smmil.evaluate.calibration import calibrate
from smmil.evaluate.conformal import applied_calibration, calibrated_case
from smmil.evaluate.folder_drift import class_sets_in_words
from smmil.exports import export
from smmil.report import write_report
from smmil.viewer.data import ViewerData


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Four cases: two that leave one class, one that is undecided, and one without a calibration elsewhere."""
    made = calibrate([slide_case(f"c{i}", i, y=i % 2, p=0.5 + (0.1 if i % 2 else -0.1) * (i % 5)) for i in range(40)])
    cases = [made.applied(slide_case(f"s{i}", 50 + i, y=i % 2, p=p)) for i, p in enumerate((0.02, 0.98, 0.5))]
    folder = tmp_path_factory.mktemp("calibrated") / "sm_ap"
    folder.mkdir()
    save_all(folder, cases)
    return folder, made, cases


def text_of(case):
    return calibrated_case(case, applied_calibration(case)).text


def test_the_report_says_it_of_each_case_and_counts_the_cases(study):
    folder, made, cases = study
    write_report([folder], folder.parent / "r.html", resamples=0)
    page = (folder.parent / "r.html").read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    verdicts = {case["id"]: case["verdicts"][0] for case in data["cases"]}
    for case in cases:
        assert verdicts[case.id]["said"] == text_of(case)
        assert verdicts[case.id]["calibrated"] == case.meta["calibration"]["probability"]
    assert (
        {id_ for id_, found in verdicts.items() if found["undecided"]}
        == {case.id for case in cases if len(case.meta["calibration"]["set"]) != 1}
        == {"s2"}
    )
    assert f"Which classes can be excluded (sm_ap):</strong> {class_sets_in_words(cases, None)}" in page
    low, high, curve = data["models"][0]["curve"]
    score = float(cases[0].scores[5, 0])
    place = np.interp(score, np.linspace(low, high, len(curve)), curve)
    assert place == pytest.approx(float(made.instance(np.array([score]))[0]), abs=2e-3)


def test_the_viewer_says_it_with_the_case_and_names_calibrated_shares(study):
    folder, _, cases = study
    client = client_of(ViewerData.read([folder]))
    for number, case in enumerate(cases):
        assert f"sm_ap: {text_of(case)}" in client.get(f"/api/case/{number}").json()["notes"]
    told = client.get("/api/case/0/instance/5").json()["models"][0]
    assert told["probability_kind"] == "calibrated probability"


def test_tables_have_columns_and_every_format_the_words(study, tmp_path):
    _, made, cases = study
    case = cases[1]
    export(case, "csv", tmp_path / "a.csv")
    table = pd.read_csv(tmp_path / "a.csv")
    assert set(table["case_classes_possible"]) == {"positive"}
    assert table["case_probability_calibrated"].iloc[0] == pytest.approx(case.meta["calibration"]["probability"])
    assert table["probability"].to_numpy() == pytest.approx(made.instance(case.scores[:, 0].astype(float)), abs=1e-6)
    assert set(table["calibrated"]) == {text_of(case)}
    export(cases[2], "parquet", tmp_path / "a.parquet")
    assert set(pd.read_parquet(tmp_path / "a.parquet")["case_classes_possible"]) == {"negative or positive"}
    export(case, "geojson", tmp_path / "a.geojson")
    assert json.loads((tmp_path / "a.geojson").read_text())["smmil"]["calibrated"] == text_of(case)
    export(slide_case("plain", 1), "csv", tmp_path / "b.csv")
    assert not {"case_classes_possible", "calibrated"} & set(pd.read_csv(tmp_path / "b.csv").columns)
