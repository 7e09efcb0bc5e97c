"""smmil evaluate on targets other than classes: tables, notes, JSON and CSV."""

import json

import pandas as pd
import pytest
from support.target_cases import KINDS, LABELS, survival_case, target_cohort
from typer.testing import CliRunner

from smmil.cli import app
from smmil.errors import ConfigError
from smmil.evaluate import bag_metrics
from smmil.evaluate.calibration import calibrate
from smmil.evaluate.suggestion import suggest_regions


def saved(cases, folder):
    for p in cases:
        p.save(folder / f"{p.id}.npz")
    return str(folder)


def evaluated(*arguments):
    done = CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_the_numbers_of_the_functions(kind, tmp_path):
    cases = target_cohort(kind, 24)
    where = saved(cases, tmp_path / "one")
    evaluated(where, "--json", str(tmp_path / "e.json"), "--csv", str(tmp_path / "e.csv"))
    found, known = json.loads((tmp_path / "e.json").read_text())["one"]["bag"], bag_metrics(cases)
    assert found["target"] == kind
    rows = pd.read_csv(tmp_path / "e.csv").set_index(["part", "metric"])["value"]
    for key, value in known.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value)
            assert rows["bag", key] == pytest.approx(value)
    if kind == "multilabel":
        assert rows["label", "auroc:oedema"] == pytest.approx(known["labels"]["oedema"]["auroc"])
    if kind in ("survival", "cox"):
        assert rows["until 12", "auroc"] == pytest.approx(known["times"]["12"]["auroc"])
        assert rows["risk groups", "log_rank"] == pytest.approx(known["risk_groups"]["log_rank"])


def test_survival_is_shown_with_intervals_times_and_groups(tmp_path):
    where = saved(target_cohort("survival", 40), tmp_path / "one")
    other = saved(target_cohort("survival", 40, model=1), tmp_path / "two")
    text = evaluated(where, "--ci", "--compare", other, "--resamples", "50")
    for words in ("c index uno", "Events until a time", "log-rank p", "bag_integrated_brier", "Paired comparison"):
        assert words in text
    assert "with an event" in text
    assert "bag threshold" not in text
    for row in bag_metrics(target_cohort("survival", 40))["times"].values():
        assert f"{row['n_events']} / {row['n_without']}" in text
        assert not row["shortage"] or f"– ({row['shortage'].split()[0]}" in text


def test_each_label_has_an_interval_of_its_own(tmp_path):
    where = saved(target_cohort("multilabel", 60), tmp_path / "one")
    text = evaluated(where, "--ci", "--resamples", "50")
    assert all(f"bag_auroc:{name}" in text for name in LABELS)
    chosen = evaluated(where, "--ci", "--resamples", "50", "--metric", "bag_auprc:blood")
    assert "bag_auprc:blood" in chosen
    assert "bag_auroc:blood" not in chosen


def test_few_events_are_told_in_every_file(tmp_path):
    cases = [
        survival_case(f"c{i:02}", i / 10, 30.0 - i, int(i % 3 == 0 and i < 21), patient=f"p{i}") for i in range(24)
    ]
    where = saved(cases, tmp_path / "one")
    text = evaluated(where, "--ci", "--resamples", "20", "--csv", str(tmp_path / "e.csv"))
    assert "log-rank p – (7 patients with an event)" in text
    rows = pd.read_csv(tmp_path / "e.csv")
    test = rows[(rows["part"] == "risk groups") & (rows["metric"] == "log_rank")]
    assert test["p"].tolist() == ["– (7 patients with an event)"]
    interval = rows[(rows["part"] == "ci") & (rows["metric"] == "bag_c_index")]
    assert interval["low"].tolist() == ["– (7 patients with an event)"]


def test_what_is_for_classes_says_so():
    cases = target_cohort("survival", 4)
    with pytest.raises(ConfigError, match=r"calibration is for targets of kind class; these .* kind survival"):
        calibrate(cases)
    with pytest.raises(ConfigError, match="suggest is for targets of kind class or multilabel"):
        suggest_regions(cases)
