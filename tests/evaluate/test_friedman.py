"""Friedman and Nemenyi: a published example, closed forms and a slow reference."""

import numpy as np
import pytest
from scipy import stats

from smmil.errors import DataError
from smmil.evaluate import friedman_nemenyi, mean_ranks, spread
from smmil.evaluate.significance import _not_different

# ranks of four classifiers on 14 data sets: table 6 of Demšar, JMLR 7 (2006)
DEMSAR = {
    "C4.5": [4, 1, 4, 4, 4, 1, 3, 2.5, 4, 2.5, 4, 3, 4, 3],
    "C4.5+m": [3, 2, 1, 1, 2, 2.5, 2, 2.5, 3, 2.5, 2.5, 2, 1, 1],
    "C4.5+cf": [2, 3, 2, 3, 3, 4, 4, 4, 2, 2.5, 1, 4, 2, 4],
    "C4.5+m+cf": [1, 4, 3, 2, 1, 2.5, 1, 1, 1, 2.5, 2.5, 1, 3, 2],
}


def test_a_published_example():
    found = friedman_nemenyi({name: [-r for r in ranks] for name, ranks in DEMSAR.items()})
    assert list(found["mean_ranks"]) == ["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]
    assert list(found["mean_ranks"].values()) == pytest.approx([1.964, 2.000, 2.893, 3.143], abs=5e-4)
    assert found["critical_difference"] == pytest.approx(1.25, abs=5e-3)
    # the printed 9.28 is without correction for ties: one data set with four, three with two equal models
    ties = 1 - (60 + 3 * 6) / (14 * 60)
    assert found["statistic"] * ties == pytest.approx(9.28, abs=5e-3)


@pytest.mark.parametrize(("k", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_values_are_those_of_the_published_table(k, q):
    rng = np.random.default_rng(0)
    found = friedman_nemenyi(dict(enumerate(rng.random((k, 7)).tolist())))
    assert found["critical_difference"] == pytest.approx(q * np.sqrt(k * (k + 1) / (6 * 7)), rel=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_statistic_is_its_closed_form_without_ties(seed):
    table = np.random.default_rng(seed).random((5, 9))
    found = friedman_nemenyi(dict(enumerate(table.tolist())))
    means = np.array(list(found["mean_ranks"].values()))
    assert found["statistic"] == pytest.approx(12 * 9 / 30 * ((means**2).sum() - 5 * 36 / 4))
    assert found["p"] == pytest.approx(stats.chi2.sf(found["statistic"], 4))


def test_a_pair_at_the_critical_difference_has_exactly_that_p_value():
    found = friedman_nemenyi(dict(enumerate(np.random.default_rng(1).random((4, 6)).tolist())), alpha=0.1)
    for pair in found["pairs"]:
        assert (pair["p"] < 0.1) == (pair["difference"] >= found["critical_difference"])
        ratio = pair["difference"] / np.sqrt(4 * 5 / 36) * np.sqrt(2)
        assert pair["p"] == pytest.approx(stats.studentized_range.sf(ratio, 4, np.inf), abs=1e-9)


def test_runs_of_equal_models_are_the_longest_ones():
    means = {"a": 1.0, "b": 1.5, "c": 2.4, "d": 4.0, "e": 6.0}
    assert _not_different(means, 1.5) == [["a", "b", "c"]]
    assert _not_different(means, 1.7) == [["a", "b", "c"], ["c", "d"]]
    assert _not_different(means, 0.1) == []
    assert _not_different(means, 9) == [["a", "b", "c", "d", "e"]]


def test_models_that_are_always_equal_do_not_differ():
    found = friedman_nemenyi({"a": [1, 2], "b": [1, 2], "c": [1, 2]})
    assert (found["statistic"], found["p"]) == (0, 1)
    assert [pair["p"] for pair in found["pairs"]] == [1, 1, 1]


def test_two_models_are_sent_to_the_paired_comparison():
    with pytest.raises(DataError, match="got 2 models and 3 columns"):
        friedman_nemenyi({"a": [1, 2, 3], "b": [2, 3, 4]})


def test_both_conventions_of_the_deviation_are_there():
    runs = [0.81, 0.84, 0.86, 0.80, 0.79]
    found = spread(runs)
    assert found == pytest.approx((np.mean(runs), np.std(runs, ddof=1), np.std(runs), 5))
    assert found.sample_std / found.population_std == pytest.approx(np.sqrt(5 / 4))
    assert np.isnan(spread([1.0]).sample_std)
    assert spread([1.0]).population_std == 0
    assert np.isnan(spread([]).mean)
    table = {"a": [1.0, 2, 5], "b": [2.0, 1, 4]}
    assert mean_ranks(table, ddof=0)["a"][1] == pytest.approx(np.std([2, 1, 1]))
    assert mean_ranks(table)["a"][1] == pytest.approx(np.std([2, 1, 1], ddof=1))
