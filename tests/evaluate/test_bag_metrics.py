"""Bag metrics against values worked out by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics

from smmil.errors import DataError
from smmil.evaluate import bag_metrics
from smmil.prediction import Prediction


def cases(probs, labels):
    return [
        Prediction(f"c{i:03}", np.atleast_1d(p), [0.0], y=y) for i, (p, y) in enumerate(zip(probs, labels, strict=True))
    ]


def test_four_cases_by_hand():
    # positives 0.9 and 0.5, negatives 0.5 and 0.2: of four pairs three are won and one is a tie
    found = bag_metrics(cases([0.9, 0.5, 0.5, 0.2], [1, 1, 0, 0]))
    assert found["auroc"] == pytest.approx(3.5 / 4)
    assert found["auprc"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found["f1"] == pytest.approx(4 / 5)
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert found["loss"] == pytest.approx(-(np.log(0.9) + np.log(0.5) + np.log(0.5) + np.log(0.8)) / 4)
    assert (found["n"], found["n_positive"], found["n_unlabelled"], found["notes"]) == (4, 2, 0, [])


def test_a_case_exactly_at_the_threshold_is_called_positive():
    assert bag_metrics(cases([0.5, 0.4], [1, 0]), threshold=0.5)["f1"] == 1
    assert bag_metrics(cases([0.5, 0.4], [1, 0]), threshold=0.51)["f1"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_two_classes_agree_with_scikit_learn_with_many_ties(seed):
    rng = np.random.default_rng(seed)
    p, y = rng.integers(0, 8, 60) / 8, rng.permutation([1] * 25 + [0] * 35)
    found, called = bag_metrics(cases(p, y), threshold=0.4), p >= 0.4
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p))
    assert found["auprc"] == pytest.approx(metrics.average_precision_score(y, p))
    assert found["f1"] == pytest.approx(metrics.f1_score(y, called))
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, called))
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, called))
    assert found["loss"] == pytest.approx(metrics.log_loss(y, np.clip(p, 1e-7, 1 - 1e-7)))


def test_one_probability_and_two_give_the_same_metrics():
    p, y = np.array([0.1, 0.7, 0.4, 0.9]), [0, 1, 1, 0]
    assert bag_metrics(cases(p, y)) == bag_metrics(cases(np.column_stack([1 - p, p]), y))


@pytest.mark.parametrize("seed", range(5))
def test_four_classes_agree_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.ones(4), 50), rng.permutation(np.arange(50) % 4)
    found = bag_metrics(cases(p, y))
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, p, multi_class="ovr", average="macro"))
    assert found["f1"] == pytest.approx(metrics.f1_score(y, p.argmax(1), average="macro"))
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, p.argmax(1)))
    assert found["loss"] == pytest.approx(metrics.log_loss(y, p))
    assert found["threshold"] is None


def test_a_class_without_cases_is_left_out_and_named():
    found = bag_metrics(cases([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.3, 0.6, 0.1]], [0, 1, 1]))
    assert found["auroc"] == 1
    assert found["notes"] == ["classes without cases are left out of the macro averages: [2]"]


def test_a_class_without_cases_that_was_answered_counts_zero_in_f1_as_in_scikit_learn():
    probs, y = np.array([[0.8, 0.1, 0.1, 0], [0.1, 0.8, 0.1, 0], [0.1, 0.3, 0.6, 0]]), [0, 1, 1]
    found = bag_metrics(cases(probs, y))
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found["f1"] == pytest.approx(metrics.f1_score(y, probs.argmax(1), average="macro"))
    assert found["balanced_accuracy"] == pytest.approx((1 + 1 / 2) / 2)
    assert found["notes"] == [
        "classes without cases are left out of the macro averages: [2, 3]; "
        "f1 counts 0 for those that were answered all the same: [2]"
    ]


def test_one_of_three_classes_only_has_f1_alone():
    found = bag_metrics(cases([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], [0, 0]))
    assert found["f1"] == pytest.approx((2 / 3 + 0) / 2) == metrics.f1_score([0, 0], [0, 1], average="macro")
    assert np.isnan(found["auroc"])
    assert "all 2 labelled cases are of class 0" in found["notes"][0]
    assert found["notes"][1].endswith("answered all the same: [1]")


@pytest.mark.parametrize(("label", "word"), [(0, "negative"), (1, "positive")])
def test_one_class_only_is_undefined_with_the_reason(label, word):
    found = bag_metrics(cases([0.9, 0.1], [label, label]))
    assert all(np.isnan(found[k]) for k in ("auroc", "auprc", "balanced_accuracy"))
    assert found["accuracy"] == 0.5
    assert f"all 2 labelled cases are {word}" in found["notes"][0]


def test_cases_without_a_label_are_left_out_and_counted():
    labelled = cases([0.9, 0.2], [1, 0])
    found = bag_metrics([*labelled, Prediction("z", [0.99], [0.0])])
    assert found["n"] == 2
    assert found["n_unlabelled"] == 1
    assert found["notes"] == ["1 cases without a label are left out"]
    assert {k: v for k, v in found.items() if k not in ("notes", "n_unlabelled")} == {
        k: v for k, v in bag_metrics(labelled).items() if k not in ("notes", "n_unlabelled")
    }


def test_nothing_labelled_is_nan_not_a_crash():
    for nothing in ([], [Prediction("z", [0.9], [0.0])]):
        found = bag_metrics(nothing)
        assert np.isnan(found["auroc"])
        assert np.isnan(found["loss"])
        assert "no case has a label" in found["notes"][0]


def test_a_certain_mistake_costs_the_clipped_logarithm():
    assert bag_metrics(cases([0.0, 0.5], [1, 0]))["loss"] == pytest.approx((-np.log(1e-7) + np.log(2)) / 2)


def test_models_of_different_heads_are_not_mixed():
    with pytest.raises(DataError, match=r"different numbers of classes .*c000: 1.*d: 3"):
        bag_metrics([*cases([0.4], [0]), Prediction("d", [0.2, 0.3, 0.5], [0.0], y=1)])


def test_order_of_cases_does_not_matter():
    some = cases([0.9, 0.5, 0.5, 0.2, 0.7], [1, 1, 0, 0, 1])
    assert bag_metrics(some) == bag_metrics(some[::-1])
