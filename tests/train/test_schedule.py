"""Learning rate and optimiser against PyTorch's own."""

import pytest
import torch

from smmil.config import TrainingConfig
from smmil.train.loop import _make_optimiser, _set_epoch_lr, _warmup_factor


def test_the_papers_warm_up_is_reproduced_number_by_number():
    factors = [_warmup_factor(epoch, 5, 0.1) for epoch in range(8)]
    assert factors == pytest.approx([0.1, 0.28, 0.46, 0.64, 0.82, 1, 1, 1])


def test_the_warm_up_is_that_of_pytorchs_linear_lr():
    optimiser = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = torch.optim.lr_scheduler.LinearLR(optimiser, start_factor=0.1, total_iters=5)
    for epoch in range(8):
        assert optimiser.param_groups[0]["lr"] == pytest.approx(3e-4 * _warmup_factor(epoch, 5, 0.1), rel=1e-12)
        optimiser.step()
        theirs.step()


def test_without_warm_up_the_rate_is_full_from_the_start():
    assert _warmup_factor(0, 0, 0.1) == 1.0


def test_the_rate_of_an_epoch_does_not_depend_on_the_epochs_before():
    settings = TrainingConfig(lr=1.0)
    optimiser = _make_optimiser([torch.nn.Parameter(torch.zeros(1))], settings)
    jumped = _set_epoch_lr(optimiser, settings, 3)
    assert optimiser.param_groups[0]["lr"] == jumped == pytest.approx(0.64)


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD")])
def test_optimisers_keep_pytorchs_defaults(name, kind):
    ours = _make_optimiser([torch.nn.Parameter(torch.zeros(1))], TrainingConfig(optimiser=name, lr=0.5))
    theirs = getattr(torch.optim, kind)([torch.nn.Parameter(torch.zeros(1))], lr=0.5, weight_decay=0.0)
    assert type(ours).__name__ == kind
    assert ours.defaults == theirs.defaults
