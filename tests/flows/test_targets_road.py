"""Other targets than a class, on the command line: a survival set and a multilabel CT set reach report and package."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from support.roads import PREPARE, smmil, tiny

from smmil.errors import DataError
from smmil.evaluate import bag_metrics
from smmil.prediction import load_predictions
from smmil.synthetic import planted_slides, write_planted
from smmil.synthetic.ct import synthetic_ct_scans


def walk(folder, manifest, kind, *more):
    """Train, predict, evaluate, report and package; gives the predictions, the numbers, the page and the card."""
    smmil("train", "--manifest", manifest, "--model", "sm_ap", "--out", folder / "run", *tiny(2), *more,
          "--set", f"target.kind={kind}")  # fmt: skip
    smmil("predict", folder / "run", "--part", "all", "--out", folder / "predictions")
    smmil("evaluate", folder / "predictions", "--json", folder / "numbers.json")
    smmil("report", folder / "predictions", "--resamples", 0, "--out", folder / "report.html")
    smmil("package", folder / "run", "--out", folder / "package", "--predictions", folder / "predictions")
    smmil("predict", "--model", folder / "package", manifest, "--trust-code", "--out", folder / "packaged")
    found = load_predictions(folder / "predictions")
    for one, other in zip(found, load_predictions(folder / "packaged"), strict=True):
        assert one.value == other.value
        assert np.array_equal(one.probs, other.probs)
        assert np.array_equal(one.scores, other.scores)
        assert np.array_equal(one.target, other.target, equal_nan=True)
    numbers = json.loads((folder / "numbers.json").read_text())["predictions"]["bag"]
    return found, numbers, (folder / "report.html").read_text(), (folder / "package/README.md").read_text()


def test_a_survival_set_reaches_a_report_and_a_package(tmp_path):
    manifest = write_planted(tmp_path / "study", planted_slides(30, "survival", size=(10, 20)))
    found, numbers, page, card = walk(tmp_path, manifest, "survival", "--set", "target.intervals=2")
    table = pd.read_csv(manifest).set_index("id")
    assert all(p.target.tolist() == table.loc[p.id, ["time", "event"]].tolist() for p in found)
    assert numbers["n_positive"] == table["event"].sum()
    assert numbers["c_index"] == bag_metrics(found)["c_index"]
    assert "Kaplan" in page
    assert re.search(r"risk -?[\d.]+ \(\d+(st|nd|rd|th) of 30\)", page)
    assert f"{numbers['c_index']:.4f}" in card


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Scans of heads and a table of two findings, of which the second is unknown in every sixth scan."""
    folder = tmp_path_factory.mktemp("heads")
    table = synthetic_ct_scans(folder, 18, size=48, slices=(12, 14))
    blood = table["label"].astype(int)
    calcified = [str(i // 2 % 2) if i % 6 else "" for i in range(len(table))]
    findings = table[["id", "path", "patient"]].assign(label_blood=blood, label_calcified=calcified, age=range(40, 58))
    findings.to_csv(folder / "findings.csv", index=False)
    return folder


def test_a_multilabel_ct_set_reaches_a_report_and_a_package(heads, tmp_path):
    labels = ("--labels", heads / "findings.csv", "--keep", "age")
    smmil("prepare", heads / "scans", *labels, *PREPARE, "--out", tmp_path / "study")
    manifest = tmp_path / "study/manifest.csv"
    table = pd.read_csv(manifest).set_index("id")
    assert table["age"].tolist() == list(range(40, 58))
    more = ("--set", "data.covariates=[age]")
    found, numbers, page, card = walk(tmp_path, manifest, "multilabel", *more)
    assert found[0].target_names == ["label_blood", "label_calcified"]
    assert all(np.array_equal(p.target, table.loc[p.id, p.target_names].astype(float), equal_nan=True) for p in found)
    assert [numbers["labels"][name]["n"] for name in found[0].target_names] == [18, 15]
    assert all(p.coords.shape[1] == 1 for p in found)  # a map of slices
    assert "label_calcified" in page
    assert "label_calcified" in card
    assert "age" in card


def test_columns_that_are_not_there_or_hold_formulas_are_refused(heads, tmp_path):
    words = ("prepare", heads / "scans", *PREPARE, "--out", tmp_path / "study", "--labels")
    with pytest.raises(DataError, match=r"there is no column 'ages' \(--keep\); did you mean age"):
        smmil(*words, heads / "findings.csv", "--keep", "ages")
    table = pd.read_csv(heads / "findings.csv", dtype=str)
    table.assign(age="=1+1").to_csv(heads / "formulas.csv", index=False)
    with pytest.raises(DataError, match=r"column 'age' holds a formula"):
        smmil(*words, heads / "formulas.csv", "--keep", "age")
