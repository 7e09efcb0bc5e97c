"""Beliefs about instance labels and the prototypes they follow, against loops and hand-computed values."""

import copy

import pytest
import torch

from smmil.errors import DataError
from smmil.models.iib_mil import (
    _class_log_odds,
    _class_log_probs,
    _initial_beliefs,
    _LabelMemory,
    _most_certain,
    _nearest_prototypes,
    _updated_prototype,
    _updated_soft_labels,
)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("keep", [0.99, 0.5, 1.0, 0.0])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_following_in_one_sum_is_following_one_by_one(keep, count):
    start, h = rows(5, seed=1), rows(count, 5)
    slow = start
    for row in h:
        slow = keep * slow + (1 - keep) * row
    assert torch.allclose(_updated_prototype(start, h, keep), slow, rtol=0, atol=1e-12)


def test_the_surest_tenth_comes_falling_and_is_never_empty():
    assert _most_certain(torch.tensor([3.0, 9.0, 5.0])).tolist() == [1]
    odds = torch.arange(29.0)
    odds[4] = 100.0
    assert _most_certain(odds).tolist() == [4, 28]
    assert _most_certain(torch.zeros(30)).tolist() == [0, 1, 2]


def test_beliefs_begin_at_the_label_with_a_little_doubt_shared_by_the_others():
    q = _initial_beliefs(1, 2, 3, rows(1))
    assert q.tolist() == [[5e-7, 1 - 1e-6, 5e-7]] * 2


def test_a_belief_is_pulled_towards_the_chosen_class():
    q = torch.tensor([[0.2, 0.8], [0.2, 0.8]])
    found = _updated_soft_labels(q, torch.tensor([0, 1]), 0.75)
    assert torch.allclose(found, torch.tensor([[0.4, 0.6], [0.15, 0.85]]))


def test_the_nearest_prototype_is_the_one_of_largest_product_among_those_allowed():
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    h = torch.tensor([[2.0, 1.0], [1.0, 2.0], [-1.0, -1.0], [0.0, 0.0]])
    every = torch.tensor([True, True, True])
    assert _nearest_prototypes(h, prototypes, every).tolist() == [2, 2, 0, 0]
    assert _nearest_prototypes(h, prototypes, torch.tensor([True, True, False])).tolist() == [0, 1, 0, 0]
    assert _nearest_prototypes(h, prototypes, torch.tensor([False, True, False])).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_log_odds_are_the_logits_of_the_probabilities(classes):
    logits = rows(20, classes)
    p = logits.softmax(1)
    assert torch.allclose(_class_log_odds(logits), (p / (1 - p)).log(), rtol=0, atol=1e-10)
    assert torch.allclose(_class_log_probs(logits), p.log(), rtol=0, atol=1e-12)


def test_log_odds_do_not_saturate():
    assert _class_log_odds(torch.tensor([[-300.0, 300.0]])).tolist() == [[-600.0, 600.0]]


def test_one_logit_is_that_of_class_one():
    logit = rows(9, 1)
    assert torch.equal(_class_log_odds(logit), logit)
    assert torch.allclose(_class_log_probs(logit).exp(), torch.cat([1 - logit.sigmoid(), logit.sigmoid()], 1))


def memory(classes=2, **options):
    return _LabelMemory(4, classes, **{"warmup": 1, **options}).double()


def visit(memory, name, label, n=20, seed=0, settle=True):
    h, odds = rows(n, 4, seed=seed), rows(n, seed=seed + 1)
    q = memory.beliefs(name, label, h)
    memory.note(name, label, h, odds, q)
    if settle:
        memory.settle()
    return q


def test_noting_changes_nothing_until_it_is_settled():
    m = memory()
    visit(m, "a", 1)
    before = copy.deepcopy(m.state_dict())
    first = visit(m, "a", 1, settle=False)
    assert torch.equal(first, visit(m, "a", 1, settle=False))
    assert m.state_dict().keys() == before.keys()
    assert all(torch.equal(v, before[k]) for k, v in m.state_dict().items())
    m.settle()
    assert m.visits("a") == 2
    assert not torch.equal(m.state_dict()["prototypes"], before["prototypes"])


def test_beliefs_rest_for_the_warm_up_then_move():
    m = memory(warmup=3, keep_belief=0.5)
    for k in range(5):
        visit(m, "b", 0, seed=8)
        q = visit(m, "a", 1)
        assert torch.equal(q, _initial_beliefs(1, 20, 2, q)) == (k < 3)
        assert torch.allclose(q.sum(1), torch.ones(20, dtype=q.dtype), atol=1e-14)


def test_the_momentum_counts_bags_of_the_class_against_all_bags():
    """Of four bags one is of class 1: its prototype keeps 1 - 0.01·4 for each of its two _most_certain instances."""
    m = memory()
    m.prototypes[:] = rows(2, 4, seed=9)
    old = m.prototypes.clone()
    for k in range(3):
        visit(m, f"zero_{k}", 0, n=13, seed=k, settle=False)
    visit(m, "one", 1, n=20, seed=50, settle=False)
    m.settle()
    h, odds = rows(20, 4, seed=50), rows(20, seed=51)
    expected = old[1]
    for row in sorted(range(20), key=lambda i: -odds[i])[:2]:
        expected = 0.96 * expected + 0.04 * h[row]
    assert torch.allclose(m.prototypes[1], expected, rtol=0, atol=1e-12)
    pool = [(o, r) for k in range(3) for o, r in zip(rows(13, seed=k + 1), rows(13, 4, seed=k), strict=True)]
    keep, expected = 1 - 0.01 * 4 / 3, old[0]
    for _, row in sorted(pool, key=lambda pair: -pair[0])[:3]:
        expected = keep * expected + (1 - keep) * row
    assert torch.allclose(m.prototypes[0], expected, rtol=0, atol=1e-12)


def test_a_rare_class_in_a_large_batch_does_not_overshoot():
    m = memory(keep_prototype=0.5)
    m.prototypes[:] = 1
    for k in range(5):
        visit(m, f"zero_{k}", 0, settle=False)
    visit(m, "one", 1, n=1, seed=3, settle=False)
    m.settle()
    assert torch.allclose(m.prototypes[1], rows(1, 4, seed=3)[0])


@pytest.mark.parametrize("only_zero", [False, True])
def test_instances_of_negative_bags_may_become_positive_unless_told_otherwise(only_zero):
    m = memory(only_zero=only_zero, keep_belief=0.5)
    visit(m, "a", 0, seed=1)
    visit(m, "b", 1, seed=2)
    strayed = visit(m, "a", 0, seed=1)[:, 1] > 0.4
    assert strayed.any() != only_zero
    assert (visit(m, "b", 1, seed=2)[:, 0] > 0.4).any()


def test_a_class_without_a_prototype_is_nobodys_choice_but_its_own_bags():
    m = memory(classes=3, keep_belief=0.0)
    for _ in range(3):
        visit(m, "a", 0, seed=1)
        visit(m, "b", 1, seed=2)
    assert not (m.prototypes[2] != 0).any()
    assert (rows(20, 4, seed=1) @ m.prototypes[:2].T < 0).all(1).any()  # where 0 would win
    assert visit(m, "a", 0, seed=1)[:, 2].max() < 1e-5


def test_the_falling_share_goes_from_95_to_80_percent_in_200_visits_and_stays():
    m = memory(keep_belief=None)
    assert [m._keep(v) for v in (0, 100, 200, 500)] == pytest.approx([0.95, 0.875, 0.8, 0.8])


def test_the_state_holds_every_bag_and_loading_forgets_the_others():
    m, other = memory(), memory()
    for name in ("a", "b", "a"):
        visit(m, name, 1, n=20 if name == "a" else 9)
    visit(other, "c", 1, n=5)
    visit(other, "d", 1, n=5, settle=False)
    other.load_state_dict(m.state_dict())
    assert (other.visits("a"), other.visits("b"), other.visits("c")) == (2, 1, 0)
    assert other.noted == {}
    assert torch.equal(visit(other, "a", 1), visit(m, "a", 1))
    assert other.state_dict().keys() == m.state_dict().keys()


def test_a_state_without_bags_is_loaded_as_well():
    m = memory()
    visit(m, "a", 1)
    m.load_state_dict({"prototypes": rows(2, 4)})
    assert m.visits("a") == 0
    with pytest.raises(RuntimeError, match="Missing key"):
        m.load_state_dict({})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        m.load_state_dict({"prototypes": rows(2, 4), "foreign": rows(1)})


def test_beliefs_are_loaded_in_the_precision_of_the_model():
    m = memory()
    visit(m, "a", 1)
    visit(m, "a", 1)
    single = memory().float()
    single.load_state_dict(m.state_dict())
    kinds = {k.split("_")[0]: v.dtype for k, v in single.state_dict().items()}
    assert kinds == {"prototypes": torch.float32, "q": torch.float32, "visits": torch.int64}


def test_names_of_bags_do_not_show_in_the_state():
    m = memory()
    visit(m, "patient.007.svs", 1)
    visit(m, "patient.007.svs", 1)
    assert sum(k.startswith(("q_", "visits_")) for k in m.state_dict()) == 2
    assert not any("patient" in k or "." in k for k in m.state_dict())


def test_a_bag_whose_number_of_instances_changed_is_refused_by_name():
    m = memory()
    visit(m, "slide_17", 1)
    visit(m, "slide_17", 1)
    with pytest.raises(DataError, match="slide_17: has 19 instances but had 20"):
        visit(m, "slide_17", 1, n=19)
