"""Whether a best validation AUROC may be chance: the exact probability, and the words."""

from itertools import combinations, permutations, product

import numpy as np
import pytest

from smmil.evaluate.ranking import (
    _chance_deviation,
    chance_in_words,
    chance_probability,
    target_chance_in_words,
)


@pytest.mark.parametrize(("positives", "negatives"), [(1, 1), (2, 3), (4, 4), (5, 3)])
def test_the_probability_is_the_share_of_all_orders_that_are_as_good(positives, negatives):
    """Every order of the cases is equally likely when scores say nothing."""
    places = range(positives + negatives)
    wins = [
        sum(high > low for high in chosen for low in set(places) - set(chosen))
        for chosen in combinations(places, positives)
    ]
    for won in range(positives * negatives + 1):
        expected = sum(w >= won for w in wins) / len(wins)
        assert chance_probability(won / positives / negatives, positives, negatives) == pytest.approx(expected)


def test_many_cases_agree_with_the_exact_count():
    exact, nearly = (chance_probability(0.65, n, 40) for n in (29, 30))
    assert nearly == pytest.approx(exact, rel=0.15)


def test_words_appear_where_chance_is_likely_and_only_there():
    assert "on 10 validation cases (5 positive) the best AUROC, 0.700, is no better" in chance_in_words(0.7, [0, 1] * 5)
    assert chance_in_words(0.9, [0, 1] * 10) is None
    assert "too few to tell" in chance_in_words(1.0, [0, 0, 1])
    assert "p =" not in chance_in_words(0.5, [0, 1, 2] * 5)
    assert chance_in_words(0.6, [0, 1, 2] * 5) is None
    for nothing in (float("nan"), None):
        assert chance_in_words(nothing, [0, 1]) is None


@pytest.mark.parametrize("n", [3, 6])
def test_deviations_of_chance_are_those_of_all_orders(n):
    pairs = list(combinations(range(n), 2))
    orders = list(permutations(range(n)))
    concordance = [np.mean([order[a] < order[b] for a, b in pairs]) for order in orders]
    correlation = [np.corrcoef(order, np.arange(n))[0, 1] for order in orders]
    assert np.std(concordance) == pytest.approx(_chance_deviation("cindex", n))
    assert np.std(correlation) == pytest.approx(_chance_deviation("spearman", n))
    if n % 2 == 0:
        aurocs = [np.mean([a > b for a, b in product(order[: n // 2], order[n // 2 :])]) for order in orders]
        assert np.std(aurocs) == pytest.approx(_chance_deviation("auroc", n))


def test_other_targets_are_doubted_where_their_metric_may_be_chance():
    assert "on 30 validation cases with an event the best C-index, 0.550" in target_chance_in_words("cindex", 0.55, 30)
    assert target_chance_in_words("cindex", 0.8, 30) is None
    assert "too few to tell" in target_chance_in_words("spearman", 1.0, 3)
    assert "kappa, 0.200, is no better" in target_chance_in_words("kappa", 0.2, 40)
    assert target_chance_in_words("kappa", 0.4, 40) is None
    assert "mean AUROC" in target_chance_in_words("auroc", 0.5, 40)
    assert "mean AUROC, 0.600, is no better than chance (0.5 ± 0.15)" in target_chance_in_words("auroc", 0.6, 40)
    assert target_chance_in_words("auroc", 0.7, 40) is None
    assert target_chance_in_words("spearman", float("nan"), 40) is None
