"""The position prior in the tables of a study."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.studies import copied, tiny_study

from smmil.evaluate import position_prior
from smmil.experiments.position import _position_markdown, _position_note, _position_rows
from smmil.experiments.study import TableSpec
from smmil.experiments.tables import write_tables
from smmil.prediction import Prediction


def scans(fold, score, cases=24, first=0):
    """Scans with a lesion around the relative height 0.3; the same cases in every fold, other scores."""
    places, rng, found = np.random.default_rng(0), np.random.default_rng(fold + 1), []
    for i in range(first, first + cases):
        height = np.linspace(0, 1, 24 + i)
        truth = (np.abs(height - 0.3 - 0.05 * places.normal()) < 0.1).astype(int)
        coords, meta = np.arange(len(height))[:, None], {"patient": f"p{i // 2}"}
        scores = score(height, truth, rng)
        found.append(Prediction(f"c{i:02}", [0.5], scores, coords=coords, y=1, y_inst=truth, meta=meta))
    return found


def finder(height, truth, rng):
    return truth + 0.2 * rng.normal(size=len(height))


def habit(height, truth, rng):
    return -np.abs(height - 0.3) + 0.02 * rng.normal(size=len(height))


def saved(out, variants):
    """Rows of results of {variant: [test cases of each fold]}, and the cases on disk."""
    rows = []
    for name, folds in variants.items():
        for fold, cases in enumerate(folds):
            for p in cases:
                p.save(out / "runs" / f"{name}{fold}" / "test" / f"{p.id}.npz")
            facts = {"run": f"{name}{fold}", "set": "ct", "variant": name, "lr": 1e-4, "seed": 0, "fold": fold}
            rows.append({**facts, "val_auroc": 0.5, "val_loss": 0.5})
    return pd.DataFrame(rows)


def test_every_variant_stands_beside_the_prior_and_habit_is_called_by_its_name(tmp_path):
    results = saved(tmp_path, {"F": [scans(0, finder), scans(1, finder)], "H": [scans(0, habit), scans(1, habit)]})
    rows = {row["variant"]: row for row in _position_rows(results, tmp_path, n=60)}
    assert (rows["F"]["better"], rows["H"]["better"]) == ("yes", "no")
    for name, score in (("F", finder), ("H", habit)):
        each = [position_prior(scans(fold, score), n=60)["per_bag"] for fold in range(2)]
        for key in ("model", "truth", "own", "residual", "difference"):
            assert rows[name][key] == pytest.approx(np.mean([one[key] for one in each]))
    single = _position_rows(results[results["fold"] == 0], tmp_path, n=60)[0]
    one = position_prior(scans(0, finder), n=60)["per_bag"]
    for key in ("truth_low", "difference_low", "difference_high", "difference_p", "residual_high"):
        assert single[key] == pytest.approx(one[key])
    text = _position_markdown(list(rows.values()), "T")
    assert "**No better than position**: H." in text
    assert "12 patients resampled." in text
    assert f"| {rows['H']['truth']:.3f} [{rows['H']['truth_low']:.3f}, " in text


def test_folds_whose_test_cases_overlap_have_values_without_intervals(tmp_path):
    results = saved(tmp_path, {"F": [scans(0, finder), scans(1, finder, first=5)]})
    (row,) = _position_rows(results, tmp_path, n=20)
    assert row["truth"] > 0.9
    assert np.isnan(row["difference_low"])
    assert row["better"] == ""
    assert "no interval: the folds have different test cases (F)." in _position_markdown([row], "T")


def test_a_fold_without_a_prior_is_left_out_by_name(tmp_path):
    """Folds with test cases of their own: one patient of fold 1 has lesions, of the other folds everybody."""
    folds = [scans(fold, finder, first=24 * fold) for fold in range(3)]
    thin = [p if i < 2 else replace(p, y_inst=np.zeros(p.n)) for i, p in enumerate(folds[1])]
    row, whole = (
        _position_rows(saved(tmp_path / name, {"F": cases}), tmp_path / name, n=40)[0]
        for name, cases in (("thin", [folds[0], thin, folds[2]]), ("whole", [folds[0], folds[2]]))
    )
    for key in ("model", "truth", "own", "residual", "difference", "difference_low", "truth_high", "n_patients"):
        assert row[key] == pytest.approx(whole[key])
    words = "Without fold 1, where there is no position prior: one patient has coordinates and a positive instance"
    assert words in _position_markdown([row], "T")
    assert "Without" not in _position_markdown([whole], "T")


def test_without_coordinates_the_page_says_that_there_is_no_prior(tmp_path):
    bare = [Prediction(p.id, p.probs, p.scores, y=p.y, y_inst=p.y_inst) for p in scans(0, finder)]
    rows = _position_rows(saved(tmp_path, {"F": [bare]}), tmp_path, n=20)
    assert "There is no position prior: no case has coordinates" in _position_markdown(rows, "T")
    assert _position_note(rows, ["inst_auroc"]) == []


def test_tables_with_localization_name_what_position_alone_reaches(finished_study, tmp_path):
    out = copied(finished_study, tmp_path / "study")
    metrics = ["inst_auroc", "inst_auroc@positive_bags", "bag_auroc"]
    study = tiny_study(tables=[TableSpec(name="where", metrics=metrics), TableSpec(name="bags", metrics=["bag_auroc"])])
    paths = {path.name: path.read_text() for path in write_tables(study, out, resamples=20)}
    rows = pd.read_csv(out / "tiny/tables/prior.csv")
    expected = f"a map that knows only where lesions of other patients lie reaches tiny {rows['truth@all'].mean():.3f}"
    assert f"- instance AUROC: {expected} (prior.md)" in paths["where.md"]
    assert "instance AUROC in positive bags: a map that knows only" in paths["where.md"]
    assert "a map that knows only" not in paths["bags.md"]
    assert "### tiny" in paths["prior.md"]
    plain = write_tables(tiny_study(tables=[TableSpec(name="bags", metrics=["bag_auroc"])]), out, resamples=20)
    assert all(path.stem != "prior" for path in plain)
