"""Cuts into pseudo-bags, the instances selected from them, and averages over cuts."""

import itertools

import numpy as np
import pytest
import torch

from smmil.models.dtfd_mil import (
    _average_probabilities,
    _contrast_to_others,
    _cut_bags,
    _even_sizes,
    _extreme_rows,
    _fixed_orders,
    _last_class_log_odds,
    _random_orders,
)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("parts", [1, 2, 4, 7])
def test_pieces_have_the_sizes_of_numpys_array_split(parts):
    for n in range(parts, 40):
        assert _even_sizes(n, parts) == [len(piece) for piece in np.array_split(np.arange(n), parts)]


def test_there_is_never_an_empty_piece():
    for n in range(1, 12):
        assert _even_sizes(n, 8) == ([1] * n if n <= 8 else [2] * (n - 8) + [1] * (16 - n))


def test_a_cut_follows_the_orders_and_stays_inside_its_bags():
    cut = _cut_bags([torch.tensor([2, 0, 4, 1, 3]), torch.tensor([0]), torch.tensor([1, 0, 2])], 2)
    assert cut.order.tolist() == [2, 0, 4, 1, 3, 5, 7, 6, 8]
    assert cut.offsets.tolist() == [0, 3, 5, 6, 8, 9]
    assert cut.bags.tolist() == [0, 2, 3, 5]


def test_every_instance_sits_in_exactly_one_pseudo_bag():
    cut = _cut_bags(_random_orders([57, 3, 1, 20]), 4)
    assert cut.order.sort().values.tolist() == list(range(81))
    assert cut.offsets[-1] == 81
    assert cut.bags.diff().tolist() == [4, 3, 1, 4]


def test_random_orders_follow_torchs_global_generator():
    torch.manual_seed(3)
    first = _random_orders([30, 20])
    torch.manual_seed(3)
    assert all(torch.equal(a, torch.randperm(n)) for a, n in zip(first, (30, 20), strict=True))


def test_fixed_orders_depend_on_the_size_alone_and_leave_the_global_generator_alone():
    torch.manual_seed(1)
    state, first = torch.get_rng_state(), _fixed_orders(50, 2)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    more = _fixed_orders(50, 5)
    assert all(torch.equal(a, b) for a, b in zip(first, more, strict=False))
    assert all(o.sort().values.tolist() == list(range(50)) for o in more)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations([*more, torch.arange(50)], 2))


def test_neighbours_of_a_chain_scatter_over_the_pseudo_bags():
    """A cut keeps about 1/M of the edges; consecutive blocks instead of shuffled ones would keep nearly all."""
    (order,) = _fixed_orders(2000, 1)
    piece = torch.empty(2000, dtype=torch.long)
    piece[order] = torch.arange(2000) // 500
    assert abs((piece[1:] == piece[:-1]).double().mean() - 0.25) < 0.04


VALUES = torch.tensor([5.0, 1, 9, 7, 3, 8])


def test_extreme_rows_come_from_their_own_segment():
    rows, counts = _extreme_rows(VALUES, torch.tensor([0, 4, 6]), 2)
    assert rows.tolist() == [2, 3, 5, 4]
    assert counts.tolist() == [2, 2]
    rows, counts = _extreme_rows(VALUES, torch.tensor([0, 4, 6]), 1, lowest=True)
    assert rows.tolist() == [2, 1, 5, 4]
    assert counts.tolist() == [2, 2]


def test_short_segments_give_what_they_have():
    rows, counts = _extreme_rows(VALUES, torch.tensor([0, 1, 6]), 3)
    assert rows.tolist() == [0, 2, 5, 3]
    assert counts.tolist() == [1, 3]
    rows, counts = _extreme_rows(VALUES[:3], torch.tensor([0, 1, 3]), 2, lowest=True)
    assert rows.tolist() == [0, 0, 2, 1, 2, 1]
    assert counts.tolist() == [2, 4]


def test_the_first_of_equal_values_comes_first():
    rows, _ = _extreme_rows(torch.ones(100), torch.tensor([0, 100]), 3)
    assert rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_log_odds_are_those_of_the_last_probability(classes):
    logits = randn(20, classes)
    p = logits.softmax(1)[:, -1]
    assert torch.allclose(_last_class_log_odds(logits), (p / (1 - p)).log(), atol=1e-12)


def test_log_odds_still_rank_where_probabilities_have_become_equal():
    logits = torch.tensor([[0.0, 40.0], [0.0, 60.0], [0.0, 50.0]])
    assert logits.softmax(1)[:, 1].unique().numel() == 1
    assert _last_class_log_odds(logits).argsort().tolist() == [0, 2, 1]


def test_one_logit_is_its_own_log_odds_and_contrast():
    logits = randn(6, 1)
    assert torch.equal(_last_class_log_odds(logits), logits[:, 0])
    assert torch.equal(_contrast_to_others(logits), logits)


def test_a_class_is_set_against_the_mean_of_the_others():
    logits = torch.tensor([[1.0, 4.0, 10.0]])
    assert _contrast_to_others(logits).tolist() == [[1 - 7, 4 - 5.5, 10 - 2.5]]
    assert torch.allclose(_contrast_to_others(logits + 3), _contrast_to_others(logits))
    two = randn(5, 2)
    assert torch.allclose(_contrast_to_others(two)[:, 1], two[:, 1] - two[:, 0])


def test_probabilities_are_averaged_not_logits():
    one, many = randn(3, 4, 1), randn(3, 4, 5)
    assert torch.allclose(_average_probabilities(one).sigmoid(), one.sigmoid().mean(0), atol=1e-12)
    assert torch.allclose(_average_probabilities(many).softmax(1), many.softmax(2).mean(0), atol=1e-12)


def test_a_single_set_of_logits_stays_as_it_is_and_sure_ones_stay_finite():
    assert torch.equal(_average_probabilities(randn(1, 4, 3)), randn(1, 4, 3)[0])
    sure = torch.tensor([800.0, 900.0, 850.0], dtype=torch.float64).reshape(3, 1, 1)
    assert _average_probabilities(sure).isfinite().all()
    assert torch.allclose(_average_probabilities(-sure), -_average_probabilities(sure))
