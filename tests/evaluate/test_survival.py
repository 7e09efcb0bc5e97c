"""Survival: against brute force over all pairs, values of lifelines 0.30.3, and laws."""

import numpy as np
import pytest
from support.target_cases import survival_case, target_cohort

from smmil.errors import ConfigError
from smmil.evaluate import bag_metrics, bootstrap_ci
from smmil.evaluate.risk_groups import risk_groups
from smmil.evaluate.survival import _Concordance, _FollowUp, _log_rank, _OverTime

TIME = np.array([5, 3, 8, 3, 9, 5, 5, 2, 9, 1, 7, 7, 4, 9.0])
EVENT = np.array([1, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0])
RISK = np.array([2, 3, 1, 3, 1, 2, 2, 4, 0, 1, 2, 1, 3, 1.0])
GROUP = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 2])
ONES = np.ones(len(TIME), dtype=int)


def tied(seed, n=30, censored=0.4):
    """Times and risks with many ties."""
    rng = np.random.default_rng(seed)
    event = (rng.random(n) > censored).astype(int)
    return rng.integers(1, 9, n).astype(float), event, rng.integers(0, 5, n).astype(float), rng.integers(0, 4, n)


def share_not_censored_before(time, event, t):
    """Product over earlier times of 1 - censored / (followed - events)."""
    chance = 1.0
    for u in sorted({x for x in time if x < t}):
        left = sum(time >= u) - sum((time == u) & (event == 1))
        chance *= 1 - (sum((time == u) & (event == 0)) / left if left else 0)
    return chance


def concordance_by_pairs(time, event, risk, power):
    right = known = 0.0
    for i in range(len(time)):
        for j in range(len(time)):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                weight = share_not_censored_before(time, event, time[i]) ** -power
                known += weight
                right += weight * (1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0)
    return right / known if known else np.nan


def auroc_by_pairs(time, event, marker, t):
    right = known = 0.0
    for i in range(len(time)):
        for j in range(len(time)):
            if event[i] and time[i] <= t and (time[j] > t or (time[j] == t and not event[j])):
                weight = 1 / share_not_censored_before(time, event, time[i])
                known += weight
                right += weight * (1.0 if marker[i] > marker[j] else 0.5 if marker[i] == marker[j] else 0.0)
    return right / known if known else np.nan


def brier_by_cases(time, event, probs, t):
    total = 0.0
    for own, happened, p in zip(time, event, probs, strict=True):
        if happened and own <= t:
            total += (1 - p) ** 2 / share_not_censored_before(time, event, own)
        elif own > t or (own == t and not happened):
            total += p**2 / share_not_censored_before(time, event, t)
    return total / len(time)


def test_values_of_lifelines_on_tied_and_censored_cases():
    follow_up = _FollowUp(TIME, EVENT)
    assert _Concordance(follow_up, RISK).harrell(ONES) == pytest.approx(0.7954545454545454, abs=1e-15)
    curve = [follow_up.curve().after(t) for t in range(10)]
    of_lifelines = [1, 0.928571428571, 0.857142857143, 0.785714285714, 0.707142857143]
    of_lifelines += [0.55, 0.55, 0.458333333333, 0.458333333333, 0.305555555556]
    np.testing.assert_allclose(curve, of_lifelines, atol=1e-12)
    two, three = _log_rank(follow_up, np.minimum(GROUP, 1)), _log_rank(follow_up, GROUP)
    assert (two.statistic, two.p) == pytest.approx((3.499224385119273, 0.061397577634201055), rel=1e-12)
    assert (three.statistic, three.p) == pytest.approx((11.832844396441292, 0.002694824497614163), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_both_c_indices_are_those_of_all_pairs(seed):
    time, event, risk, weights = tied(seed)
    pairs, again = _Concordance(_FollowUp(time, event), risk), [np.repeat(x, weights) for x in (time, event, risk)]
    assert pairs.harrell(weights) == pytest.approx(concordance_by_pairs(*again, 0), rel=1e-12)
    assert pairs.uno(weights) == pytest.approx(concordance_by_pairs(*again, 2), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_auroc_and_brier_score_over_time_are_those_of_all_pairs_and_cases(seed):
    time, event, risk, weights = tied(seed)
    times, probs = np.array([2.0, 3.0, 5.5]), np.stack([risk / 9, risk / 7, risk / 5], 1)
    over = _OverTime(_FollowUp(time, event), probs, times)
    own, happened, table = (np.repeat(x, weights, axis=0) for x in (time, event, probs))
    auroc = [auroc_by_pairs(own, happened, table[:, k], t) for k, t in enumerate(times)]
    brier = [brier_by_cases(own, happened, table[:, k], t) for k, t in enumerate(times)]
    np.testing.assert_allclose(over.auroc(weights), auroc, rtol=1e-12)
    np.testing.assert_allclose(over.brier(weights), brier, rtol=1e-12)
    by_hand = ((brier[0] + brier[1]) / 2 * 1.0 + (brier[1] + brier[2]) / 2 * 2.5) / 3.5
    assert over.integrated_brier(weights) == pytest.approx(by_hand, rel=1e-12)


def test_beyond_the_last_time_nothing_is_judged_though_the_last_case_had_an_event():
    time, event = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 0, 1, 1])
    over = _OverTime(_FollowUp(time, event), np.full((4, 4), 0.4), np.array([2.0, 4.0, 4.5, 9.0]))
    assert np.isnan(over.brier(np.ones(4, dtype=int))).tolist() == [False, False, True, True]
    assert np.isnan(over.brier(np.array([1, 1, 1, 0]))).tolist() == [False, True, True, True]  # a draw without the last
    until_four = _OverTime(_FollowUp(time, event), np.full((4, 2), 0.4), np.array([2.0, 4.0]))
    ones = np.ones(4, dtype=int)
    assert over.integrated_brier(ones) == until_four.integrated_brier(ones)


def test_without_censoring_the_weights_are_all_one():
    time, _, risk, _ = tied(5)
    pairs = _Concordance(_FollowUp(time, np.ones(len(time))), risk)
    ones = np.ones(len(time), dtype=int)
    assert pairs.uno(ones) == pytest.approx(pairs.harrell(ones), rel=1e-14)


def test_risk_and_its_opposite_share_one_and_equal_risks_are_worth_a_half():
    follow_up = _FollowUp(TIME, EVENT)
    for name in ("harrell", "uno"):
        there, back, flat = (getattr(_Concordance(follow_up, r), name)(ONES) for r in (RISK, -RISK, 0 * RISK))
        assert there + back == pytest.approx(1)
        assert flat == pytest.approx(0.5)


def test_uno_does_not_depend_on_who_was_censored_and_harrell_does():
    rng = np.random.default_rng(0)
    risk = rng.normal(size=1500)
    time = rng.exponential(np.exp(-2 * risk))
    censored = rng.exponential(0.3, size=1500)
    ones = np.ones(1500, dtype=int)
    whole = _Concordance(_FollowUp(time, ones), risk).harrell(ones)
    part = _Concordance(_FollowUp(np.minimum(time, censored), time <= censored), risk)
    assert abs(part.uno(ones) - whole) < 0.02 < abs(part.harrell(ones) - whole)


def test_brier_score_of_a_censored_cohort_is_that_of_the_whole_one():
    rng = np.random.default_rng(1)
    time, censored = rng.exponential(1, 4000), rng.exponential(1.5, 4000)
    probs, times = np.full((4000, 2), (0.3, 0.8)), np.array([0.5, 1.0])
    whole = _OverTime(_FollowUp(time, np.ones(4000)), probs, times).brier(np.ones(4000))
    part = _OverTime(_FollowUp(np.minimum(time, censored), time <= censored), probs, times).brier(np.ones(4000))
    np.testing.assert_allclose(part, whole, atol=0.02)


def test_nothing_is_invented_where_all_are_censored():
    cases = [survival_case(f"c{i}", i / 10, 5.0 + i, 0) for i in range(20)]
    found = bag_metrics(cases)
    assert np.isnan([found[key] for key in ("c_index", "c_index_uno", "time_auroc")]).all()
    assert any("none of the 20 cases had an event" in note for note in found["notes"])
    assert np.isnan(bootstrap_ci(cases, "bag_c_index", n=20)["low"])


def test_beyond_a_last_case_that_was_censored_there_is_no_brier_score():
    over = _OverTime(_FollowUp([1, 2, 3, 4.0], [1, 0, 1, 0]), np.full((4, 3), 0.5), np.array([2.0, 4.0, 5.0]))
    assert np.isnan(over.brier(np.ones(4))).tolist() == [False, False, True]


def test_a_case_censored_at_a_time_is_known_to_have_had_no_event_until_then():
    over = _OverTime(_FollowUp([1.0, 6.0, 6.0], [1, 0, 0]), np.array([[0.9], [0.1], [0.2]]), np.array([6.0]))
    assert over.auroc(np.ones(3)).tolist() == [1.0]
    assert over.brier(np.ones(3))[0] == pytest.approx((0.01 + 0.01 + 0.04) / 3)


def test_few_events_give_no_interval_and_no_p():
    cases = [survival_case(f"c{i}", i / 10, 30.0 - i, int(i % 3 == 0 and i < 21), patient=f"p{i}") for i in range(24)]
    assert bootstrap_ci(cases, "bag_c_index", n=50)["shortage"] == "7 patients with an event"
    groups = risk_groups(cases)
    assert groups.statistic > 0
    assert groups.p_text == "– (7 patients with an event)"
    assert groups.p != groups.p


def test_risk_groups_are_halves_or_thirds_of_patients_and_high_risk_dies_first():
    cases = target_cohort("survival", 60, noise=0.1)
    halves, thirds = risk_groups(cases), risk_groups(cases, 3)
    assert [g.n for g in halves.groups] == [30, 30]
    assert [g.n for g in thirds.groups] == [20, 20, 20]
    assert halves.groups[0].curve.after(24) > halves.groups[1].curve.after(24) + 0.2
    assert halves.p < 0.01
    with pytest.raises(ConfigError, match="halves"):
        risk_groups(cases, 4)


def test_a_patient_with_several_slides_counts_once_in_the_log_rank_test():
    once = target_cohort("survival", 40)
    twice = [survival_case(f"{p.id}{k}", p.value, *p.target, patient=p.meta["patient"]) for p in once for k in "ab"]
    assert risk_groups(twice).p == pytest.approx(risk_groups(once).p, rel=1e-12)
    wrong = [*twice[:-1], survival_case("other", 0.0, 1.0, 1, patient=twice[-1].meta["patient"])]
    assert risk_groups(wrong).p != risk_groups(wrong).p
    assert "different times" in risk_groups(wrong).notes[0]


@pytest.mark.slow
def test_the_log_rank_test_keeps_its_level_with_few_patients():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        time, censored = rng.exponential(1, 24), rng.exponential(2, 24)
        event = time <= censored
        cases = [survival_case(f"{i}", rng.normal(), min(time[i], censored[i]), int(event[i])) for i in range(24)]
        p = risk_groups(cases).p
        found += [] if np.isnan(p) else [p < 0.05]
    assert len(found) > 500
    assert np.mean(found) <= 0.065
