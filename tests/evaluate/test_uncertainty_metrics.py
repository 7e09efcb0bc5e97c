"""Whether uncertainty tells which calls are wrong: values by hand, and what must hold for any map."""

import numpy as np
import pytest
from support.evaluate_command import run

from smmil.evaluate import summary, uncertainty_metrics
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
