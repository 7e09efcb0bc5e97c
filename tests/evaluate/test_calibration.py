"""Brier score, calibration and sensitivity at a specificity: by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve
from support.metric_cases import bags

from smmil.errors import ConfigError
from smmil.evaluate import bag_metrics, reliability_curve


def test_four_cases_by_hand():
    found = bag_metrics(bags([0.9, 0.5, 0.5, 0.2], [1, 1, 0, 0]))
    assert found["brier"] == pytest.approx((0.01 + 0.25 + 0.25 + 0.04) / 4)
    # bins: 0.2 alone (gap 0.2), both 0.5 (half of them positive: gap 0), 0.9 alone (gap 0.1)
    assert found["ece"] == pytest.approx((0.2 + 0 + 0 + 0.1) / 4)


def test_a_reliability_curve_by_hand():
    found = reliability_curve(bags([0.1, 0.3, 0.35, 0.8, 1.0, 0.0], [0, 0, 1, 1, 1, 1]), bins=2)
    assert (found["low"], found["high"]) == ([0, 0.5], [0.5, 1])
    assert found["n"] == [4, 2]
    assert found["mean_probability"] == pytest.approx([(0.1 + 0.3 + 0.35 + 0) / 4, 0.9])
    assert found["observed"] == [0.5, 1]
    assert found["ece"] == pytest.approx((4 * (0.5 - 0.1875) + 2 * 0.1) / 6)
    assert found["largest_gap"] == pytest.approx(0.5 - 0.1875)


@pytest.mark.parametrize("seed", range(10))
def test_curve_and_brier_agree_with_scikit_learn_with_probabilities_on_the_edges(seed):
    rng = np.random.default_rng(seed)
    p, y = rng.integers(0, 21, 80) / 20, rng.permutation([0] * 30 + [1] * 50)
    some, found = bags(p, y), reliability_curve(bags(p, y))
    observed, mean = calibration_curve(y, p, n_bins=10)
    filled = [i for i, n in enumerate(found["n"]) if n]
    assert [found["observed"][i] for i in filled] == pytest.approx(observed)
    assert [found["mean_probability"][i] for i in filled] == pytest.approx(mean)
    weights = np.array(found["n"])[filled]
    assert bag_metrics(some)["ece"] == pytest.approx(np.average(abs(observed - mean), weights=weights))
    assert bag_metrics(some)["ece"] == found["ece"]
    assert bag_metrics(some)["brier"] == pytest.approx(metrics.brier_score_loss(y, p))


@pytest.mark.parametrize("seed", range(5))
def test_four_classes_are_judged_by_the_most_probable_one(seed):
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.ones(4), 60), rng.integers(0, 4, 60)
    found = bag_metrics(bags(p, y))
    assert found["brier"] == pytest.approx(((p - np.eye(4)[y]) ** 2).sum(1).mean())
    top, right = p.max(1), p.argmax(1) == y
    gaps = [
        inside.mean() * abs(top[inside].mean() - right[inside].mean())
        for low in np.arange(10) / 10
        if (inside := (top > low) & (top <= low + 0.1)).any()
    ]
    assert found["ece"] == pytest.approx(sum(gaps))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("key", "level"), [("sensitivity_at_90", 0.9), ("sensitivity_at_95", 0.95)])
def test_sensitivity_at_a_specificity_is_the_best_point_of_the_roc_curve(seed, key, level):
    rng = np.random.default_rng(seed)
    y = rng.permutation([0] * 40 + [1] * 20)
    p = np.round((y + rng.normal(size=60)) * 4) / 40 + 0.4
    false_share, true_share, _ = metrics.roc_curve(y, np.clip(p, 0, 1), drop_intermediate=False)
    expected = true_share[false_share <= 1 - level + 1e-9].max()
    assert bag_metrics(bags(np.clip(p, 0, 1), y))[key] == pytest.approx(expected)


def test_one_false_alarm_of_ten_negatives_is_a_specificity_of_90_percent():
    p = np.append(np.linspace(0.05, 0.55, 10), [0.5, 0.6])
    found = bag_metrics(bags(p, [0] * 10 + [1, 1]))
    assert found["sensitivity_at_90"] == 1
    assert found["sensitivity_at_95"] == 0.5


def test_four_classes_average_the_sensitivities_of_one_against_the_rest():
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(3), 60), np.arange(60) % 3
    single = [
        bag_metrics(bags(p[:, c], (y == c).astype(int)))["sensitivity_at_90"] for c in range(3)
    ]  # fmt: skip
    assert bag_metrics(bags(p, y))["sensitivity_at_90"] == pytest.approx(np.mean(single))


def test_one_class_or_no_case_is_undefined_not_zero():
    found = bag_metrics(bags([0.2, 0.4], [1, 1]))
    assert np.isnan(found["sensitivity_at_90"])
    assert found["brier"] == pytest.approx((0.64 + 0.36) / 2)
    empty = reliability_curve([])
    assert np.isnan(empty["ece"])
    assert np.isnan(empty["largest_gap"])
    assert empty["n"] == [0] * 10


def test_no_bins_are_refused():
    with pytest.raises(ConfigError, match="bins: got 0"):
        reliability_curve(bags([0.5], [1]), bins=0)
