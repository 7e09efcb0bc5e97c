"""Patients with several slides, on the command line: from a manifest to a report, a package and embeddings."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from support.patients import write_patients
from support.roads import smmil, tiny

from smmil.errors import ConfigError, DataError
from smmil.evaluate import bag_metrics
from smmil.evaluate.bags import by_patient
from smmil.packaging import load_package
from smmil.prediction import load_predictions
from smmil.viewer.api import _all_cases
from smmil.viewer.data import ViewerData

QUICK = (*tiny(2), "--set", "data.val_share=0.5")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_patients(tmp_path_factory.mktemp("road") / "study", 16, seed=2)


@pytest.fixture(scope="module")
def road(study, tmp_path_factory):
    """A folder with a run on bags of patients with covariates, and its predictions and embeddings."""
    folder = tmp_path_factory.mktemp("walked")
    chosen = ("--set", "data.bags=patient", "--set", "data.covariates=[age, sex]")
    smmil("train", "--manifest", study, "--model", "sm_ap", "--out", folder / "run", *QUICK, *chosen)
    words = ("--part", "all", "--out", folder / "predictions", "--embeddings", folder / "embeddings.parquet")
    said = smmil("predict", folder / "run", *words)
    assert "16 embedded, 0 there already" in said
    return folder


def report_data(page):
    return json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])


def test_a_report_counts_patients_and_has_a_map_for_every_slide(road, study):
    smmil("report", road / "predictions", "--resamples", 0, "--out", road / "report.html")
    page = (road / "report.html").read_text()
    cases, table = report_data(page)["cases"], pd.read_csv(study)
    assert {case["id"] for case in cases} == set(table["id"])
    patients = {case["patient"]["id"] for case in cases}
    assert len(patients) == 16 < len(cases)
    assert "of 16 patients (" in page
    said = {p.id: p.positive_prob for p in load_predictions(road / "predictions")}
    assert all(case["patient"]["verdicts"][0]["p"] == said[case["id"]] for case in cases)
    assert {(case["verdicts"][0]["p"], case["verdicts"][0]["outcome"]) for case in cases} == {(None, "")}
    assert "16 patients, one bag each" in page
    assert "Name" not in "".join(case["id"] for case in cases)
    assert not re.search(r"Name \d", page)


def test_numbers_on_the_command_line_and_in_a_package_are_those_of_patients(road):
    smmil("evaluate", road / "predictions", "--json", road / "numbers.json")
    bag = json.loads((road / "numbers.json").read_text())["predictions"]["bag"]
    assert bag["n"] == 16
    smmil("package", road / "run", "--out", road / "package", "--predictions", road / "predictions")
    config = json.loads((road / "package" / "config.json").read_text())
    assert config["evaluation"]["cases"] == 16
    assert config["training"]["bags"] == "patient"
    card = (road / "package" / "README.md").read_text()
    assert "bags of all instances of a patient with the covariates `age`, `sex`" in card
    assert "Name" not in card + json.dumps(config)


def test_a_package_predicts_patients_bit_for_bit_as_the_run(road, study, tmp_path):
    smmil("package", road / "run", "--out", tmp_path / "package")
    smmil("predict", "--model", tmp_path / "package", study, "--out", tmp_path / "again")
    ours, theirs = load_predictions(tmp_path / "again"), load_predictions(road / "predictions")
    assert [p.id for p in ours] == [p.id for p in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a.probs, b.probs)
        assert np.array_equal(a.scores, b.scores)
        assert a.meta["patient_bag"] == b.meta["patient_bag"]
    assert load_package(tmp_path / "package").model.covariates.shape == (1, 3)
    lacking = study.parent / "without_age.csv"
    pd.read_csv(study, dtype=str).drop(columns="age").to_csv(lacking, index=False)
    with pytest.raises(DataError, match="covariate 'age', which is no column here"):
        smmil("predict", "--model", tmp_path / "package", lacking, "--out", tmp_path / "third")


def test_embeddings_are_vectors_of_patients_and_are_not_computed_again(road):
    table = pd.read_parquet(road / "embeddings.parquet")
    assert list(table.columns) == ["id", "level", "group", "part", "model", *(f"e{k}" for k in range(8))]
    assert set(table["level"]) == {"patient"}
    assert len(table) == 16
    words = ("--part", "all", "--out", road / "predictions", "--embeddings", road / "embeddings.parquet")
    assert "0 embedded, 16 there already" in smmil("predict", road / "run", *words)


@pytest.fixture(scope="module")
def by_case(study, tmp_path_factory):
    """Predictions of a run on single slides."""
    folder = tmp_path_factory.mktemp("cases")
    smmil("train", "--manifest", study, "--model", "abmil", "--out", folder / "run", *QUICK)
    smmil("predict", folder / "run", "--part", "all", "--out", folder / "predictions")
    return folder


@pytest.mark.parametrize("aggregate", ["mean", "max", "noisy-or"])
def test_slides_are_aggregated_by_patient_where_asked(by_case, study, aggregate, tmp_path):
    words = ("--by", "patient", "--aggregate", aggregate, "--json", tmp_path / "n.json")
    smmil("evaluate", by_case / "predictions", *words)
    found = json.loads((tmp_path / "n.json").read_text())["predictions"]
    groups = pd.read_csv(study).set_index("id")["group"]
    cases = load_predictions(by_case / "predictions")
    p = pd.Series({c.id: c.positive_prob for c in cases})
    none = (1 - p).groupby(groups).prod()
    by_hand = {"mean": p.groupby(groups).mean(), "max": p.groupby(groups).max(), "noisy-or": 1 - none}
    y = pd.Series({c.id: c.y for c in cases}).groupby(groups).max()
    assert found["bag"]["n"] == 16
    assert found["bag"]["brier"] == pytest.approx(((by_hand[aggregate] - y) ** 2).mean())
    smmil("evaluate", by_case / "predictions", "--json", tmp_path / "cases.json")
    plain = json.loads((tmp_path / "cases.json").read_text())["predictions"]
    assert plain["bag"]["n"] == len(cases)
    assert plain["instance"] == found["instance"]


def test_reports_and_packages_state_patients_where_asked(by_case, tmp_path):
    smmil("report", by_case / "predictions", "--by", "patient", "--resamples", 0, "--out", tmp_path / "report.html")
    own = {p.id: p.positive_prob for p in load_predictions(by_case / "predictions")}
    cases = report_data((tmp_path / "report.html").read_text())["cases"]
    for case in cases:
        mine = [c for c in cases if c["patient"]["id"] == case["patient"]["id"]]
        assert len(mine) == case["patient"]["cases"]
        assert case["patient"]["y"] == max(c["y"] for c in mine)
        (said,) = {c["patient"]["verdicts"][0]["p"] for c in mine}
        assert said == pytest.approx(np.mean([own[c["id"]] for c in mine]))
        assert [c["verdicts"][0]["p"] for c in mine] == [own[c["id"]] for c in mine]
        assert all(
            c["verdicts"][0]["outcome"] == f"{str((own[c['id']] >= 0.5) == c['y']).lower()} "
            f"{'positive' if own[c['id']] >= 0.5 else 'negative'}"
            for c in mine
        )
    errors = [case["patient"]["verdicts"][0]["error"] for case in cases]
    assert errors == sorted(errors, reverse=True)
    words = ("--predictions", by_case / "predictions", "--by", "patient", "--aggregate", "max")
    smmil("package", by_case / "run", "--out", tmp_path / "package", *words)
    evaluation = json.loads((tmp_path / "package" / "config.json").read_text())["evaluation"]
    assert evaluation["cases"] == 16
    assert "highest probability of their cases" in evaluation["notes"][-1]
    with pytest.raises(ConfigError, match="--by: is about the metrics"):
        smmil("package", by_case / "run", "--out", tmp_path / "other", "--by", "patient")


def test_embeddings_of_slides_have_a_mean_for_every_patient(by_case, study, tmp_path):
    words = ("--part", "all", "--out", by_case / "predictions", "--embeddings", tmp_path / "e.parquet")
    smmil("predict", by_case / "run", *words)
    table = pd.read_parquet(tmp_path / "e.parquet")
    numbers = [c for c in table.columns if re.fullmatch(r"e\d+", c)]
    cases, patients = (table[table["level"] == level].set_index("id") for level in ("case", "patient"))
    assert set(cases.index) == set(pd.read_csv(study)["id"])
    means = cases.groupby("group")[numbers].mean()
    assert np.allclose(patients[numbers].loc[means.index], means, atol=1e-6)
    assert not table.astype(str).apply(lambda column: column.str.contains("Name")).any().any()
    half = table[table["level"] == "case"].iloc[: len(cases) // 2]
    half.to_parquet(tmp_path / "half.parquet", index=False)
    words = (*words[:-1], tmp_path / "half.parquet")
    assert f"{len(cases) - len(half)} embedded, {len(half)} there already" in smmil("predict", by_case / "run", *words)
    assert pd.read_parquet(tmp_path / "half.parquet").equals(table)
    half.assign(model="other").to_parquet(tmp_path / "half.parquet", index=False)
    with pytest.raises(DataError, match="embeddings of another model"):
        smmil("predict", by_case / "run", *words)


def test_explanations_of_patients_have_a_map_for_every_slide_and_one_curve_for_the_bag(road, tmp_path):
    words = ("--method", "gradient", "--out", tmp_path, "--faithfulness", "--repeats", 1)
    smmil("explain", road / "run", "--part", "val", *words)
    found = load_predictions(tmp_path / "gradient")
    assert {p.meta["patient_bag"]["cases"] for p in found} > {1}
    curves = {}
    for p in found:
        curves.setdefault(p.meta["patient_bag"]["patient"], []).append(p.meta["faithfulness"])
    assert all(one == of_patient[0] for of_patient in curves.values() for one in of_patient)
    assert pd.read_csv(tmp_path / "faithfulness.csv")["cases"].tolist() == [len(curves)]


def test_the_viewer_groups_slides_by_patient(road, by_case):
    whole, cases, asked = (
        _all_cases(ViewerData.read([folder / "predictions"], by=by))["cases"]
        for folder, by in ((road, "case"), (by_case, "case"), (by_case, "patient"))
    )
    assert all("patient" not in row for row in cases)
    for rows in (whole, asked):
        groups = pd.Series({row["id"]: row["patient"] for row in rows})
        assert groups.nunique() == 16
        assert all(first == min(groups.index[groups == first]) for first in groups.unique())
    assert not any("Name" in json.dumps(row) for row in whole + asked)


def test_tables_of_a_study_count_patients_where_asked(study, tmp_path):
    text = f"""
name: patients
datasets: [{{name: slides, manifest: {study}, folds: 2, val_share: 0.5, test_share: 0.4}}]
variants: [{{name: ABMIL, model: abmil, options: {{dim: 6, att_dim: 3}}}}]
learning_rates: [0.01]
folds: [0]
training: {{epochs: 1, warmup_epochs: 0}}
tables: [{{name: main, metrics: [bag_brier, inst_auroc]}}]
"""
    config = tmp_path / "study.yaml"
    config.write_text(text)
    smmil("experiment", "run", config, "--out", tmp_path)
    smmil("experiment", "tables", config, "--out", tmp_path)
    said = smmil("experiment", "tables", config, "--out", tmp_path, "--by", "patient", "--aggregate", "max")
    assert "tables_by_patient_max" in said
    results = pd.read_csv(tmp_path / "patients" / "results.csv")
    cases = load_predictions(tmp_path / "runs" / results["run"][0] / "test")
    expected = bag_metrics(by_patient(cases, "max"))["brier"]
    tables = [pd.read_csv(tmp_path / "patients" / name / "main.csv") for name in ("tables", "tables_by_patient_max")]
    numbers = [table.set_index("metric")["mean"] for table in tables]
    assert numbers[1]["bag_brier"] == pytest.approx(expected)
    assert numbers[0]["bag_brier"] == pytest.approx(bag_metrics(cases)["brier"])
    assert numbers[0]["inst_auroc"] == numbers[1]["inst_auroc"]
    assert "count patients (max" in (tmp_path / "patients" / "tables_by_patient_max" / "main.md").read_text()
