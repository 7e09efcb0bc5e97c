"""Finding the bag behind a NaN, before anything good is overwritten."""

from collections.abc import Callable, Mapping
from typing import NoReturn

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.errors import DataError
from smmil.losses import bag_loss
from smmil.models import Output

_ADVICE = "lower training.lr, set training.clip_norm, or look at this bag with: smmil inspect"


def refuse_nonfinite_forward(batch: BagBatch, output: Output, parts: Mapping[str, Tensor], where: str) -> None:
    """An error that names the bag if a logit or a loss of this batch is not a number."""
    if bool(torch.isfinite(output.logits).all()) and all(bool(torch.isfinite(p).all()) for p in parts.values()):
        return
    _refuse_rows(batch, where)
    wrong = (~torch.isfinite(output.logits)).any(1).nonzero().flatten().tolist()
    if wrong:
        raise DataError(f"{where}: the logit of {_named(batch, wrong)} is NaN or Inf; {_ADVICE}")
    terms = ", ".join(name for name, part in parts.items() if not bool(torch.isfinite(part).all()))
    raise DataError(f"{where}: loss term {terms} is NaN or Inf, among bags {', '.join(batch.ids)}; {_ADVICE}")


def refuse_nonfinite_gradient(model: nn.Module, batch: BagBatch, forward: Callable[[], Output], where: str) -> NoReturn:
    """An error that names the bags of this batch whose own gradient is not a number (or all, if only together)."""
    _refuse_rows(batch, where)
    wrong = [b for b in range(len(batch)) if not _finite_gradient(model, forward().logits, batch.need("y"), b)]
    named = _named(batch, wrong) if wrong else f"bags {', '.join(batch.ids)} together"
    raise DataError(f"{where}: the gradient of {named} is NaN or Inf; {_ADVICE}")


def gradients_are_finite(model: nn.Module) -> bool:
    """Whether every gradient is a number; one pass over the parameters."""
    sums = [p.grad.sum() for p in model.parameters() if p.grad is not None]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())


def _refuse_rows(batch: BagBatch, where: str) -> None:
    for name, rows in zip(batch.ids, batch.split(batch.x), strict=True):
        wrong = (~torch.isfinite(rows)).any(1).nonzero().flatten().tolist()
        if wrong:
            raise DataError(f"{where}: bag {name} holds NaN or Inf in row {wrong[0]}; extract its features again")


def _finite_gradient(model: nn.Module, logits: Tensor, y: Tensor, b: int) -> bool:
    weights = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(bag_loss(logits[b : b + 1], y[b : b + 1]), weights, allow_unused=True)
    return all(bool(torch.isfinite(g).all()) for g in found if g is not None)


def _named(batch: BagBatch, which: list[int]) -> str:
    return f"bag{'s' if len(which) > 1 else ''} {', '.join(batch.ids[b] for b in which)}"
