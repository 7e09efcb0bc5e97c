"""Cross-validation in studies: every patient tested once, each fold choosing for itself, values over all patients."""

import json
import math
import os
import shutil
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from support.kills import PROCESSES
from support.studies import table_bytes, tiny_set, tiny_study, variant

from smmil.data import Manifest, load_splits, make_splits, save_splits
from smmil.errors import DataError
from smmil.evaluate import froc
from smmil.evaluate.bags import by_patient, whole_patients
from smmil.evaluate.bootstrap import Settings
from smmil.evaluate.folds import pooled_statistic
from smmil.evaluate.resampling import Carriers, interval
from smmil.experiments.datasets import _prepare, _random_labels
from smmil.experiments.results import _choose_learning_rates, _chosen_rows
from smmil.experiments.runner import load_results, run_study
from smmil.experiments.tables import _about, write_tables
from smmil.experiments.variant_tests import _of_folds, _resampled_mean
from smmil.experiments.writing import _comparison_notes, _pointing_notes
from smmil.prediction import Prediction, load_predictions
from smmil.synthetic import synthetic_slides, write_synthetic

TABLES = [{"name": "numbers", "metrics": ["bag_auroc", "inst_auroc@per_bag"], "rank_by": "all"}]


def rotating_study(**changes):
    content = {"datasets": [tiny_set(test="rotate", folds=2, val_share=0.4)], "reference": "ABMIL", "tables": TABLES}
    return tiny_study(**{**content, "training": {"epochs": 1, "warmup_epochs": 0}, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("rotating")
    run_study(rotating_study(), out)
    return out


def test_every_patient_is_tested_exactly_once_by_a_model_that_has_not_seen_it(finished):
    results = load_results(rotating_study(), finished)
    assert set(results["test"]) == {"rotate"}
    manifest = Manifest.read(next(finished.glob("data/slides-*/manifest.csv")))
    for _, runs in results.groupby(["variant", "lr"]):
        seen = []
        for key in runs["run"]:
            split = json.loads((finished / "runs" / key / "train/split.json").read_text())
            cases = [p.id for p in load_predictions(finished / "runs" / key / "test")]
            assert sorted(cases) == sorted(split["test"])
            assert not set(cases) & {*split["train"], *split["val"]}
            seen += cases
        assert sorted(seen) == sorted(manifest.ids)


def test_every_fold_chooses_its_rate_by_its_own_validation():
    """By the mean over folds the first rate would win; fold 1 must not follow it."""
    rows = [("A", 1e-3, 0, 0.9), ("A", 1e-4, 0, 0.5), ("A", 1e-3, 1, 0.6), ("A", 1e-4, 1, 0.7)]
    table = pd.DataFrame(rows, columns=["variant", "lr", "fold", "val_auroc"])
    table = table.assign(run=list("abcd"), set="s", seed=0, val_loss=0.5, test="rotate")
    assert _choose_learning_rates(table) == {("s", "A"): {0: 1e-3, 1: 1e-4}}
    assert list(_chosen_rows(table)["run"]) == ["a", "d"]
    assert _choose_learning_rates(table.drop(columns="test")) == {("s", "A"): 1e-3}


def test_tables_show_both_the_mean_of_the_folds_and_the_value_over_all_patients(finished, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    paths = {path.name: path for path in write_tables(rotating_study(), out, resamples=30)}
    rows = pd.read_csv(paths["numbers.csv"])
    chosen = _chosen_rows(load_results(rotating_study(), out))
    for name, part in chosen.groupby("variant"):
        folds = [load_predictions(out / "runs" / key / "test") for key in part.sort_values("fold")["run"]]
        aurocs = [roc_auc_score([p.y for p in f], [p.positive_prob for p in f]) for f in folds]
        pairs = [sum(p.y == 1 for p in f) * sum(p.y == 0 for p in f) for f in folds]
        row = rows[(rows["model"] == name) & (rows["metric"] == "bag_auroc")].iloc[0]
        assert row["mean"] == pytest.approx(np.mean(aurocs))
        assert row["all_patients"] == pytest.approx(np.average(aurocs, weights=pairs))
        assert f"all patients {row['all_patients']:.3f}" in paths["numbers.md"].read_text()
        assert f"all patients {row['all_patients']:.3f}" in paths["numbers.tex"].read_text()
    for name in ("numbers.md", "numbers.tex"):
        notes = paths[name].read_text()
        assert (
            "every patient was tested once (tiny): each fold chose its learning rate by its own validation AUROC"
            in notes
        )
        assert "chosen by mean validation" not in notes
    compared = pd.read_csv(paths["comparisons.csv"])
    assert compared["fold_mean"].notna().all()
    assert "mean of folds" in paths["comparisons.md"].read_text()
    rates = json.loads(paths["learning_rates.json"].read_text())["tiny"]
    assert {name: set(folds) for name, folds in rates.items()} == {"ABMIL": {"0", "1"}, "SmAP": {"0", "1"}}


def in_pairs(out):
    """Every two test cases of a class and fold become a patient's."""
    for folder in out.glob("runs/*/test"):
        cases = load_predictions(folder)
        for y in (0, 1):
            mine = [p for p in cases if p.y == y]
            for number, p in enumerate(mine):
                who = mine[number // 2 * 2].id
                replace(p, meta={**p.meta, "patient": who, "group": who}).save(folder / f"{p.id}.npz")


def test_tables_by_patient_count_patients_in_the_value_over_all_too(finished, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    in_pairs(out)
    kinds = {"by": "patient", "aggregate": "max"}
    paths = {path.name: path for path in write_tables(rotating_study(), out, resamples=30, **kinds)}
    rows, compared = pd.read_csv(paths["numbers.csv"]), pd.read_csv(paths["comparisons.csv"])
    chosen = _chosen_rows(load_results(rotating_study(), out))
    for name, part in chosen.groupby("variant"):
        folds = [load_predictions(out / "runs" / key / "test") for key in part.sort_values("fold")["run"]]
        patients = [whole_patients(by_patient(fold, "max")) for fold in folds]
        assert [len(cases) for cases in patients] < [len(fold) for fold in folds]
        aurocs = [roc_auc_score([p.y for p in f], [p.positive_prob for p in f]) for f in patients]
        pairs = [sum(p.y == 1 for p in f) * sum(p.y == 0 for p in f) for f in patients]
        row = rows[(rows["model"] == name) & (rows["metric"] == "bag_auroc")].iloc[0]
        assert row["mean"] == pytest.approx(np.mean(aurocs))
        assert row["all_patients"] == pytest.approx(np.average(aurocs, weights=pairs))
        both = compared[(compared["variant"] == name) & (compared["metric"] == "bag_auroc")]
        assert row["all_patients"] == pytest.approx(both["value"].iloc[0])


def test_beside_rotating_sets_the_criterion_of_the_others_is_said_of_them_only():
    study = tiny_study(datasets=[tiny_set("fixed"), tiny_set("turning", test="rotate")])
    rows = pd.DataFrame({"set": ["fixed", "turning"], "test": ["", "rotate"], "val_auroc": 0.5})
    spec = SimpleNamespace(metrics=["bag_auroc"], paper=None)
    mixed, fixed = _about(study, spec, rows)[0], _about(study, spec, rows[:1])[0]
    assert mixed.endswith("learning rate chosen by mean validation AUROC, ties by lower loss (fixed)")
    assert fixed.endswith("learning rate chosen by mean validation AUROC, ties by lower loss")
    assert "learning rate" not in _about(study, spec, rows[1:])[0]


@pytest.mark.slow
def test_permuted_labels_of_a_test_fold_leave_its_models_rates_thresholds_and_epochs(tmp_path):
    """Rotating folds are drawn and kept as a file; then the labels of each test fold are exchanged in turn."""
    bags = write_synthetic(tmp_path / "bags", synthetic_slides(14, size=(10, 14), dim=4, seed=1, lesion=(0.1, 0.3)))
    save_splits(tmp_path / "splits.json", make_splits(Manifest.read(bags), folds=2, val_share=0.4, test="rotate"))
    splits, found = load_splits(tmp_path / "splits.json"), {}
    for permuted in (None, 0, 1):
        folder = tmp_path / f"copy{permuted}"
        shutil.copytree(bags.parent, folder)
        rows = pd.read_csv(folder / "manifest.csv", dtype=str)
        part = rows["id"].isin(splits[permuted].test if permuted is not None else ())
        rows.loc[part, "label"] = ["1" if label == "0" else "0" for label in rows.loc[part, "label"]]
        rows.loc[part, "instance_labels"] = ""
        rows.to_csv(folder / "manifest.csv", index=False)
        mine = tiny_set(synthetic=None, manifest=str(folder / "manifest.csv"), splits=str(tmp_path / "splits.json"))
        study = rotating_study(datasets=[mine], folds=[0, 1] if permuted is None else [permuted], tables=[])
        run_study(study, tmp_path / f"out{permuted}")
        results = load_results(study, tmp_path / f"out{permuted}")
        assert set(results["test"]) == {"rotate"}
        chosen = set(_chosen_rows(results)["run"])
        for row in results.to_dict("records"):
            facts = row["weights"], row["epoch"], row["threshold"], row["val_auroc"], row["run"] in chosen
            found.setdefault((row["variant"], row["lr"], row["fold"]), []).append(facts)
    assert len(found) == 8
    assert all(len(both) == 2 and both[0] == both[1] for both in found.values())


def run_quietly(out):
    run_study(rotating_study(), out)


@pytest.mark.slow
def test_a_killed_rotating_study_goes_on_to_the_same_bytes(finished, tmp_path):
    process = PROCESSES.Process(target=run_quietly, args=(tmp_path,))
    process.start()
    end = time.monotonic() + 120
    while time.monotonic() < end and process.is_alive() and len(list(tmp_path.glob("runs/*/result.json"))) < 2:
        time.sleep(0.005)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    run_study(rotating_study(), tmp_path)
    assert table_bytes(tmp_path) == table_bytes(finished)


def test_a_small_fixed_test_set_is_told_before_the_first_training_only(finished, tmp_path):
    told = []
    study = tiny_study(variants=[variant("ABMIL")], learning_rates=[1e-2], folds=[0])
    run_study(study, tmp_path, on_warning=told.append, on_begin=lambda *_: told.append("begun"))
    assert len(told) == 2
    assert told[0].startswith("tiny: the test set holds 2 patients of class")
    assert told[0].endswith("data.test=rotate")
    run_study(study, tmp_path, on_warning=told.append)
    run_study(rotating_study(), finished, on_warning=told.append)
    assert len(told) == 2


def test_random_labels_of_a_rotating_set_spare_the_test_cases_of_the_first_fold(tmp_path):
    dataset = tiny_set(test="rotate", val_share=0.4)
    ready = _prepare(dataset, tmp_path)
    before, changed = Manifest.read(ready.manifest), 0
    for seed in range(4):
        derived = _random_labels(dataset, ready, tmp_path, seed)
        after = Manifest.read(derived.manifest)
        (split,) = load_splits(derived.splits)
        assert derived.test == "fixed"
        assert all(before.labels[i] == after.labels[i] for i in split.test)
        changed += sum(before.labels[i] != after.labels[i] for i in (*split.train, *split.val))
    assert changed


def case(rng, name, *, lesions=True):
    y = int(name[-1] in "13579")
    truth = (rng.random(8) < 0.4) & (y == 1)
    edges = np.stack([np.arange(7), np.arange(1, 8)])
    scores = np.round(rng.normal(size=8) + truth, 1)
    probability = 1 / (1 + np.exp(-(y + rng.normal())))
    known = truth.astype(int) if lesions else None
    return Prediction(name, [probability], scores, edges=edges, y=y, y_inst=known, meta={"patient": name})


def folds_of(seed, sizes=(12, 9, 20)):
    rng, found, first = np.random.default_rng(seed), [], 0
    for size in sizes:
        found.append([case(rng, f"c{number:03d}") for number in range(first, first + size)])
        first += size
    return found


def stretched(fold, scale, level):
    """A fold with scores and probabilities of another model: the same order on another scale."""
    logit = [math.log(p.probs[0] / (1 - p.probs[0])) for p in fold]
    moved = [1 / (1 + math.exp(-(scale * z))) for z in logit]
    return [replace(p, probs=[m], scores=scale * p.scores + level) for p, m in zip(fold, moved, strict=True)]


def pooled(folds, metric, pool="all", cuts=(0.5, 0.5, 0.5)):
    return pooled_statistic(folds, metric, [Settings(cut, pool) for cut in cuts])


RANKED = [("bag_auroc", "all"), ("bag_auprc", "all"), ("bag_f1", "all"), ("inst_auroc", "all"), ("inst_auprc", "all"),
          ("inst_auroc", "positive_bags"), ("inst_auroc", "per_bag"), ("inst_f1", "all"), ("inst_f1", "per_bag"),
          ("froc", "all")]  # fmt: skip


@pytest.mark.parametrize(("metric", "pool"), RANKED)
def test_the_scale_of_a_fold_changes_nothing(metric, pool):
    folds, cuts = folds_of(0), (0.5, 0.5, 0.5)
    scales = ((1.0, 0.0), (7.0, 4.0), (0.1, -3.0))
    moved = [stretched(fold, *one) for fold, one in zip(folds, scales, strict=True)]
    bags = metric.startswith("bag")
    shifted = cuts if bags else tuple(scale * cut + level for cut, (scale, level) in zip(cuts, scales, strict=True))
    before, after = pooled(folds, metric, pool, cuts), pooled(moved, metric, pool, shifted)
    assert before[0].estimate == pytest.approx(after[0].estimate, abs=1e-12)
    weights = np.random.default_rng(1).integers(0, 3, len(before[0].cases))
    assert before[0].value(weights) == pytest.approx(after[0].value(weights), abs=1e-12)


def test_values_over_all_patients_are_those_of_slow_references():
    folds = folds_of(3)
    everybody = [p for fold in folds for p in fold]
    truth, said = ([[getattr(p, name) for p in fold] for fold in folds] for name in ("y", "positive_prob"))
    wins = [float(p.positive_prob > q.positive_prob) + 0.5 * (p.positive_prob == q.positive_prob)
            for fold in folds for p in fold for q in fold if p.y == 1 and q.y == 0]  # fmt: skip
    assert pooled(folds, "bag_auroc")[0].estimate == pytest.approx(np.mean(wins))
    positives = [sum(y) for y in truth]
    precision = [average_precision_score(y, s) for y, s in zip(truth, said, strict=True)]
    assert pooled(folds, "bag_auprc")[0].estimate == pytest.approx(np.average(precision, weights=positives))
    called = [s >= 0.5 for fold in said for s in fold]
    assert pooled(folds, "bag_f1")[0].estimate == pytest.approx(f1_score([p.y for p in everybody], called))
    brier = np.mean([(p.positive_prob - p.y) ** 2 for p in everybody])
    assert pooled(folds, "bag_brier")[0].estimate == pytest.approx(brier)
    cuts = (0.2, 0.5, 1.1)
    called = np.concatenate([p.scores[:, 0] >= cut for fold, cut in zip(folds, cuts, strict=True) for p in fold])
    marked = np.concatenate([p.y_inst for p in everybody])
    assert pooled(folds, "inst_f1", cuts=cuts)[0].estimate == pytest.approx(f1_score(marked, called))
    inside = [roc_auc_score(p.y_inst, p.scores[:, 0]) for p in everybody if 0 < p.y_inst.sum() < 8]
    assert pooled(folds, "inst_auroc", "per_bag")[0].estimate == pytest.approx(np.mean(inside))
    found = [froc(fold) for fold in folds]
    share = np.average([one["froc"] for one in found], weights=[one["n_lesions"] for one in found])
    assert pooled(folds, "froc")[0].estimate == pytest.approx(share)


def test_weights_count_cases_as_often_as_they_say():
    """A case that counts twice is a copy of it in the same fold; one that counts 0 times is not there."""
    folds, rng = folds_of(5), np.random.default_rng(0)
    times = [rng.integers(0, 3, len(fold)) for fold in folds]
    copied = [
        [replace(p, id=f"{p.id}.{copy}") for p, n in zip(fold, own, strict=True) for copy in range(n)]
        for fold, own in zip(folds, times, strict=True)
    ]
    for metric, pool in RANKED:
        plain, repeated = pooled(folds, metric, pool)[0], pooled(copied, metric, pool)[0]
        weight = {p.id: n for fold, own in zip(folds, times, strict=True) for p, n in zip(fold, own, strict=True)}
        weights = np.array([weight[p.id] for p in plain.cases])
        assert plain.value(weights) == pytest.approx(repeated.estimate), metric


def test_with_folds_of_their_own_patients_are_drawn_within_their_fold():
    folds = folds_of(2)
    found = _resampled_mean(folds, "bag_brier", [None] * 3, n=500)
    errors = [np.array([(p.positive_prob - p.y) ** 2 for p in fold]) for fold in folds]
    everybody = np.concatenate(errors)
    assert found.value == pytest.approx(everybody.mean())
    assert found.fold_mean == pytest.approx(np.mean([one.mean() for one in errors]))
    expected = math.sqrt(sum(len(e) * e.var() for e in errors)) / len(everybody)
    assert found.drawn.std() == pytest.approx(expected, rel=0.1)
    assert (found.units, found.carriers.strata, len(found.left_out)) == (41, 3, 3)
    assert found.cases == tuple(p.id for fold in folds for p in fold)


def test_several_seeds_are_averaged_and_every_patient_still_counts_once():
    one, two = folds_of(2), folds_of(7)
    both = _resampled_mean([*one, *two], "bag_auroc", [None] * 6, n=20)
    single = [_resampled_mean(folds, "bag_auroc", [None] * 3, n=20) for folds in (one, two)]
    assert both.value == pytest.approx(np.mean([s.value for s in single]))
    assert both.drawn == pytest.approx(np.mean([s.drawn for s in single], axis=0))
    assert both.units == 41


def test_each_stratum_costs_a_degree_of_freedom():
    drawn = np.random.default_rng(0).normal(0.1, 0.05, 4000)
    wide = [
        interval(drawn, 0.1, Carriers({"patients": 20}, strata), list, "percentile", 0.95, difference=True)
        for strata in (1, 5, 10)
    ]
    assert wide[0].high - wide[0].low < wide[1].high - wide[1].low < wide[2].high - wide[2].low
    assert wide[0].p < wide[1].p < wide[2].p


def test_test_sets_that_overlap_are_refused():
    folds = folds_of(0)
    with pytest.raises(DataError, match="different cases"):
        _resampled_mean([folds[0] + folds[1], folds[1]], "bag_auroc", [None] * 2, n=5)


def with_one_patient(fold, y):
    """The fold, all cases of class y being a single patient's."""
    return [replace(p, meta={"patient": "alone"}) if p.y == y else p for p in fold]


@pytest.mark.parametrize("metric", ["bag_auroc", "bag_f1", "inst_auroc", "inst_auroc@positive_bags", "froc"])
def test_a_single_patient_of_a_kind_in_a_fold_leaves_neither_interval_nor_p(metric):
    """That patient is drawn every time, and what another one would change is not seen."""
    folds = folds_of(4, (24, 24, 24))
    cuts = [None] * 3
    whole = _resampled_mean(folds, metric, cuts, n=60)
    assert whole.carriers.shortage == ""
    assert not np.isnan(whole.interval().low)
    thin = _resampled_mean([folds[0], with_one_patient(folds[1], 1), folds[2]], metric, cuts, n=60, numbers=[3, 5, 7])
    assert thin.value == pytest.approx(whole.value)
    assert thin.carriers.fewest >= 10
    assert thin.carriers.shortage.startswith("1 ")
    assert thin.carriers.shortage.endswith(" in fold 5")
    found = thin.minus(thin).interval(difference=True)
    assert np.isnan([thin.interval().low, thin.interval().high, found.low, found.p]).all()
    assert found.shortage == thin.carriers.shortage
    assert "2 are needed in each" in found.notes[-1]


def test_two_patients_of_a_kind_in_a_fold_or_a_fold_without_weight_are_enough():
    folds = folds_of(4, (24, 24, 24))
    halves = [replace(p, meta={"patient": f"half{i % 4 == 1}"}) if p.y else p for i, p in enumerate(folds[1])]
    assert _resampled_mean([folds[0], halves, folds[2]], "bag_auroc", [None] * 3, n=40).carriers.shortage == ""
    useless = with_one_patient([p for p in folds[1] if not p.y], 0)  # one class: no pair, no weight
    found = _resampled_mean([folds[0], useless, folds[2]], "bag_auroc", [None] * 3, n=40)
    assert found.carriers.shortage == ""
    assert not np.isnan(found.interval().low)


def compared_folds(values, other, low, high):
    """A row of comparisons with these values by fold, and an interval of the difference."""
    ends = SimpleNamespace(low=low, high=high)
    one = _resampled_mean(folds_of(2), "bag_brier", [None] * 3, n=5)._replace(
        folds=dict(zip("abc", values, strict=True))
    )
    gap = one.minus(one._replace(folds=dict(zip("abc", other, strict=True))))
    return _of_folds("", one, ends, 0.5) | _of_folds("difference_", gap, ends, 0.0)


def test_folds_that_contradict_the_interval_are_named():
    found = compared_folds((0.9, 0.3, 0.8), (0.4, 0.5, 0.4), 0.6, 0.9)
    assert (found["folds_disagree"], found["difference_folds_disagree"]) == (True, True)
    assert found["difference_folds"] == "a +0.500, b -0.200, c +0.400"
    assert compared_folds((0.9, 0.3, 0.8), (0.4, 0.5, 0.4), math.nan, math.nan)["folds_disagree"]
    assert not compared_folds((0.9, 0.5, 0.8), (0.4, 0.5, 0.4), 0.6, 0.9)["difference_folds_disagree"]
    assert not compared_folds((0.9, 0.3, 0.8), (0.4, 0.5, 0.4), -0.1, 0.9)["difference_folds_disagree"]
    facts = {"set": "s", "variant": "A", "reference": "B", "metric": "inst_auroc@positive_bags", "family": "local"}
    ends = {"difference": 0.2, "difference_low": 0.1, "difference_high": 0.3, "runs": 3, "planned": 3}
    rows = [{**facts, **ends, **found}, {**facts, **ends, **found, "metric": "inst_auroc"}]
    (verdict,) = _pointing_notes(rows)
    assert verdict.endswith("a difference in pointing, for A. But the folds disagree about its sign, see below.")
    notes = _comparison_notes(rows, 100)
    assert "in positive bags: the folds disagree, A minus B has both signs: a +0.500, b -0.200, c +0.400" in notes[1]
    calm = {**found, "folds_disagree": False, "difference_folds_disagree": False}
    rows = [{**row, **calm} for row in rows]
    assert "disagree" not in " ".join([*_pointing_notes(rows), *_comparison_notes(rows, 100)])
