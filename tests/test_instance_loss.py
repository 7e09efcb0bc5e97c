"""The loss of marked instances: against a literal reference, and its laws for every model."""

import math

import pytest
import torch
from support.bags import grid_bag

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.losses import InstanceLoss, total_loss
from smmil.models import Output, create_model, list_models

OFFSETS = torch.tensor([0, 4, 5, 11])
LABELS = torch.tensor([1, -1, 0, 0, -1, 1, 1, 0, -1, 1, -1])
SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}}
LOGIT, ODDS, WEIGHT = "attention logit", "instance logit", "class token attention"


def scores(seed=0, k=1):
    return torch.randn(11, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_of(kind=LOGIT, offset=0.3, weight=1.0, marks=None):
    loss = InstanceLoss(weight, kind, marks or {}).double()
    loss.offset.data.fill_(offset)
    return loss


def literal(s, labels, offsets, kind, offset):
    """Bag by bag, class by class, mark by mark."""
    total, bags = 0.0, len(offsets) - 1
    for b in range(bags):
        rows = range(int(offsets[b]), int(offsets[b + 1]))
        means = []
        for label in (0, 1):
            values = []
            for i in (i for i in rows if labels[i] == label):
                z = float(s[i, -1])
                if kind == WEIGHT:
                    z = math.asinh(10 * len(rows) * z)
                z -= 0.0 if kind == ODDS else offset
                p = 1 / (1 + math.exp(-z))
                values.append(-math.log(p if label else 1 - p))
            means += [sum(values) / len(values)] if values else []
        total += sum(means) / len(means) if means else 0.0
    return total / bags


@pytest.mark.parametrize("kind", [LOGIT, ODDS, WEIGHT, "anything else"])
@pytest.mark.parametrize("k", [1, 2])
def test_the_loss_is_the_literal_one(kind, k):
    found = loss_of(kind)(scores(k=k), LABELS, OFFSETS)
    expected = literal(scores(k=k), LABELS, OFFSETS, LOGIT if kind == ODDS and k == 2 else kind, 0.3)
    assert found.item() == pytest.approx(expected, rel=1e-12)


def test_a_gradient_reaches_marked_instances_only_and_points_to_what_they_are():
    s = scores().requires_grad_()
    loss_of()(s, LABELS, OFFSETS).backward()
    assert torch.equal(s.grad[:, 0].sign().long(), torch.tensor([0, 1, -1])[LABELS + 1])


def test_a_packed_batch_has_the_mean_of_the_losses_of_its_bags():
    cuts = list(zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True))
    alone = [loss_of()(scores()[a:b], LABELS[a:b], torch.tensor([0, b - a])) for a, b in cuts]
    torch.testing.assert_close(loss_of()(scores(), LABELS, OFFSETS), torch.stack(alone).mean())


def test_repeating_the_marks_of_one_class_or_of_one_case_changes_nothing():
    s, labels = scores()[5:], LABELS[5:]
    many = torch.cat([s, s[labels == 0].expand(7, 1)]), torch.cat([labels, torch.zeros(7, dtype=torch.long)])
    assert float(loss_of()(*many, torch.tensor([0, 13]))) == pytest.approx(
        float(loss_of()(s, labels, torch.tensor([0, 6])))
    )


def test_adding_a_number_to_all_attention_logits_is_taken_up_by_the_offset():
    moved = loss_of(offset=5.3)(scores() + 5, LABELS, OFFSETS)
    torch.testing.assert_close(moved, loss_of(offset=0.3)(scores(), LABELS, OFFSETS))
    s = scores().requires_grad_()
    loss = loss_of()
    loss(s, LABELS, OFFSETS).backward()
    torch.testing.assert_close(loss.offset.grad, -s.grad.sum())


ONE_KIND = torch.tensor([0, -1, 0, -1, -1, 0, -1, -1, -1, 0, -1])


def test_marks_of_one_kind_are_compared_with_the_average_of_their_case():
    """An offset would explain them all, so none is learned; a number added to the scores of a case plays no part."""
    loss = loss_of(marks={"a": torch.tensor([0, -1, 0])})
    assert not loss.offset.requires_grad
    s = scores().requires_grad_()
    value = loss(s, ONE_KIND, OFFSETS)
    value.backward()
    cuts = list(zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True))
    each = []
    for a, b in cuts:
        z = s[a:b, 0][ONE_KIND[a:b] == 0] - s[a:b, 0].mean()
        each.append(torch.log1p(z.exp()).mean() if len(z) else torch.zeros((), dtype=z.dtype))
    torch.testing.assert_close(value, torch.stack(each).mean())
    moved = scores() + torch.repeat_interleave(torch.arange(len(cuts)) * 7.0, OFFSETS.diff())[:, None]
    torch.testing.assert_close(loss(moved, ONE_KIND, OFFSETS), value.detach())
    assert bool((s.grad[ONE_KIND < 0] <= 0).all())  # a step of training lowers the marked ones against the others
    torch.testing.assert_close(s.grad.sum(), torch.zeros_like(s.grad.sum()))


def test_log_odds_have_a_zero_of_their_own():
    loss = loss_of(ODDS, offset=9.0)
    torch.testing.assert_close(loss(scores(), LABELS, OFFSETS), loss_of(ODDS, 0.0)(scores(), LABELS, OFFSETS))


def test_of_attention_weights_the_average_one_is_the_undecided_one():
    loss = InstanceLoss(1.0, WEIGHT, {}).double()
    even = torch.full((8, 1), 1 / 8, dtype=torch.float64)
    found = loss(even, torch.tensor([1, 0, 0, -1, -1, -1, -1, -1]), torch.tensor([0, 8]))
    assert float(found) == pytest.approx(math.log(2), rel=1e-6)
    nothing = torch.zeros(8, 1, dtype=torch.float64, requires_grad=True)  # as of instances that no token saw
    loss(nothing, torch.ones(8, dtype=torch.long), torch.tensor([0, 8])).backward()
    assert bool((nothing.grad < 0).all())


def test_without_a_mark_the_loss_is_zero_and_half_precision_is_lifted():
    assert float(loss_of()(scores(), torch.full((11,), -1), OFFSETS)) == 0
    assert InstanceLoss(1.0, LOGIT, {})(scores().bfloat16(), LABELS, OFFSETS).dtype == torch.float32


def test_marks_are_a_term_of_their_own_with_their_weight_and_shrink_beside_a_convex_penalty():
    batch = BagBatch.pack([grid_bag(4, seed=1), grid_bag(3, seed=2, y=0)])
    output = Output(torch.zeros(2, 1), torch.randn(7, 1).requires_grad_())
    marks = {"grid_4_1": torch.tensor([1, 0, -1, -1])}
    (once,), (twice,) = (loss_of(weight=w, marks=marks).terms(output, batch).values() for w in (1.0, 2.0))
    assert float(twice) == pytest.approx(2 * float(once))
    _, parts = total_loss(output, batch.y, marks=once, penalty=torch.tensor(1.0), rest=0.25)
    assert float(parts["marks"]) == pytest.approx(0.25 * float(once))


def test_what_marks_cannot_teach_is_refused():
    batch = BagBatch.pack([grid_bag(4)])
    with pytest.raises(ConfigError, match="carry no gradient"):
        loss_of().terms(Output(torch.zeros(1, 1), torch.zeros(4, 1)), batch)
    with pytest.raises(ConfigError, match="3 maps, one per class"):
        loss_of()(torch.zeros(11, 3), LABELS, OFFSETS)


@pytest.mark.parametrize("name", list_models())
def test_marks_move_the_scores_of_every_model_to_their_side(name):
    """A few steps on the marks alone: their loss falls, and no gradient is broken."""
    torch.manual_seed(0)
    bags = [grid_bag(12, seed=n, y=n % 2) for n in range(2)]
    marks = {bag.id: torch.tensor([1, 0, 1, 0] + [-1] * 8) for bag in bags}
    model, batch = create_model(name, 16, **SMALLER.get(name, {})).train(), BagBatch.pack(bags)
    loss = InstanceLoss(1.0, getattr(model, "score_kind", LOGIT), marks)
    optimiser = torch.optim.Adam([*model.parameters(), loss.offset], lr=1e-2)
    values = []
    for _ in range(8):
        torch.manual_seed(1)
        optimiser.zero_grad()
        value = loss.terms(model(batch), batch)["marks"]
        value.backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
        optimiser.step()
        values.append(float(value.detach()))
    assert min(values) < 0.95 * values[0], values
