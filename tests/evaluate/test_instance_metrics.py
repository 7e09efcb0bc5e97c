"""Instance metrics and thresholds: by hand, by brute force and against scikit-learn."""

import time

import numpy as np
import pytest
from sklearn import metrics
from support.metric_cases import drawing, random_cases

from smmil.errors import ConfigError
from smmil.evaluate import best_f1_threshold, instance_metrics, summary
from smmil.evaluate.levels import _choose_threshold
from smmil.prediction import Prediction


def bag(name, scores, labels, y=1, **more):
    return Prediction(name, [0.5], np.array(scores, dtype=float), y=y, y_inst=labels, **more)


TWO = [bag("a", [3, 2, 1], [1, 0, 0]), bag("b", [12, 11, 10], [0, 1, 0])]


def test_pooling_and_averaging_are_different_questions_by_hand():
    # pooled: positives 3, 11 against 2, 1, 12, 10 -> 2 and 3 pairs won of 8; single bags: 1 and 1/2
    assert instance_metrics(TWO)["auroc"] == pytest.approx((2 + 3) / 8)
    assert instance_metrics(TWO, pool="per_bag")["auroc"] == pytest.approx((1 + 0.5) / 2)


def test_values_at_a_threshold_by_hand():
    # called: 3, 12, 11, 10 -> 2 right, 2 wrong, none missed
    found = instance_metrics(TWO, threshold=3)
    assert (found["precision"], found["recall"]) == (0.5, 1)
    assert found["f1"] == pytest.approx(2 * 2 / (2 * 2 + 2))
    assert found["dice"] == found["f1"]
    # bag a: perfect; bag b: one of three called is right -> F1 2/4
    found = instance_metrics(TWO, threshold=3, pool="per_bag")
    assert found["f1"] == pytest.approx((1 + 0.5) / 2)
    assert found["precision"] == pytest.approx((1 + 1 / 3) / 2)


def test_dice_is_twice_the_overlap_over_the_two_areas():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=50), rng.integers(0, 2, 50)
    called, truth = scores >= 0.2, labels == 1
    overlap = 2 * (called & truth).sum() / (called.sum() + truth.sum())
    assert instance_metrics([bag("a", scores, labels)], threshold=0.2)["dice"] == pytest.approx(overlap)


def test_dice_and_iou_of_a_drawn_map_by_hand():
    # called at 5 and above: six cells, four of them inside the lesion of five: Dice 2*4/(6+5), IoU 4/7
    drawn = drawing("slide", "5920\n7861\n0153", "##--\n##--\n#---")
    found = instance_metrics([drawn], threshold=5)
    assert found["dice"] == pytest.approx(8 / 11)
    assert found["iou"] == pytest.approx(4 / 7)
    assert found["iou"] == pytest.approx(found["dice"] / (2 - found["dice"]))


@pytest.mark.parametrize("seed", range(5))
def test_iou_agrees_with_scikit_learn_in_every_pool(seed):
    some = [p for p in random_cases(20, seed, levels=3) if p.y_inst is not None]
    for pool in ("all", "per_bag", "positive_bags"):
        parts = [(p.y_inst[k] > 0, p.scores[k, 0] >= 0.4) for p in some if (k := p.y_inst >= 0).any()
                 and (pool != "positive_bags" or p.y == 1)]  # fmt: skip
        if pool == "per_bag":
            expected = np.mean([metrics.jaccard_score(t, c) for t, c in parts if 0 < t.mean() < 1])
        else:
            expected = metrics.jaccard_score(*(np.concatenate(both) for both in zip(*parts, strict=True)))
        assert instance_metrics(some, 0.4, pool)["iou"] == pytest.approx(expected)


def test_the_pointing_game_by_hand():
    hit, missed = bag("hit", [3, 9, 1], [0, 1, 0]), bag("missed", [3, 2, 1], [0, 1, 1])
    shared = bag("shared", [5, 5, 5, 1], [1, 1, 0, 0])
    nothing, everything = bag("none", [1, 2], [0, 0], y=0), bag("all", [1, 2], [1, 1])
    unknown = bag("unknown", [9, 1, 2], [-1, 0, 1])
    some = [hit, missed, shared, nothing, everything, unknown]
    for pool in ("all", "per_bag", "positive_bags"):
        assert instance_metrics(some, pool=pool)["pointing_game"] == pytest.approx((1 + 0 + 2 / 3 + 1) / 4)
    assert np.isnan(instance_metrics([nothing, everything])["pointing_game"])


@pytest.mark.parametrize("seed", range(20))
def test_pooled_values_agree_with_scikit_learn_with_ties(seed):
    rng = np.random.default_rng(seed)
    bags = [bag(str(i), rng.integers(-3, 4, 30), rng.integers(0, 2, 30)) for i in range(3)]
    s, t = np.concatenate([b.scores[:, 0] for b in bags]), np.concatenate([b.y_inst for b in bags])
    found = instance_metrics(bags, threshold=1.0)
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(t, s))
    assert found["auprc"] == pytest.approx(metrics.average_precision_score(t, s))
    assert found["f1"] == pytest.approx(metrics.f1_score(t, s >= 1))
    assert found["precision"] == pytest.approx(metrics.precision_score(t, s >= 1))
    assert found["recall"] == pytest.approx(metrics.recall_score(t, s >= 1))


@pytest.mark.parametrize("pool", ["all", "per_bag", "positive_bags"])
def test_unknown_labels_never_take_part(pool):
    known = bag("a", [3, 2, 1, 0], [1, 0, 1, 0])
    more = bag("a", [3, 99, 2, 1, -99, 0], [1, -1, 0, 1, -1, 0])
    assert instance_metrics([known], 1.5, pool) == instance_metrics([more], 1.5, pool)
    assert best_f1_threshold([known]) == best_f1_threshold([more])


def test_positive_bags_are_those_with_a_positive_label():
    negative, unlabelled = bag("n", [50, 60], [0, 0], y=0), bag("u", [50, 60], [0, 1], y=None)
    found = instance_metrics([*TWO, negative, unlabelled], pool="positive_bags")
    assert found["auroc"] == instance_metrics(TWO)["auroc"]
    assert found["n_bags_used"] == 2
    assert instance_metrics([*TWO, negative])["auroc"] < instance_metrics(TWO)["auroc"]


def test_per_bag_counts_the_bags_it_could_use():
    found = instance_metrics([*TWO, bag("n", [1, 2], [0, 0], y=0), bag("u", [1, 2], [-1, -1])], pool="per_bag")
    assert (found["n_bags_used"], found["n_instances"], found["n_positive"]) == (2, 6, 2)
    assert any("1 of 4 bags have no known instance label" in note for note in found["notes"])
    assert any("1 bags with known instances of one class only" in note for note in found["notes"])


def test_without_a_threshold_f1_is_absent_and_the_reason_given():
    found = instance_metrics(TWO)
    assert not {"f1", "dice", "precision", "recall"} & set(found)
    assert found["threshold"] is None
    assert any("no threshold was given" in note for note in found["notes"])


@pytest.mark.parametrize("pool", ["all", "per_bag", "positive_bags"])
def test_no_labels_at_all_is_nan_with_a_reason(pool):
    for nothing in ([], [Prediction("a", [0.5], [1.0, 2.0], y=1)]):
        found = instance_metrics(nothing, 0.5, pool)
        assert np.isnan(found["auroc"])
        assert np.isnan(found["f1"])
        assert found["notes"]


def test_one_class_is_nan_with_a_reason():
    found = instance_metrics([bag("a", [1, 2], [0, 0])], threshold=9)
    assert np.isnan(found["auroc"])
    assert np.isnan(found["f1"])
    assert any("all 2 known instances are negative" in note for note in found["notes"])


def test_the_column_is_the_second_of_two_or_must_be_named():
    scores = np.array([[0.0, 3.0, 1.0], [1.0, 2.0, 5.0], [2.0, 1.0, 3.0]])
    labels = [1, 0, 0]
    two = Prediction("a", [0.5, 0.5], scores[:, :2], y=1, y_inst=labels)
    three = Prediction("a", [0.2, 0.4, 0.4], scores, y=1, y_inst=labels)
    assert instance_metrics([two])["auroc"] == 1
    assert instance_metrics([two], column=0)["auroc"] == 0
    assert instance_metrics([three], column=2)["auroc"] == 0
    with pytest.raises(ConfigError, match="3 columns"):
        instance_metrics([three])
    with pytest.raises(ConfigError, match="column 3 does not exist"):
        instance_metrics([three], column=3)


def test_any_class_above_zero_is_positive():
    assert instance_metrics([bag("a", [3, 2, 1], [2, 1, 0])])["n_positive"] == 2


def test_the_kind_of_score_is_reported_and_mixing_is_noticed():
    one, other = bag("a", [1, 2], [0, 1], meta={"score_kind": "attention logit"}), bag("b", [1, 2], [0, 1])
    assert instance_metrics([one])["score_kind"] == "attention logit"
    mixed = instance_metrics([one, other])
    assert mixed["score_kind"] == "attention logit + unknown"
    assert any("different kinds" in note for note in mixed["notes"])


def test_an_unknown_pool_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean per_bag"):
        instance_metrics(TWO, pool="perbag")


@pytest.mark.parametrize("seed", range(30))
def test_the_threshold_is_the_best_of_all_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 9, 25) / 4, np.append(rng.integers(0, 2, 24), 1)
    cuts = np.unique(scores)
    values = np.array([metrics.f1_score(labels, scores >= cut) for cut in cuts])
    best = max(cut for cut, value in zip(cuts, values, strict=True) if np.isclose(value, values.max(), atol=1e-12))
    assert best_f1_threshold([bag("a", scores, labels)]) == best


def test_the_threshold_reproduces_its_f1_on_the_same_float32_scores():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=400).astype(np.float32)
    some = [Prediction("a", [0.5], scores, y=1, y_inst=(scores + rng.normal(size=400)) > 0.3)]
    chosen = _choose_threshold(some)
    assert f"({instance_metrics(some, chosen.value)['f1']:.3f})" in chosen.source


def test_ties_between_thresholds_go_to_the_highest():
    # score >= 4 finds 1 of 2 with no alarm: F1 2/3; score >= 1 finds both with 2 alarms: F1 2/3
    assert best_f1_threshold([bag("a", [4, 3, 2, 1], [1, 0, 0, 1])]) == 4


def test_no_threshold_without_labels_and_the_reason():
    assert _choose_threshold([Prediction("a", [0.5], [1.0])]) == (None, "validation has no instance labels")
    assert _choose_threshold([bag("a", [1, 2], [0, 0])]) == (None, "validation has no positive instance")
    assert best_f1_threshold([]) is None


def test_a_million_instances_take_less_than_two_seconds():
    rng = np.random.default_rng(0)
    big = [Prediction("a", [0.5], rng.normal(size=10**6), y=1, y_inst=rng.random(10**6) < 0.1)]
    start = time.process_time()
    best_f1_threshold(big)
    assert time.process_time() - start < 2


def test_the_summary_says_where_its_threshold_came_from():
    assert summary(TWO)["threshold"] == {"value": None, "source": "no validation predictions were given"}
    assert summary(TWO, threshold=3)["threshold"] == {"value": 3.0, "source": "given by the user"}
    chosen = summary(TWO, validation=[bag("v", [5, 4, 3], [1, 1, 0])])
    assert chosen["threshold"] == {"value": 4.0, "source": "best instance F1 on validation (1.000)"}
    assert chosen["instance"]["all"]["threshold"] == 4.0
    assert set(chosen["instance"]) == {"all", "per_bag", "positive_bags"}


def test_labels_of_the_judged_cases_never_move_the_threshold():
    validation = [bag("v", [5, 4, 3], [1, 1, 0])]
    turned = [bag(b.id, b.scores[:, 0], 1 - b.y_inst) for b in TWO]
    assert summary(TWO, validation=validation)["threshold"] == summary(turned, validation=validation)["threshold"]
