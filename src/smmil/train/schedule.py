"""Optimiser and learning rate."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from smmil.config import TrainingConfig

_KINDS: dict[str, Any] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def make_optimiser(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], settings: TrainingConfig
) -> torch.optim.Optimizer:
    """The optimiser with PyTorch's defaults apart from learning rate and weight decay; takes groups as torch does."""
    return _KINDS[settings.optimiser](list(parameters), lr=settings.lr, weight_decay=settings.weight_decay)


def warmup_factor(epoch: int, epochs: int, start: float) -> float:
    """Share of the full learning rate in `epoch`: from `start` in a straight line to 1 after `epochs` epochs.

    The paper's LinearLR (start 0.1, 5 epochs) is 0.1, 0.28, 0.46, 0.64, 0.82, 1, 1, …
    """
    if epoch >= epochs:
        return 1.0
    return start + (1 - start) * epoch / epochs


def set_epoch_lr(optimiser: torch.optim.Optimizer, settings: TrainingConfig, epoch: int) -> float:
    """Give the optimiser the learning rate of `epoch`, which depends on nothing else, and return it.

    A group with an `lr_scale` gets that multiple of it.
    """
    lr = settings.lr * warmup_factor(epoch, settings.warmup_epochs, settings.warmup_start)
    for group in optimiser.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    return lr
