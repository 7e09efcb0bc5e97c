"""Intervals and the p values that belong to them: by hand, turned around, and where rounding could decide."""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from smmil.evaluate.resampling import LEAST, Carriers, _TailCorrection, interval, subtract

MANY = Carriers({"patients": 10**9})  # Student's t is the normal distribution here
difference_interval = partial(interval, difference=True)
TWENTY = Carriers({"patients": 20})


def percentile(drawn, level=0.95, carriers=MANY, value=1.0):
    return difference_interval(np.array(drawn), value, carriers, list, "percentile", level)


def test_the_p_value_is_twice_the_smaller_tail_by_hand():
    # 41 draws lie 40 steps apart; 0 stands halfway between the second and the third
    far = partial(percentile, value=1e6)  # so far that Student's t has nothing to add
    assert far([-3.0, -1, 1, *range(2, 40)]).p == pytest.approx(2 * 1.5 / 40)
    # three draws of 0 oppose both sides: the greatest share with quantile 0 is 4 of 40 steps, the least 2 of 40
    assert far([-3.0, -1, 0, 0, 0, *range(1, 37)]).p == pytest.approx(2 * 4 / 40)
    assert far([3.0, 1, 0, 0, 0, *range(-36, 0)]).p == pytest.approx(2 * 4 / 40)
    assert percentile([0.0, 0, 0]).p == 1
    # none on the other side: as far as Student's t says, 1 over the deviation of the draws
    assert percentile([1.0, np.nan, 2, 3]).p == pytest.approx(2 * stats.norm.sf(1 / np.sqrt(2 / 3)))
    assert percentile([1.0, 1, 1, 1, 1]).p == 0
    assert np.isnan(percentile([np.nan, np.nan, 1.0]).p)


def test_the_ends_of_a_difference_lie_no_nearer_than_those_of_students_t():
    """Bootstrap means of few numbers have short tails; without the rule a tenth of these intervals would be shorter."""
    rng, shorter = np.random.default_rng(0), 0
    for _ in range(60):
        x = rng.normal(0.5, 1, 10)
        drawn = x[rng.integers(0, 10, (500, 10))].mean(1)
        found = difference_interval(drawn, x.mean(), Carriers({"patients": 10}), list, "percentile", 0.95)
        half = stats.t.ppf(0.975, 9) * drawn.std() * np.sqrt(10 / 9)
        assert found.low <= x.mean() - half + 1e-12
        assert found.high >= x.mean() + half - 1e-12
        assert found.p >= 2 * stats.t.sf(abs(x.mean()) / (drawn.std() * np.sqrt(10 / 9)), 9) - 1e-12
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)
        plain = interval(drawn, x.mean(), Carriers({"patients": 10}), list, "percentile", 0.95)
        shorter += plain.high - plain.low < found.high - found.low
    assert shorter > 30


def skew_mean(rng, ties):
    """Resamples of a skew difference of small samples, the value itself, and those with each case left out."""
    x = rng.exponential(size=20) - rng.exponential(size=20) + rng.normal(0.4, 0.3)
    x = np.round(x) if ties else x
    weights = rng.multinomial(20, np.full(20, 1 / 20), size=400)
    left_out = (x.sum() - x) / 19
    return weights @ x / 20, x.mean(), left_out


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize("ties", [False, True])
def test_p_is_below_five_per_cent_exactly_where_the_interval_excludes_zero(method, ties):
    rng, outside = np.random.default_rng(0), 0
    for _ in range(400):
        drawn, value, left_out = skew_mean(rng, ties)
        found = difference_interval(drawn, value, TWENTY, lambda left_out=left_out: [left_out], method, 0.95)
        excluded = found.low > 0 or found.high < 0
        outside += excluded
        assert (found.p < 0.05) == excluded
        assert found.method == method
    assert 40 < outside < 360  # both happen often


@pytest.mark.parametrize("level", [0.5, 0.8, 0.99])
def test_p_is_one_minus_the_level_of_the_interval_that_ends_at_zero(level):
    rng = np.random.default_rng(1)
    for _ in range(20):
        drawn, value, left_out = skew_mean(rng, ties=False)
        low = interval(drawn, value, TWENTY, lambda left_out=left_out: [left_out], "bca", level).low
        moved = difference_interval(
            drawn - low, value - low, TWENTY, lambda left_out=left_out: [left_out], "bca", level
        )
        assert moved.low == pytest.approx(0, abs=1e-12)
        assert moved.p == pytest.approx(1 - level, abs=1e-9)


def test_where_bca_does_not_exist_p_is_that_of_the_percentile_interval():
    drawn = np.linspace(-0.2, 1, 101)
    for left_out, value in ((np.ones(5), 0.5), (np.arange(5.0), 2.0)):
        found = difference_interval(drawn, value, MANY, lambda left_out=left_out: [left_out], "bca", 0.95)
        assert found.method == "percentile"
        plain = difference_interval(drawn, value, MANY, list, "percentile", 0.95)
        assert (found.low, found.high, found.p) == (plain.low, plain.high, plain.p)
        assert found.p == pytest.approx(2 * 0.2 / 1.2)


def test_the_bend_of_bca_can_be_turned_around_and_ends_at_its_pole():
    for correction in (_TailCorrection(12), _TailCorrection(99, 0.3, 0.1), _TailCorrection(30, -1.2, -1 / 10)):
        for share in (1e-4, 0.025, 0.5, 0.975, 1 - 1e-4):
            assert correction.inverted(correction.adjusted(share)) == pytest.approx(share, rel=1e-6)
        assert (correction.inverted(0), correction.inverted(1)) == (0, 1)
    assert _TailCorrection(10**9).adjusted(0.025) == pytest.approx(0.025)
    assert _TailCorrection(10**9, 6.0, 1 / 6).adjusted(0.9) == 1  # beyond the pole, not around it
    assert _TailCorrection(10**9, 3.0, 1 / 6).inverted(1e-4) < 1e-300
    assert _TailCorrection(10**9, -3.0, -1 / 6).inverted(1 - 1e-4) == 1


def test_differences_that_are_only_rounding_are_none():
    a = np.array([0.1 + 0.2, 0.5, 1e6 + 1e-9, np.nan])
    found = subtract(a, np.array([0.3, 0.4, 1e6, 0.0]))
    assert found[:3].tolist() == [0, pytest.approx(0.1), 0]
    assert np.isnan(found[3])
    thirds = np.array([1 / 3, 1 / 3 + 1e-16, 1 / 3 - 1e-16] * 20)
    none = interval(thirds, 1 / 3, MANY, lambda: [thirds], "bca", 0.95)
    assert none.method == "none"
    assert np.isnan([none.low, none.high]).all()
    assert any("all resamples give the same value" in note for note in none.notes)


def test_resamples_at_the_estimate_count_half_even_when_rounded_otherwise():
    rng = np.random.default_rng(0)
    drawn, left_out = np.append(rng.normal(0.1, 0.3, 300), np.full(100, 0.1)), rng.normal(size=20)
    exact = interval(drawn, 0.1, TWENTY, lambda: [left_out], "bca", 0.95)
    rounded = interval(drawn - 1e-15, 0.1, TWENTY, lambda: [left_out], "bca", 0.95)
    assert rounded[:2] == pytest.approx(exact[:2], abs=1e-12)


def test_few_patients_widen_an_interval_to_that_of_students_t():
    """Draws of a mean are about normal with the variance of the sample over n: the ends must be those of the t-test."""
    x = np.random.default_rng(0).normal(size=12)
    drawn = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, x.mean(), x.std() / np.sqrt(12))
    found = difference_interval(drawn, x.mean(), Carriers({"patients": 12}), list, "percentile", 0.95)
    expected = stats.ttest_1samp(x, 0)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-3)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-3)
    shifted = difference_interval(drawn + 9, x.mean() + 9, Carriers({"patients": 12}), list, "percentile", 0.95)
    assert shifted.p == pytest.approx(2.0**-11)  # twelve coins that all fall on one side


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"patients": LEAST - 1}, f"{LEAST - 1} patients"),
        ({"patients": 40, "negative patients": 37, "positive patients": 3}, "3 positive patients"),
        ({"cases": LEAST, "positive cases": LEAST}, ""),
    ],
)
def test_too_few_carriers_of_any_kind_leave_neither_interval_nor_p(counts, words):
    drawn = np.random.default_rng(0).normal(1, 0.1, 200)
    for find in (interval, difference_interval):
        found = find(drawn, 1.0, Carriers(counts), lambda: [np.arange(5.0)], "percentile", 0.95)
        assert found.shortage == words
        assert np.isnan(found.low) == np.isnan(found.high) == bool(words)
        assert np.isnan(found.p) == (bool(words) or find is interval)
        assert any(f"no interval: {words}, and at least {LEAST} are needed" in note for note in found.notes) == bool(
            words
        )


def test_no_end_lies_beyond_what_the_metric_can_be():
    """Few patients and a difference near the largest possible one: Student's t alone reaches beyond it."""
    drawn = np.random.default_rng(0).choice([0.4, 0.7, 0.9, 1.0, 1.0], (500, 10)).mean(1)
    ten, kinds = Carriers({"patients": 10}), {"difference": True}
    free = interval(drawn, 0.9, ten, list, "percentile", 0.95, **kinds)
    kept = interval(drawn, 0.9, ten, list, "percentile", 0.95, bounds=(0.0, 1.0), **kinds)
    assert free.high > 1.0 == kept.high
    assert (kept.low, kept.p) == (free.low, free.p)
    turned = interval(-drawn, -0.9, ten, list, "percentile", 0.95, bounds=(0.0, 1.0), **kinds)
    assert (turned.low, turned.high) == pytest.approx((-kept.high, -kept.low))
    half = interval(drawn, 0.9, ten, list, "percentile", 0.95, bounds=(0.2, 0.8), **kinds)
    assert half.high == pytest.approx(0.6)
    assert interval(drawn, 0.9, ten, list, "percentile", 0.95, bounds=(0.0, 0.95)).high == 0.95
