"""Losses against numbers computed by hand."""

from math import exp, log

import pytest
import torch
from support.bags import grid_bag

from smmil.bag import BagBatch
from smmil.config import PenaltyConfig, load_config
from smmil.errors import ConfigError, DataError
from smmil.losses import PENALTIES, _smoothness_penalty, bag_loss, class_weights, penalty_terms, total_loss
from smmil.models import Output


def sigmoid(v):
    return 1 / (1 + exp(-v))


def test_one_logit_is_binary_cross_entropy_averaged_over_bags():
    loss = bag_loss(torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([1, 0, 0]))
    by_hand = -(log(sigmoid(2)) + log(1 - sigmoid(-1)) + log(1 - sigmoid(0.5))) / 3
    assert float(loss) == pytest.approx(by_hand, rel=1e-6)


def test_pos_weight_multiplies_the_positive_bags_only():
    loss = bag_loss(torch.tensor([[2.0], [-1.0]]), torch.tensor([1, 0]), pos_weight=torch.tensor(3.0))
    assert float(loss) == pytest.approx(-(3 * log(sigmoid(2)) + log(1 - sigmoid(-1))) / 2, rel=1e-6)


def test_several_logits_are_softmax_cross_entropy():
    loss = bag_loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([1]))
    assert float(loss) == pytest.approx(-log(exp(2) / (exp(1) + exp(2) + 1)), rel=1e-6)


def test_class_weights_divide_by_the_number_of_bags_and_not_by_the_weights():
    logits, y = torch.zeros(2, 2), torch.tensor([0, 1])
    loss = bag_loss(logits, y, class_weight=torch.tensor([1.0, 5.0]))
    assert float(loss) == pytest.approx((1 + 5) * log(2) / 2, rel=1e-6)


def test_two_logits_agree_with_their_difference_as_one_logit():
    two = torch.tensor([[0.3, 1.7], [2.0, -0.4]], dtype=torch.float64)
    y = torch.tensor([1, 0])
    torch.testing.assert_close(bag_loss(two, y), bag_loss(two[:, 1:] - two[:, :1], y))


def test_the_loss_of_a_whole_is_the_mean_of_its_parts_weighted_by_bags():
    torch.manual_seed(0)
    logits, y = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 0, 1, 2])
    weight = class_weights(y.tolist(), 3)
    parts = sum(bag_loss(logits[a:b], y[a:b], **weight) * (b - a) / 7 for a, b in ((0, 3), (3, 4), (4, 7)))
    torch.testing.assert_close(bag_loss(logits, y, **weight), parts)


def test_huge_logits_stay_finite_and_half_precision_is_lifted():
    loss = bag_loss(torch.tensor([[-1000.0], [1000.0]]), torch.tensor([1, 0]))
    assert float(loss) == pytest.approx(1000.0)
    assert bag_loss(torch.zeros(1, 1, dtype=torch.bfloat16), torch.tensor([1])).dtype == torch.float32


def test_binary_weights_are_negatives_over_positives():
    assert float(class_weights([0, 0, 0, 1], 1)["pos_weight"]) == 3.0


def test_class_weights_are_inverse_frequencies_that_average_to_one_over_the_bags():
    labels = [0, 0, 0, 1, 2, 2]
    weight = class_weights(labels, 3)["class_weight"]
    assert weight.tolist() == pytest.approx([6 / 9, 2.0, 1.0])
    assert float(weight[torch.tensor(labels)].mean()) == pytest.approx(1.0)


def test_weights_for_a_class_that_never_trains_are_refused():
    with pytest.raises(DataError, match="no training bag of class 1"):
        class_weights([0, 0], 1)


@pytest.mark.parametrize(("columns", "y"), [(1, 2), (1, -1), (3, 3)])
def test_a_label_that_does_not_fit_the_head_is_refused(columns, y):
    with pytest.raises(DataError, match="label"):
        bag_loss(torch.zeros(1, columns), torch.tensor([y]))


def test_the_total_is_the_bag_loss_plus_the_models_own_terms():
    output = Output(torch.zeros(2, 1), torch.zeros(5, 1), {"instance": torch.tensor(0.25), "kl": torch.tensor([0.5])})
    loss, parts = total_loss(output, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx(log(2) + 0.75)
    assert list(parts) == ["bag", "instance", "kl"]


def test_a_models_own_term_cannot_hide_the_bag_loss():
    with pytest.raises(DataError, match="must not be called 'bag'"):
        total_loss(Output(torch.zeros(1, 1), torch.zeros(1, 1), {"bag": torch.tensor(0.0)}), torch.tensor([0]))


def ragged():
    batch = BagBatch.pack([grid_bag(6), grid_bag(4, seed=1, y=0)])
    scores = torch.arange(10.0)[:, None].requires_grad_()
    return Output(torch.zeros(2, 1), scores, {"own": torch.tensor(0.5)}), batch


def test_a_penalty_is_added_with_its_weight():
    output, batch = ragged()
    loss, parts = total_loss(output, batch.y, **penalty_terms(output, batch, PenaltyConfig(weight=0.1)))
    value = float(_smoothness_penalty(output.scores, batch.graph, batch.offsets))
    assert value > 0
    assert float(loss) == pytest.approx(log(2) + 0.5 + 0.1 * value)
    assert float(parts["penalty"]) == pytest.approx(0.1 * value)


def test_a_convex_penalty_takes_its_weight_from_all_the_rest():
    output, batch = ragged()
    settings = PenaltyConfig(weight=0.25, kind="sa_mil", convex=True)
    loss, _ = total_loss(output, batch.y, **penalty_terms(output, batch, settings))
    value = float(_smoothness_penalty(output.scores, batch.graph, batch.offsets, "sa_mil"))
    assert float(loss) == pytest.approx(0.75 * (log(2) + 0.5) + 0.25 * value)


def test_scores_without_a_gradient_cannot_be_penalised():
    output, batch = ragged()
    with pytest.raises(ConfigError, match="no gradient"):
        penalty_terms(Output(output.logits, output.scores.detach()), batch, PenaltyConfig(weight=1.0))


@pytest.mark.parametrize("kind", PENALTIES)
def test_the_config_knows_every_kind(kind):
    assert PenaltyConfig(kind=kind).kind == kind


def test_a_convex_weight_above_one_is_refused():
    changes = ["data.manifest=m.csv", "model.name=abmil", "training.penalty.weight=2.0", "training.penalty.convex=true"]
    with pytest.raises(ConfigError, match=r"weight in \[0, 1\], got 2.0"):
        load_config(None, changes)
