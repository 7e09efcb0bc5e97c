"""Losses of targets that are no class against enumerations and sums written out, and what becomes of their logits."""

import itertools
import math

import numpy as np
import pytest
import torch

from smmil.config import TargetConfig
from smmil.errors import ConfigError, DataError
from smmil.target import fit_target, target_of

DOUBLE = torch.float64


def rows_of(kind, n=24, seed=0):
    """Random rows of what is known, with ties and censoring, or unknown labels."""
    rng = np.random.default_rng(seed)
    if kind == "multilabel":
        rows = rng.integers(0, 2, (n, 3)).astype(float)
        rows[rng.random((n, 3)) < 0.3] = np.nan
        rows[0] = np.nan
        return rows
    if kind == "ordinal":
        return (np.arange(n) % 4)[:, None].astype(float)
    if kind == "regression":
        return rng.normal(30, 7, (n, 1))
    return np.column_stack([rng.integers(1, 13, n) / 2, rng.random(n) < 0.6]).astype(float)


COLUMNS = {"multilabel": ("label_a", "label_b", "label_c"), "ordinal": ("label",), "regression": ("size",)}
KINDS = ("multilabel", "ordinal", "regression", "survival", "cox")


def target_for(kind, rows=None, intervals=4):
    config = TargetConfig(kind=kind, intervals=intervals)
    rows = rows_of(kind) if rows is None else rows
    return fit_target(config, COLUMNS.get(kind, ("time", "event")), rows, levels=4)


def logits_for(target, n, seed=1, scale=1.5):
    draws = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, target.n_logits, dtype=DOUBLE, generator=draws)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_every_loss_is_that_of_finite_differences(kind):
    target, known = target_for(kind), torch.from_numpy(rows_of(kind))
    logits = logits_for(target, len(known)).requires_grad_()
    share = torch.rand(len(known), dtype=DOUBLE, generator=torch.Generator().manual_seed(3)) + 0.1
    assert torch.autograd.gradcheck(lambda one: target.loss(one, known), [logits])
    assert torch.autograd.gradcheck(lambda one: target.loss(one, known, share=share), [logits])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_does_not_depend_on_the_order_of_the_cases(kind):
    target, known = target_for(kind), torch.from_numpy(rows_of(kind))
    logits, order = (
        logits_for(target, len(known)),
        torch.randperm(len(known), generator=torch.Generator().manual_seed(2)),
    )
    torch.testing.assert_close(target.loss(logits[order], known[order]), target.loss(logits, known))


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_in_equal_parts_counts_as_the_case_itself(kind):
    """Pseudo-bags with the logits of their bag give the loss of the bags, in Cox's risk sets too."""
    target, known = target_for(kind), torch.from_numpy(rows_of(kind))
    logits = logits_for(target, len(known))
    of = torch.arange(len(known)).repeat_interleave(1 + torch.arange(len(known)) % 3)
    torch.testing.assert_close(target.inherited_loss(logits[of], known, of), target.loss(logits, known))


@pytest.mark.parametrize("kind", ["multilabel", "ordinal", "regression", "survival"])
def test_batches_accumulate_to_the_loss_of_the_whole(kind):
    target, known = target_for(kind), torch.from_numpy(rows_of(kind))
    logits = logits_for(target, len(known))
    parts = [slice(0, 5), slice(5, 24)]
    together = sum(target.loss(logits[part], known[part]) * len(known[part]) / len(known) for part in parts)
    torch.testing.assert_close(together, target.loss(logits, known))


@pytest.mark.parametrize("kind", KINDS)
def test_facts_bring_a_target_back_and_other_facts_are_refused(kind):
    target = target_for(kind)
    assert target_of(target.facts(), "here") == target
    assert set(target.stated()) <= {"kind", "columns", "edges"}
    for wrong in ({}, {**target.facts(), "columns": 3}, {**target.facts(), "kind": "class"}):
        with pytest.raises(DataError, match="here: not a target"):
            target_of(wrong, "here")


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_another_width_is_refused_with_the_right_one(kind):
    target = target_for(kind)
    with pytest.raises(ConfigError, match=f"n_classes={target.n_logits}"):
        target.loss(torch.zeros(3, target.n_logits + 1), torch.from_numpy(rows_of(kind)[:3]))


def test_labels_that_are_unknown_change_nothing():
    target, known = target_for("multilabel"), torch.from_numpy(rows_of("multilabel"))
    logits, told = logits_for(target, len(known)), ~known.isnan()
    probs = 1 / (1 + np.exp(-logits.numpy()))
    expected = sum(
        -math.log(p if y == 1 else 1 - p) for p, y in zip(probs.ravel(), known.numpy().ravel(), strict=True) if y == y
    ) / (3 * len(known))
    assert float(target.loss(logits, known)) == pytest.approx(expected)
    other = torch.where(told, logits, logits + 7)
    assert target.loss(other, known) == target.loss(logits, known)
    assert np.allclose(target.predicted(logits)[0], probs)


def test_weights_of_labels_make_both_values_count_the_same():
    target, rows = target_for("multilabel"), rows_of("multilabel")
    weight, flat = target.class_weights(rows), torch.zeros(len(rows), 3, dtype=DOUBLE, requires_grad=True)
    target.loss(flat, torch.from_numpy(rows), weight=weight).backward()
    assert flat.grad.sum(0).abs().max() < 1e-12  # at probability one half positives and negatives balance


def test_levels_have_the_probabilities_of_cumulative_links_that_never_cross():
    target = target_for("ordinal")
    logits = logits_for(target, 50, scale=6.0)
    above = [logits[:, 0]]
    for k in (1, 2):
        above.append(above[-1] - torch.log1p(torch.exp(logits[:, k])))
    exceeds = torch.stack([torch.ones(50, dtype=DOUBLE), *(1 / (1 + torch.exp(-e)) for e in above), torch.zeros(50)], 1)
    expected = exceeds[:, :-1] - exceeds[:, 1:]
    probs, value = target.predicted(logits)
    torch.testing.assert_close(probs, expected)
    assert (probs > 0).all()
    torch.testing.assert_close(value, exceeds[:, 1:].sum(1))
    level = torch.arange(50) % 4
    torch.testing.assert_close(
        target.loss(logits, level[:, None]), -expected.gather(1, level[:, None]).log().mean(), rtol=1e-9, atol=0
    )


def test_a_level_far_from_the_logits_has_a_finite_loss_and_gradient():
    target = target_for("ordinal")
    for size, level in itertools.product((-300.0, 300.0), range(4)):
        logits = torch.full((1, 3), size, requires_grad=True)
        loss = target.loss(logits, torch.tensor([[level]]))
        loss.backward()
        assert torch.isfinite(loss)
        assert torch.isfinite(logits.grad).all()


def test_weights_of_levels_are_inverse_to_their_frequency():
    target, rows = target_for("ordinal"), np.array([[0.0]] * 6 + [[1.0]] * 3 + [[2.0]] * 2 + [[3.0]])
    assert torch.allclose(target.class_weights(rows), 12 / (4 * torch.tensor([6.0, 3.0, 2.0, 1.0], dtype=DOUBLE)))


def test_a_number_is_standardised_by_training_cases_and_comes_back_in_its_unit():
    rows = rows_of("regression")
    target = target_for("regression", rows)
    logits = logits_for(target, len(rows))
    probs, value = target.predicted(logits)
    assert probs.shape == (len(rows), 0)
    assert np.allclose(value, rows.mean() + rows.std() * logits[:, 0].numpy())
    expected = np.mean((value.numpy() - rows[:, 0]) ** 2) / rows.var()
    assert float(target.loss(logits, torch.from_numpy(rows))) == pytest.approx(expected)
    other = fit_target(TargetConfig(kind="regression"), ("size",), rows * 25.4 + 3)  # another unit learns the same
    torch.testing.assert_close(
        other.loss(logits, torch.from_numpy(rows * 25.4 + 3)), target.loss(logits, torch.from_numpy(rows))
    )


def enumerated(hazards, edges, time, event, fine=64):
    """Likelihood of one case: a walk through `fine` steps of every interval, summed over all moments of the event."""
    alive, found, start = 1.0, 0.0, 0.0
    for hazard, end in zip(hazards, edges, strict=True):
        step = 1 - (1 - hazard) ** (1 / fine)
        moments = start + (end - start) * np.arange(1, fine + 1) / fine
        for moment in moments:
            if event and start < time <= end:
                found += alive * step  # an event is known by its interval
            elif not event and moment > time + 1e-12:
                return alive
            alive *= 1 - step
        if event and start < time <= end:
            return found
        start = end
    return alive


def test_the_likelihood_of_survival_is_that_of_all_moments_enumerated():
    target = target_for("survival")
    edges, rng = target.edges, np.random.default_rng(4)
    starts = np.concatenate([[0], edges[:-1]])
    inside = [s + (e - s) * rng.integers(1, 64) / 64 for s, e in zip(starts, edges, strict=True)]
    times = [*inside, *edges, edges[-1] + 5]
    cases = [(time, event) for time in times for event in (0.0, 1.0)]
    logits = logits_for(target, len(cases))
    for (time, event), row in zip(cases, logits, strict=True):
        known = torch.tensor([[time, event]], dtype=DOUBLE)
        likelihood = enumerated(row.sigmoid().tolist(), edges, time, event)
        assert float(target.loss(row[None], known)) == pytest.approx(-math.log(likelihood), rel=1e-9), (time, event)


def test_a_constant_hazard_is_found_with_half_of_the_cases_censored_inside_intervals():
    """What decides the convention: counting a censored interval as survived, or not at all, misses it."""
    rng, n = np.random.default_rng(0), 200_000
    time, leaves = rng.exponential(3.0, n), rng.uniform(0, 4.0, n)
    rows = np.column_stack([np.minimum(time, leaves), time <= leaves])
    target = target_of({"kind": "survival", "columns": ["time", "event"], "edges": [1.0, 2.0, 4.0]}, "here")
    logits = torch.zeros(1, 3, dtype=DOUBLE, requires_grad=True)
    steps = torch.optim.LBFGS([logits], max_iter=60, line_search_fn="strong_wolfe")

    def closure():
        steps.zero_grad()
        loss = target.loss(logits.expand(n, 3), torch.from_numpy(rows))
        loss.backward()
        return loss

    steps.step(closure)
    truth = 1 - np.exp(-np.array([1, 1, 2]) / 3)
    found = logits.detach().sigmoid().numpy()[0]
    assert np.abs(found / truth - 1)[:2].max() < 0.02
    assert np.abs(found / truth - 1)[2] < 0.08  # nobody stays until its end
    seen = rows[(rows[:, 0] > 2) & (rows[:, 0] <= 4)]
    entered, events = (rows[:, 0] > 2).sum(), seen[:, 1].sum()
    assert events / entered < 0.8 * truth[2]
    assert events / (entered - (1 - seen[:, 1]).sum()) > 1.2 * truth[2]


def test_survival_probabilities_rise_and_risk_orders_cases_by_them():
    target = target_for("survival")
    logits = logits_for(target, 40)
    probs, risk = target.predicted(logits)
    hazards = logits.sigmoid().numpy()
    assert np.allclose(probs, 1 - np.cumprod(1 - hazards, 1))
    curve = np.column_stack([np.ones(40), 1 - probs.numpy()])
    area = (np.diff([0, *target.edges]) * (curve[:, 1:] + curve[:, :-1]) / 2).sum(1)
    assert np.allclose(-risk, area)
    worse = target.predicted(logits + torch.tensor([0.0, 0.3, 0.0, 0.0]))[1]
    assert (worse > risk).all()


def test_edges_are_quantiles_of_event_times_and_too_many_intervals_are_refused():
    rows = np.array([[t, 1.0] for t in (1, 2, 3, 4, 5, 6, 7, 8)] + [[100.0, 0.0]])
    assert target_for("survival", rows).edges == (2, 4, 6, 8)
    tied = np.array([[2.0, 1.0]] * 5 + [[3.0, 1.0]] * 5)
    with pytest.raises(DataError, match=r"fill 2 intervals.*target\.intervals=2"):
        target_for("survival", tied)
    with pytest.raises(DataError, match="no training case has an event"):
        target_for("cox", np.array([[2.0, 0.0]] * 5))


def partial_likelihood(eta, rows):
    """Breslow's, as a double loop over events and risk sets."""
    total = 0.0
    for i, (time, event) in enumerate(rows):
        if event:
            total -= eta[i] - math.log(sum(math.exp(eta[j]) for j, (other, _) in enumerate(rows) if other >= time))
    return total / len(rows)


def test_the_partial_likelihood_of_cox_is_the_sum_over_risk_sets_with_ties():
    rows = rows_of("cox")
    assert len(np.unique(rows[:, 0])) < len(rows) / 2
    target = target_for("cox", rows)
    logits = logits_for(target, len(rows), scale=3.0)
    expected = partial_likelihood(logits[:, 0].tolist(), rows)
    assert float(target.loss(logits, torch.from_numpy(rows))) == pytest.approx(expected, rel=1e-12)
    shifted = target.loss(logits + 400.0, torch.from_numpy(rows))
    assert float(shifted) == pytest.approx(expected, rel=1e-9)  # only differences count, and nothing overflows


def test_a_batch_without_an_event_costs_nothing_and_can_be_differentiated():
    target, known = target_for("cox"), torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    logits = torch.randn(2, 1, requires_grad=True)
    loss = target.loss(logits, known)
    loss.backward()
    assert loss.item() == 0.0
    assert float(logits.grad.abs().sum()) == 0.0


def test_probabilities_of_cox_come_from_breslows_baseline():
    rows = rows_of("cox")
    target = target_for("cox", rows)
    logits = logits_for(target, len(rows))
    done = target.with_baseline(logits, torch.from_numpy(rows))
    eta = logits[:, 0].numpy()
    for edge, log_baseline in zip(done.edges, done.log_baseline, strict=True):
        steps = [1 / np.exp(eta[rows[:, 0] >= time]).sum() for time, event in rows if event and time <= edge]
        assert math.exp(log_baseline) == pytest.approx(sum(steps))
    probs, value = done.predicted(logits)
    assert torch.equal(value, logits[:, 0])
    assert np.allclose(probs, 1 - np.exp(-np.exp(np.array(done.log_baseline)) * np.exp(eta)[:, None]))
    # Breslow's baseline expects as many events as there were.
    last = np.searchsorted(np.unique(rows[:, 0]), rows[:, 0])
    hazard = [sum(1 / np.exp(eta[rows[:, 0] >= t]).sum() for t, e in rows if e and t <= time) for time, _ in rows]
    assert last.max() > 5
    assert (np.array(hazard) * np.exp(eta)).sum() == pytest.approx(rows[:, 1].sum())


@pytest.mark.parametrize(
    ("kind", "rows", "words"),
    [
        ("multilabel", [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], "label label_a: only 1"),
        ("ordinal", [[0.0], [1.0], [3.0]], "no training case of level 2"),
        ("regression", [[2.0], [2.0]], "all training cases have 2"),
    ],
)
def test_training_cases_from_which_nothing_can_be_learned_are_refused(kind, rows, words):
    with pytest.raises(DataError, match=words):
        target_for(kind, np.array(rows))


@pytest.mark.parametrize("kind", ["regression", "survival", "cox"])
def test_class_weights_are_for_classes(kind):
    with pytest.raises(ConfigError, match="has no classes"):
        target_for(kind).class_weights(rows_of(kind))


def test_maps_of_several_columns_become_one_per_target():
    scores = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(target_for("survival").maps(scores), scores.mean(1, keepdim=True))
    assert torch.equal(target_for("ordinal").maps(scores[:, :3]), scores[:, :1])
    assert torch.equal(target_for("multilabel").maps(scores[:, :3]), scores[:, :3])
