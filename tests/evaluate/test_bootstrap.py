"""Confidence intervals against scipy, with patients, and where they do not exist."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.metric_cases import bags, random_cases

from smmil.errors import ConfigError
from smmil.evaluate import bag_metrics, bootstrap_ci, compare
from smmil.evaluate.bags import resampled_in_words
from smmil.evaluate.instances import KnownInstances
from smmil.evaluate.ranking import OperatingPoints


def mean_probability(predictions):
    return float(np.mean([p.probs[-1] for p in predictions])) if predictions else float("nan")


def widened(level, n):
    """The level of the normal distribution whose interval is that of Student's t for n patients."""
    return 1 - 2 * stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf((1 - level) / 2, n - 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_the_interval_of_a_mean_is_that_of_scipy(seed, method):
    p = np.random.default_rng(seed).beta(0.5, 3, 37)
    found = bootstrap_ci(bags(p, [0] * 37), mean_probability, method=method, n=500, seed=7, level=0.9)
    kind = {"bca": "BCa"}.get(method, method)
    expected = stats.bootstrap(
        (p,), np.mean, n_resamples=500, method=kind, confidence_level=widened(0.9, 37), rng=np.random.default_rng(7)
    )
    assert (found["low"], found["high"]) == pytest.approx(tuple(expected.confidence_interval), rel=1e-9)
    assert found["std"] == pytest.approx(expected.standard_error, rel=1e-9)
    assert found["method"] == method


def test_the_stratified_interval_of_auroc_is_that_of_scipy_with_two_samples():
    rng = np.random.default_rng(0)
    negative, positive = rng.beta(2, 3, 25), rng.beta(3, 2, 20)

    def area(low, high):
        return OperatingPoints.of(np.append(low, high), np.arange(len(low) + len(high)) >= len(low)).roc_area()

    expected = stats.bootstrap(
        (negative, positive), area, n_resamples=400, method="BCa", confidence_level=widened(0.95, 20),
        rng=np.random.default_rng(3), vectorized=False,
    )  # fmt: skip
    some = bags(np.append(negative, positive), [0] * 25 + [1] * 20)
    found = bootstrap_ci(some, "bag_auroc", n=400, seed=3, stratified=True)
    assert (found["low"], found["high"]) == pytest.approx(tuple(expected.confidence_interval), rel=1e-9)


def test_cases_of_a_patient_come_and_go_together():
    # every patient has four equal cases: resampling patients sees 10 values, resampling bags pretends there are 40
    p = np.repeat(np.random.default_rng(0).random(10), 4)
    some = bags(p, [0] * 40, patients=[f"p{i // 4}" for i in range(40)])
    alone = bags(p[::4], [0] * 10)
    by_patient = bootstrap_ci(some, mean_probability, n=800)
    single = bootstrap_ci(alone, mean_probability, n=800)
    assert (by_patient["low"], by_patient["high"]) == pytest.approx((single["low"], single["high"]))
    by_bag = bootstrap_ci(some, mean_probability, unit="bag", n=800)
    assert by_patient["std"] / by_bag["std"] == pytest.approx(2, rel=0.1)
    assert (by_patient["n_units"], by_bag["n_units"], by_bag["n_cases"]) == (10, 40, 40)


def test_a_missing_patient_is_said_not_guessed():
    found = bootstrap_ci(bags([0.1, 0.9] * 10, [0, 1] * 10), n=50)
    assert any("every case counts as a patient of its own" in note for note in found["notes"])
    some = bags([0.1, 0.9] * 10, [0, 1] * 10, patients=[None, *range(19)])
    found = bootstrap_ci(some, n=50)
    assert "1 of 20 predictions name no patient; each counts as a patient of its own" in found["notes"]
    assert bootstrap_ci(some, mean_probability, n=50, unit="bag")["notes"] == []


def test_a_case_that_names_only_itself_as_group_has_no_known_patient():
    # files written before patients were left out where a manifest names none
    some = [replace(p, meta={"group": p.id}) for p in bags([0.1, 0.9] * 10, [0, 1] * 10)]
    found = bootstrap_ci(some, n=50)
    assert found["n_units"] == 20
    assert any("patients are unknown or have one case each" in note for note in found["notes"])
    shared = [*some[:-1], replace(some[-1], meta={"group": some[0].id})]
    found = bootstrap_ci(shared, n=50)
    assert found["n_units"] == 19
    assert not any("patient of its own" in note for note in found["notes"])


def test_who_is_resampled_can_be_said_in_words():
    plain = bags([0.1, 0.9] * 5, [0, 1] * 5)
    assert resampled_in_words(plain) == "10 cases resampled, patients unknown"
    alone = [replace(p, meta={"group": p.id}) for p in plain]
    assert resampled_in_words(alone) == "10 cases resampled, patients unknown or of one case each"
    known = [replace(p, meta={"patient": i // 2}) for i, p in enumerate(plain)]
    assert resampled_in_words(known) == "5 patients resampled"
    assert resampled_in_words([*known[:8], *plain[8:]]) == "6 patients resampled, counting 2 cases without one"


@pytest.mark.parametrize("key", ["patient", "group"])
def test_the_patient_is_read_from_either_word(key):
    some = [replace(p, meta={key: i // 2}) for i, p in enumerate(bags([0.1, 0.9] * 10, [0, 1] * 10))]
    assert bootstrap_ci(some, n=10)["n_units"] == 10


def test_a_case_named_like_a_patient_is_not_that_patient():
    some = bags([0.1, 0.9], [0, 1], patients=["c0001", None])
    assert bootstrap_ci(some, n=10)["n_units"] == 2


def test_the_value_is_the_metric_itself():
    some = random_cases()
    found = bootstrap_ci(some, "auroc", n=50)
    assert found["value"] == bag_metrics(some)["auroc"]
    assert found["metric"] == "bag_auroc"
    assert found["score_kind"] == "attention logit"


def test_the_same_seed_gives_the_same_interval_in_any_order():
    some = random_cases()
    assert bootstrap_ci(some, "inst_auroc", n=100) == bootstrap_ci(some[::-1], "inst_auroc", n=100)
    assert bootstrap_ci(some, "froc", n=100) == bootstrap_ci(some[::-1], "froc", n=100)
    assert bootstrap_ci(some, "inst_auroc", n=100)["low"] != bootstrap_ci(some, "inst_auroc", n=100, seed=1)["low"]


def test_resamples_of_one_class_are_counted_and_left_out():
    found = bootstrap_ci(bags([0.9, 0.2, 0.8, 0.1, 0.3, 0.95], [1, 0, 0, 0, 0, 0]), n=400)
    share = (5 / 6) ** 6  # the chance that the only positive case is never drawn
    assert found["n_undefined"] / 400 == pytest.approx(share, abs=0.08)
    assert any("resamples are undefined" in note for note in found["notes"])
    stratified = bootstrap_ci(bags([0.9, 0.2, 0.8, 0.1], [1, 0, 0, 0]), n=200, stratified=True)
    assert stratified["n_undefined"] == 0


def test_mostly_undefined_resamples_give_no_interval():
    def only_if_all_are_there(predictions):
        return 1.0 if len({p.id for p in predictions}) == 12 else float("nan")

    found = bootstrap_ci(bags([0.5] * 12, [0] * 12), only_if_all_are_there, n=100)
    assert found["value"] == 1
    assert np.isnan([found["low"], found["high"]]).all()
    assert found["method"] == "none"
    assert "no interval: most resamples are undefined" in found["notes"]


def test_a_perfect_model_gets_an_honest_remark_instead_of_certainty():
    found = bootstrap_ci(bags([0.1] * 15 + [0.9] * 15, [0] * 15 + [1] * 15), n=200)
    assert found["value"] == 1
    assert np.isnan([found["low"], found["high"]]).all()
    assert found["method"] == "none"
    assert any("says nothing about uncertainty" in note for note in found["notes"])


def test_an_undefined_metric_has_no_interval():
    for some in ([], bags([0.5, 0.6], [1, 1])):
        found = bootstrap_ci(some, n=20)
        assert np.isnan([found["value"], found["low"], found["high"]]).all()
        assert "no interval: the metric itself is undefined" in found["notes"]


@pytest.mark.parametrize(("positive", "words"), [(9, "9 positive patients"), (10, "")])
def test_every_class_needs_ten_patients_however_many_cases_they_have(positive, words):
    rng, y = np.random.default_rng(0), np.repeat([1] * positive + [0] * 20, 3)
    some = bags(rng.random(len(y)), y, patients=[f"p{i // 3}" for i in range(len(y))])
    found, between = bootstrap_ci(some, n=60), compare(some, bags(rng.random(len(y)), y), n=60)
    assert found["shortage"] == between["shortage"] == words
    assert np.isnan([found["low"], found["high"], between["low"], between["p"]]).all() == bool(words)
    assert between["delong"] is None  # several cases of each patient
    assert bootstrap_ci(some, "bag_brier", n=60)["shortage"] == ""  # a mean over cases needs no class


def test_pooled_instances_are_carried_by_the_patients_that_have_them():
    some = [replace(p, meta={"patient": f"p{i // 2}"}) for i, p in enumerate(random_cases(80))]
    positive = [p for p in some if KnownInstances.of(p).truth.any()]
    few = [p for p in some if p not in positive] + positive[:4]
    assert bootstrap_ci(some, "inst_auroc", n=40)["shortage"] == ""
    people = len({p.meta["patient"] for p in positive[:4]})
    assert bootstrap_ci(few, "inst_auroc", n=40)["shortage"] == f"{people} patients with positive instances"
    assert bootstrap_ci(few, "inst_auroc", unit="bag", n=40)["shortage"] == f"{people} patients with positive instances"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "bc"}, "method: unknown value 'bc'; did you mean bca"),
        ({"n": 1}, "n: got 1 resamples"),
        ({"level": 95}, "level: got 95, expected a share"),
        ({"unit": "slide"}, "unit: unknown value 'slide'"),
        ({"pool": "every"}, "pool: unknown value 'every'"),
        ({"metric": "acc"}, "metric: unknown value 'acc'"),
    ],
)
def test_impossible_plans_are_refused(options, words):
    with pytest.raises(ConfigError, match=words.replace("'", ".")):
        bootstrap_ci(random_cases(), **options)


@pytest.mark.slow
@pytest.mark.parametrize("stratified", [False, True])
def test_intervals_of_auroc_hold_the_truth_about_as_often_as_they_say(stratified):
    rng = np.random.default_rng(0)
    truth, held = stats.norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(200):
        y = np.arange(80) % 2
        z = y + rng.normal(size=80)
        found = bootstrap_ci(bags(1 / (1 + np.exp(-z)), y), n=400, level=0.9, stratified=stratified)
        held += found["low"] <= truth <= found["high"]
    # three standard errors around 180 of 200 are 167 and 193
    assert 165 <= held <= 193
