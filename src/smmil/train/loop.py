"""The training loop, all of it."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.config import TrainingConfig
from smmil.data.loader import BagDataset, batches, epoch_order
from smmil.errors import DataError
from smmil.evaluate import bag_metrics
from smmil.losses import penalty_terms, total_loss
from smmil.models import Output
from smmil.predict import on_device, predict
from smmil.runtime import seed_step
from smmil.train.checkpoint import State
from smmil.train.hooks import after_step, bag_weight, before_step
from smmil.train.interrupt import StopRequest
from smmil.train.nonfinite import gradients_are_finite, refuse_nonfinite_forward, refuse_nonfinite_gradient
from smmil.train.progress import Progress
from smmil.train.schedule import set_epoch_lr


@dataclass(frozen=True)
class Job:
    """What stays the same while training runs; there is no test set in it.

    save       writes the checkpoint of a state      keep   writes the weights of this epoch under a name
    weights    class weights, as keyword arguments of the loss
    """

    settings: TrainingConfig
    model: nn.Module
    optimiser: torch.optim.Optimizer
    train_set: BagDataset
    val_set: BagDataset
    device: torch.device
    save: Callable[[State], None]
    keep: Callable[[str, dict[str, Any]], dict[str, Any]]
    weights: dict[str, Tensor] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self.train_set) / self.settings.batch_size)


def fit(job: Job, state: State) -> bool:
    """Train from `state` to the end; False if somebody asked to stop before, with everything saved."""
    while state.ended is None and job.stop.signal is None:
        if train_epoch(job, state):
            close_epoch(job, state, validate(job, state.epoch))
            job.save(state)
            job.progress.epoch_done(state.history[-1])
    return state.ended is not None


def train_epoch(job: Job, state: State) -> bool:
    """The rest of the running epoch; False if it was interrupted (and saved) on the way."""
    set_epoch_lr(job.optimiser, job.settings, state.epoch)
    job.model.train()
    saved = time.monotonic()
    stream = _training_batches(job, state)
    while state.step < job.steps:
        optimiser_step(job, state, stream)
        due = time.monotonic() - saved >= 60 * job.settings.checkpoint_minutes
        if due or job.stop.signal is not None:
            job.save(state)
            saved = time.monotonic()
        if job.stop.signal is not None:
            return False
    return True


def _training_batches(job: Job, state: State) -> Iterator[BagBatch]:
    t = job.settings
    order = epoch_order(len(job.train_set), t.seed, state.epoch)
    return batches(job.train_set, batch_size=t.batch_size, order=order, workers=t.workers, start=state.step)


def optimiser_step(job: Job, state: State, stream: Iterator[BagBatch]) -> None:
    """One change of the weights: `accumulate` batches forward and backward, as if they were one batch."""
    t = job.settings
    first = state.step * t.batch_size
    bags = min(len(job.train_set), first + t.accumulate * t.batch_size) - first
    job.optimiser.zero_grad(set_to_none=True)
    for batch in islice(stream, t.accumulate):
        accumulate_gradient(job, state, batch, share=len(batch) / bags)
    before_step(job.model)
    if t.clip_norm is not None:
        nn.utils.clip_grad_norm_(job.model.parameters(), t.clip_norm)
    job.optimiser.step()
    after_step(job.model)


def accumulate_gradient(job: Job, state: State, batch: BagBatch, share: float) -> None:
    """Add the gradient of one batch, weighted by its share of the bags, and its losses to the running sums."""
    where = f"epoch {state.epoch + 1}, batch {state.step + 1}"
    batch = replace(on_device(batch, job.device, job.model), y_inst=None)
    output = forward(job, state, batch)
    terms: dict[str, Any] = {**penalty_terms(output, batch, job.settings.penalty), **job.weights}
    loss, parts = total_loss(output, batch.need("y"), bag_weight=bag_weight(job.model), **terms)
    refuse_nonfinite_forward(batch, output, parts, where)
    (loss * share).backward()
    if not gradients_are_finite(job.model):
        refuse_nonfinite_gradient(job.model, batch, lambda: forward(job, state, batch), where)
    _add_up(state, {"loss": loss, **(parts if len(parts) > 1 else {})}, len(batch))
    state.step += 1
    job.progress.step_done(state.epoch, state.step, float(loss.detach()))


def forward(job: Job, state: State, batch: BagBatch) -> Output:
    """What the model says in training, with the randomness that belongs to this place; bfloat16 if asked for."""
    seed_step(job.settings.seed, state.epoch, state.step)
    with torch.autocast(job.device.type, dtype=torch.bfloat16, enabled=job.settings.autocast):
        return job.model(batch)


def _add_up(state: State, parts: dict[str, Tensor], bags: int) -> None:
    for name, value in parts.items():
        state.sums[name] = state.sums.get(name, 0.0) + float(value.detach()) * bags
    state.sums["bags"] = state.sums.get("bags", 0) + bags


def validate(job: Job, epoch: int) -> dict[str, float]:
    """Bag AUROC and cross-entropy over all validation bags at once: eval mode, no gradients, labels hidden."""
    seed_step(job.settings.seed, epoch, -1)
    t = job.settings
    stream = batches(job.val_set, batch_size=t.batch_size, order=range(len(job.val_set)), workers=t.workers)
    try:
        found = bag_metrics(predict(job.model, stream, device=job.device, spatial=False))
    except DataError as problem:
        raise DataError(f"epoch {epoch + 1}, validation: {problem}") from None
    return {"auroc": found["auroc"], "loss": found["loss"]}


def close_epoch(job: Job, state: State, validation: dict[str, float]) -> None:
    """Write the epoch into the history, keep its weights if they are the best so far, and decide whether to go on."""
    row = epoch_row(job, state, validation)
    candidate = {"epoch": row["epoch"], "auroc": row["val_auroc"], "loss": row["val_loss"]}
    if is_better(candidate, state.lowest_loss, "loss"):
        state.lowest_loss = job.keep("lowest_loss", candidate)
    row["best"] = int(is_better(candidate, state.best, job.settings.select))
    if row["best"]:
        state.best = job.keep("best", candidate)
    state.history.append(row)
    state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
    state.ended = reason_to_end(job.settings, state)


def epoch_row(job: Job, state: State, validation: dict[str, float]) -> dict[str, Any]:
    """One line of metrics.csv; nothing in it depends on the clock."""
    bags = state.sums["bags"]
    losses = {f"train_{name}": total / bags for name, total in state.sums.items() if name != "bags"}
    lr = job.optimiser.param_groups[0]["lr"]
    measured = {f"val_{name}": value for name, value in validation.items()}
    return {"epoch": state.epoch + 1, "lr": lr, **losses, **measured, **learned_alphas(job.model)}


def learned_alphas(model: nn.Module) -> dict[str, float]:
    """The smoothing strength of every Sm that learns it, as `alpha/<place in the model>`."""
    learning = {name: m for name, m in model.named_modules() if getattr(m, "learned", False) and hasattr(m, "alpha")}
    return {f"alpha/{name}": float(torch.as_tensor(m.alpha).detach()) for name, m in learning.items()}


def is_better(candidate: dict[str, Any], best: dict[str, Any] | None, select: str) -> bool:
    """Higher AUROC wins, ties go to the lower loss (or the other way round); a full tie stays with the earlier epoch.

    An AUROC that does not exist (one class only) counts as the lowest.
    """
    return best is None or _rank(candidate, select) > _rank(best, select)


def _rank(row: dict[str, Any], select: str) -> tuple[float, float]:
    auroc = -math.inf if math.isnan(row["auroc"]) else row["auroc"]
    return (auroc, -row["loss"]) if select == "auroc" else (-row["loss"], auroc)


def reason_to_end(settings: TrainingConfig, state: State) -> str | None:
    """Why training is over after the epochs so far, or None."""
    if state.epoch >= settings.epochs:
        return f"all {settings.epochs} epochs done"
    patience = settings.early_stopping
    if patience is not None and state.best is not None and state.epoch - state.best["epoch"] >= patience:
        return f"no better {settings.select} for {patience} epochs"
    return None
