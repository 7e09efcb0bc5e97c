"""Whether uncertainty tells which calls are wrong: values by hand, and what must hold for any map."""

from dataclasses import replace

import numpy as np
import pytest
from support.evaluate_command import run

from smmil.evaluate import bootstrap_ci, compare, instance_metrics, summary, uncertainty_metrics
from smmil.prediction import Prediction


def case(scores, labels, spread, name="a", **meta):
    return Prediction(name, [0.5], scores, y_inst=labels, uncertainty=spread, meta=meta)


def test_values_by_hand():
    """At 0.5 the calls are + + - -, and the second and third are wrong."""
    found = uncertainty_metrics([case([2.0, 1.0, 0.0, -1.0], [1, 0, 1, 0], [0.1, 0.9, 0.2, 0.3])], 0.5, resamples=0)
    assert (found["n_instances"], found["n_errors"]) == (4, 2)
    # errors 0.9, 0.2 against right calls 0.1, 0.3: three of four pairs
    assert found["error_auroc"] == pytest.approx(3 / 4)
    # kept by certainty: right, wrong, right, wrong
    assert found["risk_coverage_area"] == pytest.approx((0 / 1 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    # |score - 0.5|: 1.5, 0.5, 0.5, 1.5; the errors are nearest
    assert found["error_auroc_baseline"] == 1
    assert found["risk_coverage_area_baseline"] == pytest.approx((0 + 0 + 1 / 3 + 2 / 4) / 4)
    assert found["error_auroc_difference"] == pytest.approx(-1 / 4)
    # 1.5/0.1, 0.5/0.9, 0.5/0.2, 1.5/0.3: the errors are still the smallest
    assert found["error_auroc_combined"] == 1
    assert found["risk_coverage_area_combined"] == found["risk_coverage_area_baseline"]
    assert found["error_auroc_combined_difference"] == 0
    assert np.isnan(found["brier"])
    assert np.isnan(found["ece"])


def test_probabilities_have_a_brier_score_and_a_calibration_error():
    given = case([0.9, 0.8, 0.3, 0.2], [1, 0, 0, 0], [1, 1, 1, 1], score_kind="instance probability")
    found = uncertainty_metrics([given], 0.5, resamples=0)
    assert found["brier"] == pytest.approx((0.01 + 0.64 + 0.09 + 0.04) / 4)
    assert found["ece"] == pytest.approx((0.1 + 0.8 + 0.3 + 0.2) / 4)
    odds = case(np.log([9.0, 4.0, 3 / 7, 0.25]), [1, 0, 0, 0], [1, 1, 1, 1], score_kind="instance logit")
    assert uncertainty_metrics([odds], 0.0, resamples=0)["brier"] == pytest.approx(found["brier"])


def test_equal_uncertainty_is_worth_nothing():
    rng = np.random.default_rng(0)
    given = case(rng.normal(size=50), rng.integers(2, size=50), np.ones(50))
    found = uncertainty_metrics([given], 0.0, resamples=0)
    assert found["error_auroc"] == 0.5
    assert found["risk_coverage_area"] == pytest.approx(found["n_errors"] / 50)


def test_the_distance_itself_as_uncertainty_equals_the_baseline():
    rng = np.random.default_rng(1)
    cases = []
    for number in range(6):
        scores = rng.normal(size=40)
        labels = (scores + rng.normal(size=40) > 0).astype(int)
        cases.append(case(scores, labels, 1 / (1 + np.abs(scores)), f"{number}", group=f"{number // 2}"))
    found = uncertainty_metrics(cases, 0.0, resamples=50)
    assert found["error_auroc_difference"] == 0
    assert found["risk_coverage_area_difference"] == pytest.approx(0)
    assert found["error_auroc_interval"] == [0, 0]


def test_the_distance_in_deviations_finds_errors_that_neither_alone_finds():
    """A call is wrong where the noise, of one of two sizes, exceeds its distance from the threshold."""
    rng = np.random.default_rng(3)
    true, spread = rng.normal(size=4000), rng.choice([0.1, 1.5], 4000)
    given = case(true + spread * rng.normal(size=4000), (true >= 0).astype(int), spread)
    found = uncertainty_metrics([given], 0.0, resamples=0)
    assert found["error_auroc_combined"] > max(found["error_auroc"], found["error_auroc_baseline"]) + 0.05
    assert found["risk_coverage_area_combined"] < found["risk_coverage_area_baseline"]


def test_a_better_uncertainty_has_an_interval_above_zero_and_unknown_labels_take_no_part():
    rng, cases = np.random.default_rng(2), []
    for number in range(12):
        scores, labels = rng.normal(size=60), rng.integers(0, 2, size=60)
        wrong = (scores >= 0) != (labels > 0)
        spread = np.where(wrong, 1.0, 0.2) + rng.uniform(0, 0.5, 60)
        labels[:5], spread[:5] = -1, 100.0
        cases.append(case(scores, labels, spread, f"{number}"))
    found = uncertainty_metrics([*cases, Prediction("plain", [0.5], [1.0])], 0.0, resamples=200)
    assert found["n_instances"] == 12 * 55
    assert found["error_auroc"] == 1
    assert found["error_auroc_interval"][0] > 0.3
    assert found["risk_coverage_area_interval"][1] < 0
    assert found["notes"] == ["1 of 13 cases hold no uncertainty or no instance label"]


def test_without_any_case_nothing_is_measured():
    found = uncertainty_metrics([Prediction("plain", [0.5], [1.0])], 0.0)
    assert found["n_instances"] == 0
    assert np.isnan(found["error_auroc"])
    assert np.isnan(found["risk_coverage_area"])


def test_the_command_tells_it_where_predictions_hold_it(tmp_path):
    given = case([2.0, 1.0, 0.0, -1.0], [1, 0, 1, 0], [0.1, 0.9, 0.2, 0.3])
    (tmp_path / "m").mkdir()
    given.save(tmp_path / "m" / "a.npz")
    told = " ".join(run(tmp_path / "m", "--threshold", 0.5, "--csv", tmp_path / "numbers.csv").split())
    words = "told by uncertainty: AUROC 0.750, with the distance from the threshold 1.000, by that distance alone 1.000"
    assert words in told
    assert "m,uncertainty,error_auroc,0.75" in (tmp_path / "numbers.csv").read_text()
    assert "uncertainty" not in run(tmp_path / "m")
    plain = Prediction("a", [0.5], [2.0, 1.0], y_inst=[1, 0])
    assert "uncertainty" not in summary([plain], threshold=0.5)


BY_HAND = ([2.0, 1.0, 0.0, -1.0], [1, 0, 1, 0], [0.1, 0.9, 0.2, 0.3])


def test_the_registry_gives_the_same_numbers_by_hand():
    found = instance_metrics([case(*BY_HAND)], 0.5)
    assert found["error_auroc"] == pytest.approx(3 / 4)
    assert found["error_auroc_distance"] == 1
    assert found["risk_coverage"] == pytest.approx((0 / 1 + 1 / 2 + 1 / 3 + 2 / 4) / 4)
    assert found["risk_coverage_distance"] == pytest.approx((0 + 0 + 1 / 3 + 2 / 4) / 4)
    probable = case([0.9, 0.8, 0.3, 0.2], [1, 0, 0, -1], [1, 1, 1, 1], score_kind="instance probability")
    found = instance_metrics([probable])
    assert found["brier"] == pytest.approx((0.01 + 0.64 + 0.09) / 3)
    assert found["ece"] == pytest.approx((0.1 + 0.8 + 0.3) / 3)


def test_what_a_map_does_not_have_is_absent_and_what_it_has_is_pooled_over_the_cases_that_have_it():
    plain = Prediction("b", [0.5], [3.0, -3.0], y_inst=[0, 1])
    for pool in ("all", "per_bag"):
        assert {"error_auroc", "risk_coverage", "brier", "ece"}.isdisjoint(instance_metrics([plain], 0.5, pool))
        assert instance_metrics([plain, case(*BY_HAND)], 0.5, pool)["error_auroc"] == pytest.approx(3 / 4)
    assert "error_auroc" not in instance_metrics([case(*BY_HAND)])


def test_calibrated_probabilities_are_judged_where_there_are_some():
    from smmil.evaluate.probability import ProbabilityMap

    curve = ProbabilityMap(method="platt", x=[2.0], y=[-1.0])
    scores = np.array([2.0, 1.0, 0.0, -1.0])
    marked = case(scores, [1, 0, 1, 0], np.ones(4), calibration={"column": None, "instance": curve.model_dump()})
    probs = 1 / (1 + np.exp(-2 * scores + 1))
    wanted = np.mean((probs - [1, 0, 1, 0]) ** 2)
    assert instance_metrics([marked])["brier"] == pytest.approx(wanted)
    assert uncertainty_metrics([marked], 0.5, resamples=0)["brier"] == pytest.approx(wanted)


def cohort(kind, seed=0, cases=24):
    """Cases of twelve patients; the uncertainty knows the errors, knows nothing, or is high where calls are right."""
    rng, found = np.random.default_rng(seed), []
    for number in range(cases):
        scores, labels = rng.normal(size=50), rng.integers(0, 2, size=50)
        wrong = (scores >= 0) != (labels > 0)
        spread = rng.uniform(0.1, 1, 50) + {"knows": 0.8, "chance": 0.0, "backwards": 0.0}[kind] * wrong
        spread = np.where(wrong & (kind == "backwards"), 0.6 * spread, spread)
        found.append(case(scores, labels, spread, f"{number:02}", group=f"p{number // 2}"))
    return found


def test_intervals_and_paired_differences_come_by_patient():
    good, poor = cohort("knows"), cohort("chance")
    own = bootstrap_ci(good, "inst_error_auroc", threshold=0.0, n=200)
    assert own["n_units"] == 12
    assert 0.7 < own["low"] < own["value"] < own["high"] < 1
    between = compare(good, poor, "inst_error_auroc", threshold=0.0, n=200)
    assert between["low"] > 0.2
    area = compare(good, poor, "inst_risk_coverage", threshold=0.0, n=200)
    assert area["high"] < 0
    assert area["difference"] == pytest.approx(
        instance_metrics(good, 0.0)["risk_coverage"] - instance_metrics(poor, 0.0)["risk_coverage"]
    )
    baseline = compare(good, poor, "inst_error_auroc_distance", threshold=0.0, n=200)
    assert (baseline["difference"], baseline["std"], baseline["p"]) == (
        0,
        0,
        1,
    )  # the same scores: what the distance tells is the same


def test_a_resample_is_the_metric_of_the_repeated_cases():
    from smmil.evaluate.bootstrap import Settings, statistic

    cases, weights = cohort("knows", cases=4), np.array([2, 0, 1, 3])
    repeated = [p for p, times in zip(cases, weights, strict=True) for _ in range(times)]
    for metric in ("error_auroc", "risk_coverage", "error_auroc_distance", "risk_coverage_distance"):
        found = statistic(cases, f"inst_{metric}", Settings(0.0))
        assert found.value(weights) == pytest.approx(instance_metrics(repeated, 0.0)[metric], abs=1e-12)
    for metric in ("brier", "ece"):
        probable = [case(1 / (1 + np.exp(-p.scores[:, 0])), p.y_inst, p.uncertainty, p.id, score_kind="probability")
                    for p in cases]  # fmt: skip
        again = [p for p, times in zip(probable, weights, strict=True) for _ in range(times)]
        assert statistic(probable, f"inst_{metric}").value(weights) == pytest.approx(instance_metrics(again)[metric])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("knows", "tells wrong calls better than the distance from the threshold"),
        ("chance", "no better than chance at telling wrong calls"),
        ("backwards", "ranks backwards: wrong calls are the more certain ones"),
    ],
)
def test_a_verdict_says_what_an_uncertainty_is_worth(kind, words):
    found = uncertainty_metrics(cohort(kind), 0.0, resamples=200)
    assert found["verdict"].startswith(words)
    low, high = found["error_auroc_own_interval"]
    assert low < found["error_auroc"] < high
    assert f"[{low:.3f}, {high:.3f}]" in found["verdict"]


def test_an_uncertainty_that_only_repeats_the_distance_is_told_to_add_nothing():
    rng, cases = np.random.default_rng(1), []
    for number in range(8):
        scores = rng.normal(size=80)
        labels = (scores + 0.5 * rng.normal(size=80) > 0).astype(int)
        cases.append(case(scores, labels, 1 / (1 + np.abs(scores)), f"{number}"))
    verdict = uncertainty_metrics(cases, 0.0, resamples=100)["verdict"]
    assert "but no better than the distance from the threshold" in verdict
    assert f"], in {len(cases)} cases, patients unknown)" in verdict
    assert "without interval" in uncertainty_metrics(cases, 0.0, resamples=0)["verdict"]
    right = case([1.0, -1.0], [1, 0], [0.1, 0.2])
    assert (
        uncertainty_metrics([right], 0.0)["verdict"] == "cannot be judged: no call is wrong (1 case, patients unknown)"
    )
    assert uncertainty_metrics([], 0.0)["verdict"].startswith("cannot be judged")


def test_command_and_report_show_metrics_and_verdict(tmp_path):
    from smmil.evaluate.folders import load_models, summarize_models
    from smmil.report.numbers import _remarks

    for p in cohort("backwards"):
        p.save(tmp_path / "m" / f"{p.id}.npz")
    told = " ".join(run(tmp_path / "m", "--threshold", 0.0).split())
    assert "uncertainty ranks backwards: wrong calls are the more certain ones" in told
    assert "error auroc" in told
    assert "risk coverage" in told
    results = summarize_models(load_models([tmp_path / "m"]), threshold=0.0, prior=False)
    assert any("uncertainty ranks backwards" in remark for remark in _remarks(results))


def test_each_model_is_judged_by_itself_so_that_deviations_cannot_tell_models_apart():
    """A model that is always wrong and unsure beside one that is always right: within each, deviations are noise."""
    rng = np.random.default_rng(5)

    def fold(weights, flipped, unsure):
        cases = []
        for i in range(30):
            truth = rng.random(40) < 0.3
            scores = np.where(truth != (rng.random(40) < flipped), 1.0, -1.0) * rng.uniform(0.5, 1.5, 40)
            doubt = unsure * rng.uniform(0.9, 1.1, 40)
            meta = {"weights": weights, "patient": f"{weights}{i}"}
            cases.append(Prediction(f"{weights}{i}", [0.5], scores, y=1, y_inst=truth, uncertainty=doubt, meta=meta))
        return cases

    good, bad = fold("a", 0.1, 1.0), fold("b", 0.8, 5.0)
    alone = [uncertainty_metrics(cases, 0.0, resamples=0) for cases in (good, bad)]
    found = uncertainty_metrics(good + bad, 0.0, resamples=200)
    for key in ("error_auroc", "error_auroc_combined", "error_auroc_baseline", "risk_coverage_area"):
        assert found[key] == pytest.approx((alone[0][key] + alone[1][key]) / 2, abs=1e-12)
    low, high = found["error_auroc_own_interval"]
    assert low < 0.5 < high
    nameless = [replace(p, meta={"patient": p.meta["patient"]}) for p in good + bad]
    assert uncertainty_metrics(nameless, 0.0, resamples=0)["error_auroc"] > 0.75  # the models, not the calls
