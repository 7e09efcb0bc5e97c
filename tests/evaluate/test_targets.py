"""Metrics of several labels, levels and numbers: against scikit-learn, scipy and hand-computed values."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, cohen_kappa_score, f1_score, r2_score, roc_auc_score
from support.target_cases import KINDS, LABELS, TIMES, survival_case, target_case, target_cohort

from smmil.errors import ConfigError, DataError
from smmil.evaluate import (
    Metric,
    bag_metrics,
    bootstrap_ci,
    compare,
    instance_metrics,
    register_metric,
    unregister_metric,
)
from smmil.evaluate.bootstrap import statistic
from smmil.evaluate.comparison import compare_models
from smmil.evaluate.instances import instance_score
from smmil.evaluate.metrics import metrics_of, usual_measures
from smmil.evaluate.resampling import _resampling_plan
from smmil.evaluate.targets import TargetTable

OF_KIND = [(kind, metric.name) for kind in KINDS for metric in metrics_of("bag", kind)]


def column(cases, k):
    """Probabilities and labels of one label, where it is known."""
    known = [p for p in cases if not np.isnan(p.target[k])]
    return np.array([p.probs[k] for p in known]), np.array([p.target[k] for p in known])


def test_several_labels_are_judged_one_by_one_and_averaged():
    cases = target_cohort("multilabel", 60)
    found = bag_metrics(cases)
    auroc, auprc, f1 = [], [], []
    for k, name in enumerate(LABELS):
        p, y = column(cases, k)
        auroc.append(roc_auc_score(y, p))
        auprc.append(average_precision_score(y, p))
        f1.append(f1_score(y, p >= 0.5))
        assert found["labels"][name]["auroc"] == pytest.approx(auroc[-1])
        assert (found["labels"][name]["n"], found["labels"][name]["n_positive"]) == (len(y), int(y.sum()))
    expected = [np.mean(values) for values in (auroc, auprc, f1)]
    assert [found[key] for key in ("auroc", "auprc", "f1")] == pytest.approx(expected)


def test_a_label_without_both_classes_is_left_out_and_named():
    rows = [([0.2, 0.7], [0, 1]), ([0.9, 0.4], [1, 1]), ([0.1, 0.3], [0, np.nan])]
    cases = [target_case("multilabel", f"c{i}", p, target=t, names=("a", "b")) for i, (p, t) in enumerate(rows)]
    found = bag_metrics(cases)
    assert found["auroc"] == 1.0 == found["labels"]["a"]["auroc"]
    assert np.isnan(found["labels"]["b"]["auroc"])
    assert found["notes"] == ["labels without both classes are left out of the means over labels: b"]


def test_levels_are_judged_by_distance():
    cases = target_cohort("ordinal", 60)
    found, table = bag_metrics(cases), TargetTable(cases)
    y = [p.y for p in cases]
    assert found["kappa"] == pytest.approx(cohen_kappa_score(y, table.levels, weights="quadratic"))
    assert found["level_mae"] == pytest.approx(np.mean(np.abs(np.array(y) - table.levels)))
    assert found["accuracy"] == pytest.approx(np.mean(np.array(y) == table.levels))
    probs = np.stack([p.probs for p in cases])
    assert found["auroc"] == pytest.approx(roc_auc_score(y, probs, multi_class="ovr", average="macro"))


def test_numbers_are_judged_by_error_and_rank():
    cases = target_cohort("regression", 40)
    found = bag_metrics(cases)
    true, said = np.array([p.target[0] for p in cases]), np.array([p.value for p in cases])
    assert found["mae"] == pytest.approx(np.abs(true - said).mean())
    assert found["rmse"] == pytest.approx(np.sqrt(np.square(true - said).mean()))
    assert found["r2"] == pytest.approx(r2_score(true, said))
    assert found["spearman"] == pytest.approx(spearmanr(true, said).statistic)


@pytest.mark.parametrize(("kind", "name"), OF_KIND)
def test_a_case_that_counts_twice_is_the_case_given_twice(kind, name):
    cases = sorted(target_cohort(kind, 24), key=lambda p: p.id)
    weights = np.random.default_rng(0).integers(0, 3, len(cases))
    copies = [p for p, times in zip(cases, weights, strict=True) for _ in range(times)]
    weighted = statistic(cases, name)
    assert [p.id for p in weighted.cases] == [p.id for p in cases if p.target is not None or p.y is not None]
    renamed = [with_id(p, f"{p.id}-{i}") for i, p in enumerate(copies)]
    assert weighted.value(weights[: len(weighted.cases)]) == pytest.approx(statistic(renamed, name).estimate, rel=1e-12)


def with_id(p, id_):
    return target_case(p.target_kind, id_, p.probs, target=p.target, value=p.value, y=p.y, names=p.target_names,
                       times=tuple(p.times))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_usual_metric_has_an_interval_by_patient_that_holds_it(kind):
    cases = target_cohort(kind, 80)
    for name in (m for m in usual_measures(kind) if m.startswith("bag")):
        found = bootstrap_ci(cases, name, n=200)
        assert found["low"] < found["value"] < found["high"], (name, found)
        assert found["n_units"] == len(cases)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_does_not_differ_from_itself_and_a_worse_one_does(kind):
    good, bad = target_cohort(kind, 80, noise=0.1), target_cohort(kind, 80, noise=20.0)
    name = usual_measures(kind)[0]
    same, other = compare(good, good, name, n=200), compare(good, bad, name, n=200)
    assert (same["difference"], same["p"]) == (0.0, 1.0)
    assert other["p"] < 0.01
    assert compare_models({"good": good, "bad": bad}, name, n=50)[0]["difference"] == other["difference"]


def test_a_label_by_name_is_a_metric_of_its_own():
    cases = target_cohort("multilabel", 60)
    p, y = column(cases, 1)
    found = bootstrap_ci(cases, "bag_auroc:oedema", n=100)
    assert found["value"] == pytest.approx(roc_auc_score(y, p))
    assert found["metric"] == "bag_auroc:oedema"
    assert compare(cases, target_cohort("multilabel", 60, model=1), "auroc:oedema", n=50)["delong"] is not None
    with pytest.raises(ConfigError, match="oedema"):
        bootstrap_ci(cases, "bag_auroc:edema", n=10)


def test_a_rare_label_says_how_many_patients_carry_it():
    cases = target_cohort("multilabel", 40)
    rare = [
        target_case("multilabel", p.id, p.probs, target=[float(i < 3), *p.target[1:]], names=LABELS, patient=f"p{i}")
        for i, p in enumerate(cases)
    ]
    assert bootstrap_ci(rare, "bag_auroc:blood", n=20)["shortage"] == "3 positive patients of blood"
    assert bootstrap_ci(rare, "bag_auroc", n=20)["shortage"] == "3 positive patients of blood"
    assert bootstrap_ci(rare, "bag_auroc:fracture", n=20)["shortage"] == ""


def test_few_patients_give_no_interval():
    assert bootstrap_ci(target_cohort("regression", 9), "bag_spearman", n=20)["shortage"] == "9 patients"
    same = [target_case("ordinal", f"c{i}", [0.6, 0.4], y=int(i < 4), names=("grade",)) for i in range(30)]
    assert bootstrap_ci(same, "bag_kappa", n=20)["shortage"] == "4 cases not of level 0"


def test_metrics_refuse_other_targets_and_name_those_that_fit():
    with pytest.raises(ConfigError, match=r"bag_c_index: is for targets of kind survival or cox.*use .*bag_spearman"):
        bootstrap_ci(target_cohort("regression", 12), "bag_c_index", n=10)
    with pytest.raises(ConfigError, match="bag_auroc: is for targets of kind class or ordinal or multilabel"):
        bootstrap_ci(target_cohort("survival", 12), "bag_auroc", n=10)
    with pytest.raises(DataError, match="different targets"):
        bag_metrics([*target_cohort("regression", 2), *target_cohort("survival", 2)])


def test_models_with_another_truth_are_not_compared():
    cases = target_cohort("survival", 12)
    moved = [*cases[:-1], survival_case(cases[-1].id, 0.0, 3.0, 1, y_inst=cases[-1].y_inst, scores=cases[-1].scores)]
    with pytest.raises(DataError, match="target"):
        compare(cases, moved, "bag_c_index", n=10)
    with pytest.raises(DataError, match="cannot be compared"):
        compare(cases, target_cohort("cox", 12), "bag_c_index", n=10)


def test_cases_of_several_folds_state_different_times_and_still_have_a_c_index():
    some, others = target_cohort("survival", 20), target_cohort("survival", 20, seed=1)
    others = [survival_case(f"other{p.id}", p.value, *p.target, times=(5.0, 9.0)) for p in others]
    found = bag_metrics([*some, *others])
    assert found["c_index"] > 0.5
    assert np.isnan(found["time_auroc"])
    assert any("different times" in note for note in found["notes"])


def test_rows_over_time_say_what_was_predicted_and_observed():
    cases = target_cohort("survival", 200, noise=0.0)
    rows = list(bag_metrics(cases)["times"].values())
    assert [row["time"] for row in rows] == list(TIMES)
    assert all(abs(row["predicted"] - row["observed"]) < 0.1 for row in rows[:3])
    assert all(row["auroc"] > 0.7 for row in rows)


@pytest.mark.parametrize("kind", ["survival", "cox", "regression"])
def test_without_a_label_a_bag_is_positive_where_an_instance_is(kind):
    cases = target_cohort(kind, 20)
    positive = [p for p in cases if p.y_inst.any()]
    found = instance_metrics(cases, pool="positive_bags")
    assert found["n_bags_used"] == len(positive) < len(cases)
    assert found["auroc"] == pytest.approx(
        roc_auc_score(np.concatenate([p.y_inst for p in positive]), np.concatenate([p.scores[:, 0] for p in positive]))
    )


def test_a_metric_of_ones_own_joins_those_of_its_target():
    own = Metric("bag_events", "bag", "events", 0, "share of cases with an event",
                 lambda cases: float(np.mean([p.target[1] for p in cases])), targets=("survival",))  # fmt: skip
    cases = target_cohort("survival", 40)
    register_metric(own)
    try:
        found = bootstrap_ci(cases, "bag_events", n=50)
        assert bag_metrics(cases)["events"] == found["value"] == np.mean([p.target[1] for p in cases])
        assert found["low"] < found["value"] < found["high"]
        assert "events" not in bag_metrics(target_cohort("cox", 12))
    finally:
        unregister_metric("bag_events")


def test_maps_of_several_labels_together_are_their_highest_and_a_column_is_one_of_them():
    scores = np.array([[0.0, 2.0, -1.0], [1.0, 0.0, 0.5], [-3.0, -1.0, -2.0]])
    case = target_case("multilabel", "a", [0.1, 0.2, 0.3], target=[1, 0, 0], y=1, names=LABELS, scores=scores)
    assert instance_score(case).tolist() == [2.0, 1.0, -1.0]
    assert instance_score(case, 2).tolist() == [-1.0, 0.5, -2.0]


def test_strata_are_events_and_numbers_have_none():
    cases = target_cohort("survival", 40)
    events = np.array([p.target[1] for p in cases])
    plan, _ = _resampling_plan(cases, "patient", True)
    assert {float(weights @ events) for weights in plan.draws(50, 0)} == {events.sum()}
    with pytest.raises(ConfigError, match="stratified resampling"):
        bootstrap_ci(target_cohort("regression", 40), "bag_mae", n=50, stratified=True)
