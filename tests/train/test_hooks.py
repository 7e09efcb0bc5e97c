"""What a model may ask of the loop, seen from a model that asks for everything."""

import pytest
import torch
from torch import nn

from smmil.config import TrainingConfig
from smmil.losses import total_loss
from smmil.models import Output
from smmil.train.loop import _after_step, _bag_weight, _before_step, _make_optimiser, _parameter_groups, _set_epoch_lr


class Asking(nn.Module):
    bag_weight = 0.7

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 1)
        self.called: list[str] = []

    def parameter_groups(self):
        return [{"params": self.a.parameters()}, {"params": self.b.parameters(), "lr_scale": 0.1}]

    def before_step(self):
        self.called.append("before")

    def after_step(self):
        self.called.append("after")


def test_groups_get_their_share_of_the_learning_rate_in_every_epoch():
    settings = TrainingConfig(lr=1.0, warmup_epochs=2, warmup_start=0.5)
    optimiser = _make_optimiser(_parameter_groups(Asking()), settings)
    rates = []
    for epoch in range(3):
        _set_epoch_lr(optimiser, settings, epoch)
        rates.append([group["lr"] for group in optimiser.param_groups])
    assert rates == [[0.5, 0.05], [0.75, pytest.approx(0.075)], [1.0, 0.1]]


def test_a_group_that_forgets_a_parameter_is_refused():
    model = Asking()
    model.parameter_groups = lambda: [{"params": model.a.parameters()}]
    with pytest.raises(ValueError, match="exactly once"):
        _parameter_groups(model)


def test_the_bag_loss_is_weighted_next_to_the_models_own_terms():
    out = Output(torch.zeros(2, 1), torch.zeros(3, 1), {"instance": torch.tensor(0.25)})
    y = torch.tensor([0, 1])
    plain, _ = total_loss(Output(out.logits, out.scores), y)
    total, parts = total_loss(out, y, bag_weight=_bag_weight(Asking()))
    assert total.item() == pytest.approx(0.7 * plain.item() + 0.25)
    assert set(parts) == {"bag", "instance"}


def test_a_model_that_asks_for_nothing_is_trained_as_it_is():
    model = nn.Linear(2, 1)
    _before_step(model)
    _after_step(model)
    assert _bag_weight(model) == 1.0
    assert [len(g["params"]) for g in _parameter_groups(model)] == [2]
