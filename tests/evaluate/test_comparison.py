"""Paired comparison: DeLong's published data, U-statistics by brute force, Holm by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats
from support.metric_cases import bags, random_cases

from smmil.errors import ConfigError, DataError
from smmil.evaluate import bootstrap_ci, compare, compare_models, delong, holm
from smmil.evaluate.bootstrap import _bounds
from smmil.evaluate.comparison import INSIDE, POOLED, pointing_or_telling
from smmil.evaluate.metrics import METRICS, register_metric
from smmil.evaluate.significance import _auroc_covariance
from smmil.prediction import Prediction

# albumin, total protein, K-G score and outcome of the 43 complete patients of DeLong, DeLong, Clarke-Pearson (1988)
OVARIAN = """
3.0 5.8 10 0  3.2 6.3 5 1  3.9 6.8 3 1  2.8 4.8 6 0  3.2 5.8 3 1  0.9 4.0 5 0  2.5 5.7 8 0  1.6 5.6 5 1  3.8 5.7 5 1
3.7 6.7 6 1   3.2 5.4 4 1  3.8 6.6 6 1  4.1 6.6 5 1  3.6 5.7 5 1  4.3 7.0 4 1  3.6 6.7 4 0  2.3 4.4 6 1  4.2 7.6 4 0
4.0 6.6 6 0   3.5 5.8 6 1  3.8 6.8 7 1  3.0 4.7 8 0  4.5 7.4 5 1  3.7 7.4 5 1  3.1 6.6 6 1  4.1 8.2 6 1  4.3 7.0 5 1
4.3 6.5 4 1   3.2 5.1 5 1  2.6 4.7 6 1  3.3 6.8 6 0  1.7 4.0 7 0  3.7 6.1 5 1  3.3 6.3 7 1  4.2 7.7 6 1  3.5 6.2 5 1
2.9 5.7 9 0   2.1 4.8 7 1  2.8 6.2 8 0  4.0 7.0 7 1  3.3 5.7 6 1  3.7 6.9 5 1  3.6 6.6 5 1
"""


def ovarian():
    albumin, protein, score, outcome = np.array(OVARIAN.split(), dtype=float).reshape(-1, 4).T
    return albumin, protein, 10 - score, outcome == 1


def test_the_published_example_of_delong():
    # areas, standard errors and contrasts to the K-G score as printed for these data
    albumin, protein, score, truth = ovarian()
    covariance = _auroc_covariance(np.stack([albumin, score, protein]), truth)
    assert np.sqrt(np.diag(covariance)) == pytest.approx([0.0927, 0.1028, 0.1000], abs=5e-5)
    first, second = delong(albumin, score, truth), delong(protein, score, truth)
    assert (first.auroc_a, first.auroc_b, second.auroc_a) == pytest.approx((0.7366, 0.7258, 0.6478), abs=5e-5)
    assert (first.difference, first.std_error, first.p) == pytest.approx((0.0108, 0.0953, 0.9102), abs=5e-5)
    assert (second.difference, second.std_error, second.p) == pytest.approx((-0.0780, 0.1046, 0.4561), abs=5e-5)


def slow_covariance(a, b, truth):
    """Covariance of two AUROCs from all pairs of pairs, written from the definition of the structural components."""

    def wins(score):
        return np.array([[(p > n) + 0.5 * (p == n) for n in score[~truth]] for p in score[truth]])

    x, y = wins(a), wins(b)
    m, n = x.shape
    ten = sum((x[i].mean() - x.mean()) * (y[i].mean() - y.mean()) for i in range(m)) / (m - 1)
    one = sum((x[:, j].mean() - x.mean()) * (y[:, j].mean() - y.mean()) for j in range(n)) / (n - 1)
    return ten / m + one / n


@pytest.mark.parametrize("seed", range(10))
def test_covariances_agree_with_all_pairs_of_pairs_with_ties(seed):
    rng = np.random.default_rng(seed)
    truth = rng.permutation([True] * 7 + [False] * 9)
    scores = rng.integers(0, 5, (2, 16)) + 2.0 * truth
    found = _auroc_covariance(scores, truth)
    for i, j in product(range(2), repeat=2):
        assert found[i, j] == pytest.approx(slow_covariance(scores[i], scores[j], truth), abs=1e-14)


def test_delong_of_equal_scores_is_no_difference_and_of_tiny_samples_unknown():
    truth, score = np.array([0, 0, 1, 1]) > 0, np.array([1.0, 3, 2, 4])
    assert delong(score, score, truth).p == 1
    assert delong(np.arange(4.0), np.arange(4.0) ** 2, truth)[2:6] == (0, 0, 0, 1)
    alone = delong(score, -score, np.array([0, 0, 0, 1]) > 0)
    assert np.isnan([alone.p, alone.low, alone.high]).all()


def two_models(n=60, seed=0, better=1.0, each=1):
    """Two models on n cases, so many of each patient."""
    rng = np.random.default_rng(seed)
    y, shared = np.arange(n) % 2, rng.normal(size=n)
    strong, weak = 2 * better * y + shared, 0.8 * y + shared + 0.7 * rng.normal(size=n)
    patients = [f"p{i // each}" for i in range(n)]
    return [bags(1 / (1 + np.exp(-z)), y, patients) for z in (strong, weak)]


def test_a_difference_comes_with_interval_and_both_tests():
    a, b = two_models()
    found = compare(a, b, n=500)
    assert found["difference"] == found["a"] - found["b"] == found["delong"]["difference"]
    assert found["low"] < found["difference"] < found["high"]
    assert found["delong"]["std_error"] == pytest.approx(found["std"], rel=0.35)
    assert (found["n_units"], found["n_cases"]) == (60, 60)


@pytest.mark.parametrize("unit", ["patient", "bag"])
def test_delong_is_not_asked_where_a_patient_has_several_cases(unit):
    a, b = two_models(each=2)
    found = compare(a, b, n=500, unit=unit)
    assert found["delong"] is None
    assert found["p"] <= 1
    assert (found["n_units"], found["n_cases"]) == (30 if unit == "patient" else 60, 60)
    assert any("no DeLong's test: it takes 60 cases of 30 patients as independent" in note for note in found["notes"])


def test_many_slides_of_few_patients_carry_no_interval_whatever_is_drawn():
    """Drawn as single bags, sixty slides of six patients would pass for sixty people."""
    a, b = two_models(each=10)
    found = compare(a, b, n=200, unit="bag")
    alone = bootstrap_ci(a, "bag_auroc", n=200, unit="bag")
    for result in (found, alone):
        assert result["shortage"] == "6 patients"
        assert np.isnan([result["low"], result["high"]]).all()
        assert any("60 cases of 6 patients are taken as independent" in note for note in result["notes"])
    assert np.isnan(found["p"])
    assert found["delong"] is None
    many, _ = two_models(each=3)
    assert bootstrap_ci(many, "bag_auroc", n=200, unit="bag")["shortage"] == ""
    assert any("60 cases of 20 patients" in note for note in bootstrap_ci(many, n=200, unit="bag")["notes"])


def test_perfect_models_are_equal_without_an_interval_of_no_width():
    _, b = two_models()
    perfect = [replace(p, probs=[0.9 if p.y else 0.1]) for p in b]
    found = compare(perfect, perfect, n=100)
    assert (found["difference"], found["p"]) == (0, 1)
    assert np.isnan([found["low"], found["high"]]).all()
    assert any("all resamples give the same value" in note for note in found["notes"])


def test_exchanging_the_models_turns_the_sign_and_keeps_the_p_value():
    a, b = two_models()
    one, other = compare(a, b, n=300), compare(b, a, n=300)
    assert other["difference"] == -one["difference"]
    assert (other["p"], other["delong"]["p"]) == (one["p"], one["delong"]["p"])
    assert (other["low"], other["high"]) == pytest.approx((-one["high"], -one["low"]))


def test_both_models_see_the_same_resamples():
    # the second model is the first with every probability halved: ranks are equal in every resample
    a, _ = two_models()
    halved = [replace(p, probs=p.probs / 2) for p in a]
    found = compare(a, halved, n=100)
    assert (found["difference"], found["p"], found["std"]) == (0, 1, 0)


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_the_paired_interval_of_a_mean_is_that_of_the_differences(method):
    def mean_probability(predictions):
        return float(np.mean([p.probs[-1] for p in predictions]))

    rng = np.random.default_rng(0)
    p, q = rng.random(30), rng.random(30)
    found = compare(bags(p, [0] * 30), bags(q, [0] * 30), mean_probability, n=400, seed=5, method=method)
    kind = {"bca": "BCa"}.get(method, method)
    wider = 1 - 2 * stats.norm.cdf(np.sqrt(30 / 29) * stats.t.ppf(0.025, 29))  # Student's t for 30 patients
    draws = np.random.default_rng(5)
    expected = stats.bootstrap((p - q,), np.mean, n_resamples=400, method=kind, confidence_level=wider, rng=draws)
    low, high = expected.confidence_interval
    if method == "percentile":  # no nearer than Student's t says
        reach = stats.t.ppf(0.975, 29) * np.sqrt(30 / 29) * expected.bootstrap_distribution.std()
        low, high = min(low, np.mean(p - q) - reach), max(high, np.mean(p - q) + reach)
    assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-9)


@pytest.mark.slow
def test_equal_models_are_called_different_in_about_one_of_twenty_cohorts():
    rng, rejected = np.random.default_rng(0), 0
    y = np.arange(20) % 2
    for _ in range(300):
        shared = y + np.sqrt(0.7) * rng.normal(size=20)
        scores = [shared + np.sqrt(0.3) * rng.normal(size=20) for _ in range(2)]
        a, b = (bags(1 / (1 + np.exp(-s)), y) for s in scores)
        rejected += compare(a, b, n=200)["p"] < 0.05
    # three standard errors around 15 of 300 are 4 and 26; BCa intervals exclude 0 in about 25
    assert 4 <= rejected <= 24


def test_order_of_cases_does_not_matter_and_pairs_go_by_id():
    a, b = random_cases(seed=1), random_cases(seed=2)
    for metric in ("bag_auroc", "inst_auroc", "inst_pointing_game", "froc"):
        assert compare(a, b, metric, n=60) == compare(a[::-1], b[5:] + b[:5], metric, n=60)


def test_each_model_may_have_its_own_threshold():
    a, b = random_cases(seed=1), random_cases(seed=2)
    found = compare(a, b, "inst_f1", n=20, threshold=(0.2, 0.9))
    assert found["a"] == bootstrap_ci(a, "inst_f1", n=20, threshold=0.2)["value"]
    assert found["b"] == bootstrap_ci(b, "inst_f1", n=20, threshold=0.9)["value"]
    assert found["threshold"] == [0.2, 0.9]
    assert found["delong"] is None


def test_cases_of_one_model_only_are_left_out_and_counted():
    a, b = two_models()
    found = compare(a[3:], b[:-1], n=50)
    assert (found["n_cases"], found["only_in_a"], found["only_in_b"]) == (56, 1, 3)
    assert any("1 cases only of the first model and 3 only of the second are left out" in n for n in found["notes"])


def test_patients_named_by_one_model_only_are_used_for_both():
    a, b = two_models(each=2)
    bare = [replace(p, meta={}) for p in a]
    assert compare(bare, b, n=50)["n_units"] == 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": 1}, "c0000: label 0 in the first model's file but 1 in the second's"),
        ({"y_inst": np.array([1])}, "c0000: instance labels differ"),
        ({"meta": {"patient": "other"}}, "c0000: belongs to patient other and p0"),
    ],
)
def test_cases_that_are_not_the_same_are_refused(change, words):
    a, b = two_models()
    with pytest.raises(DataError, match=words):
        compare(a, [replace(b[0], **change), *b[1:]])


def test_nothing_in_common_and_doubles_are_refused():
    a, b = two_models()
    with pytest.raises(DataError, match="no case in common"):
        compare(a[:5], b[10:])
    with pytest.raises(DataError, match="second model has 61 predictions of 60 cases"):
        compare(a, [*b, b[0]])


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04 -> never below the one before
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm([]) == []
    with pytest.raises(ConfigError, match="between 0 and 1"):
        holm([1.5])


def test_holm_does_not_count_undefined_tests():
    found = holm([0.02, float("nan"), 0.03])
    assert found[::2] == pytest.approx([0.04, 0.04])
    assert np.isnan(found[1])


@pytest.mark.parametrize("seed", range(10))
def test_holm_is_the_smallest_level_at_which_stepping_down_rejects(seed):
    p = np.random.default_rng(seed).random(6) ** 3

    def rejected(level):
        done = np.zeros(6, dtype=bool)
        for step, i in enumerate(np.argsort(p)):
            if p[i] > level / (6 - step):
                break
            done[i] = True
        return done

    for i, corrected in enumerate(holm(p)):
        assert corrected == 1 or rejected(corrected + 1e-12)[i]
        assert not rejected(corrected - 1e-9)[i]


def test_every_pair_of_models_is_compared_and_corrected():
    a, b = two_models()
    rows = compare_models({"a": a, "b": b, "c": two_models(seed=1)[1]}, n=200)
    assert [(row["model"], row["other"]) for row in rows] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [row["p_holm"] for row in rows] == holm([row["p"] for row in rows])
    assert [row["p_holm_delong"] for row in rows] == holm([row["delong"]["p"] for row in rows])


def test_models_may_be_compared_with_a_reference_only():
    a, b = two_models()
    cuts = {"a": 0.3, "b": 0.6, "c": 0.5}
    rows = compare_models({"a": a, "b": b, "c": b}, "bag_f1", reference="b", n=50, threshold=cuts)
    assert [(row["model"], row["threshold"]) for row in rows] == [("a", [0.3, 0.6]), ("c", [0.5, 0.6])]
    with pytest.raises(ConfigError, match="reference: unknown model"):
        compare_models({"a": a}, reference="zz")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_delong_refuses_scores_that_are_not_finite(wrong):
    with pytest.raises(DataError, match="finite"):
        delong(np.array([1, wrong, 3, 2]), np.array([1, 2, 3, 4]), np.array([0, 1, 1, 0]))


def found(difference, low, high):
    return {"difference": difference, "low": low, "high": high}


@pytest.mark.parametrize(
    ("pooled", "inside", "words"),
    [
        (
            (0.1, 0.05, 0.15),
            (0.0, -0.05, 0.05),
            "telling bags apart, not in pointing; inside positive bags it is smaller, or none",
        ),
        (
            (0.36, 0.06, 0.65),
            (0.32, -0.01, 0.6),
            "cannot be told; inside positive bags both no difference and the pooled",
        ),
        ((-0.36, -0.65, -0.06), (-0.32, -0.6, 0.01), "cannot be told"),
        ((-0.36, -0.65, -0.06), (-0.02, -0.2, 0.1), "telling bags apart, not in pointing"),
        ((0.1, 0.05, 0.15), (0.2, 0.1, 0.3), "a difference in pointing, for a"),
        ((-0.1, -0.15, -0.05), (-0.2, -0.3, -0.1), "a difference in pointing, to the cost of a"),
        ((0.0, -0.1, 0.1), (0.2, 0.1, 0.3), "a difference in pointing that pooling over bags hides"),
        ((0.1, 0.05, 0.15), (-0.2, -0.3, -0.1), "the two disagree; a tells bags apart better but points worse"),
        ((0.0, -0.1, 0.1), (0.0, -0.1, 0.1), ""),
        ((0.1, 0.05, 0.15), (0.0, float("nan"), float("nan")), ""),
    ],
)
def test_a_gain_that_vanishes_inside_positive_bags_is_no_gain_in_pointing(pooled, inside, words):
    told = pointing_or_telling("a", "b", {POOLED: found(*pooled), INSIDE: found(*inside)})
    assert words in told
    assert bool(told) == bool(words)
    assert pointing_or_telling("a", "b", {POOLED: found(*pooled)}) == ""


def test_a_map_of_bag_levels_gains_by_telling_bags_apart_only():
    """Scores that are the probability of their bag, against noise: pooled they win, inside a bag they say nothing."""
    rng, level, noise = np.random.default_rng(0), [], []
    for i in range(40):
        y, labels = i % 2, rng.integers(0, 2, 30) * (i % 2)
        facts = {"y": y, "y_inst": labels, "meta": {"patient": f"p{i}"}}
        level.append(Prediction(f"c{i:02}", [0.5], y + 0.01 * rng.normal(size=30), **facts))
        noise.append(Prediction(f"c{i:02}", [0.5], rng.normal(size=30), **facts))
    measures = {POOLED: "all", INSIDE: "positive_bags"}
    rows = {measure: compare(level, noise, "inst_auroc", pool=pool, n=300) for measure, pool in measures.items()}
    assert "telling bags apart, not in pointing" in pointing_or_telling("level", "noise", rows)


def test_a_difference_near_the_largest_possible_one_ends_there():
    """Twelve patients of each class: one model nearly always right, the other nearly always wrong."""
    right = [Prediction(f"c{i:02}", [0.2 + 0.6 * (i % 2) + 0.001 * i], [0.0], y=i % 2) for i in range(24)]
    wrong = [replace(p, probs=1 - p.probs) for p in right]
    right[3] = replace(right[3], probs=np.array([0.1]))
    wrong[8] = replace(wrong[8], probs=np.array([0.1]))
    found = compare(right, wrong, "bag_auroc", n=300)
    assert found["difference"] > 0.8
    assert found["high"] == 1.0
    assert compare(wrong, right, "bag_auroc", n=300)["low"] == -1.0


def test_every_metric_states_its_bounds():
    unbounded = {name for name, metric in METRICS.items() if not np.isfinite(metric.bounds).all()}
    lengths = {"bag_mae", "bag_rmse", "bag_level_mae", "bag_loss", "energy_geary", "energy_mean"}
    assert unbounded == {*lengths, "bag_integrated_brier", "bag_r2"}
    three = [Prediction(f"c{i:02}", np.eye(3)[(i + 1) % 3], [0.0], y=i % 3) for i in range(30)]
    assert bootstrap_ci(three, "bag_brier", n=20)["value"] == 2.0
    assert _bounds(METRICS["bag_brier"], three) == (0.0, 2.0)
    with pytest.raises(ConfigError, match="the lowest value, then the highest"):
        register_metric(replace(METRICS["bag_auroc"], name="bag_other", bounds=(1.0, 0.0)))
