"""The smooth support vector loss of CLAM: closed forms and limits."""

import math

import pytest
import torch

from smmil.models.clam import _smooth_svm


def one(scores, target):
    return _smooth_svm(torch.tensor([scores], dtype=torch.float64), torch.tensor([target])).item()


def test_equal_scores_cost_the_margin_rounded():
    assert one([0.3, 0.3], 1) == pytest.approx(math.log(1 + math.e), abs=1e-14)
    assert one([0.0, 0.0, 0.0], 2) == pytest.approx(math.log(1 + 2 * math.e), abs=1e-14)


@pytest.mark.parametrize("lead", [-6.9, -3.0, -0.5, 0.0, 0.5, 3.0, 6.9])
def test_two_classes_have_the_closed_form(lead):
    assert one([0.2, 0.2 + lead], 1) == pytest.approx(math.log(1 + math.exp(1 - lead)), abs=1e-13)
    assert one([0.2 + lead, 0.2], 0) == pytest.approx(math.log(1 + math.exp(1 - lead)), abs=1e-13)


def test_from_a_lead_of_ln_1000_on_it_is_the_hinge():
    lead = math.log(1000)
    assert one([0.0, lead], 1) == 0.0
    assert one([0.0, lead], 0) == pytest.approx(1 + lead, abs=1e-13)
    assert one([0.0, lead - 1e-6], 1) == pytest.approx(math.log(1 + math.exp(1 - lead + 1e-6)), abs=1e-13)
    assert one([9.0, 0.0, 1.5], 2) == pytest.approx(1 + 9 - 1.5, abs=1e-13)


def test_only_the_two_best_classes_decide_between_hinge_and_smooth():
    assert one([-50.0, 1.0, 0.5], 1) == pytest.approx(math.log(1 + math.exp(0.5)), abs=1e-13)


def test_the_mean_is_over_rows_smooth_and_hard_together():
    scores = torch.tensor([[0.0, 1.0], [20.0, 0.0], [0.0, 20.0], [0.5, -0.5]], dtype=torch.float64)
    target = torch.tensor([1, 1, 1, 0])
    rows = [one(s.tolist(), int(t)) for s, t in zip(scores, target, strict=True)]
    assert _smooth_svm(scores, target).item() == pytest.approx(sum(rows) / 4, abs=1e-13)


def test_gradients_are_right_on_both_sides_of_the_switch_and_finite_far_out():
    scores = torch.tensor([[0.0, 1.0], [9.0, 0.0], [0.3, -0.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: _smooth_svm(s, torch.tensor([1, 1, 0])), (scores,))
    huge = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    _smooth_svm(huge, torch.tensor([1, 1])).backward()
    assert torch.equal(huge.grad, torch.tensor([[0.5, -0.5], [0.0, 0.0]]))
