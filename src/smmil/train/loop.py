"""The training loop: epochs, steps, validation, learning rate, model hooks and non-finite checks.

bag_weight          attribute: factor of the bag loss beside the model's own terms (CLAM: 0.7)
parameter_groups()  method: [{"params": [...], "lr_scale": 0.1}], groups with options of their own for the optimiser;
                    `lr_scale` multiplies the learning rate of the schedule
before_step()       method: called when the gradients are complete, before they are used (clipping of its own)
after_step()        method: called when the weights have changed (prototypes, memory banks)
training_state      attribute: beginnings of names in the state dict that only training needs (soft labels of training
                    instances); they are in the checkpoint to go on from, not in the selected weights

State that these methods keep belongs into buffers, so that it is saved with the weights and resuming stays exact.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.config import TrainingConfig
from smmil.data.loader import BagDataset, batches, epoch_order
from smmil.errors import DataError
from smmil.evaluate import bag_metrics
from smmil.losses import bag_loss, penalty_terms, total_loss
from smmil.models import Output
from smmil.predict import on_device, predict
from smmil.runtime import seed_step
from smmil.train.checkpoint import State
from smmil.train.progress import Progress, StopRequest


def bag_weight(model: nn.Module) -> float:
    return float(getattr(model, "bag_weight", 1.0))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The groups a model asks for, or all parameters in one; every parameter must be in exactly one."""
    if not hasattr(model, "parameter_groups"):
        return [{"params": list(model.parameters())}]
    groups = [{**group, "params": list(group["params"])} for group in model.parameter_groups()]  # type: ignore[operator]
    grouped = sorted(id(p) for group in groups for p in group["params"])
    if grouped != sorted(id(p) for p in model.parameters()):
        raise ValueError(f"{type(model).__name__}.parameter_groups() must hold every parameter exactly once")
    return groups


def before_step(model: nn.Module) -> None:
    if hasattr(model, "before_step"):
        model.before_step()  # type: ignore[operator]


def after_step(model: nn.Module) -> None:
    if hasattr(model, "after_step"):
        model.after_step()  # type: ignore[operator]


def lasting_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict without what only training needs."""
    passing = tuple(getattr(model, "training_state", ()))
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(passing)}


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


@dataclass(frozen=True)
class TrainingJob:
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


def fit(job: TrainingJob, state: State) -> bool:
    """Train from `state` to the end; False if somebody asked to stop before, with everything saved."""
    while state.ended is None and job.stop.signal is None:
        if train_epoch(job, state):
            close_epoch(job, state, validate(job, state.epoch))
            job.save(state)
            job.progress.epoch_done(state.history[-1])
    return state.ended is not None


def train_epoch(job: TrainingJob, state: State) -> bool:
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


def _training_batches(job: TrainingJob, state: State) -> Iterator[BagBatch]:
    t = job.settings
    order = epoch_order(len(job.train_set), t.seed, state.epoch)
    return batches(job.train_set, batch_size=t.batch_size, order=order, workers=t.workers, start=state.step)


def optimiser_step(job: TrainingJob, state: State, stream: Iterator[BagBatch]) -> None:
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


def accumulate_gradient(job: TrainingJob, state: State, batch: BagBatch, share: float) -> None:
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


def forward(job: TrainingJob, state: State, batch: BagBatch) -> Output:
    """What the model says in training, with the randomness that belongs to this place; bfloat16 if asked for."""
    seed_step(job.settings.seed, state.epoch, state.step)
    with torch.autocast(job.device.type, dtype=torch.bfloat16, enabled=job.settings.autocast):
        return job.model(batch)


def _add_up(state: State, parts: dict[str, Tensor], bags: int) -> None:
    for name, value in parts.items():
        state.sums[name] = state.sums.get(name, 0.0) + float(value.detach()) * bags
    state.sums["bags"] = state.sums.get("bags", 0) + bags


def validate(job: TrainingJob, epoch: int) -> dict[str, float]:
    """Bag AUROC and cross-entropy over all validation bags at once: eval mode, no gradients, labels hidden."""
    seed_step(job.settings.seed, epoch, -1)
    t = job.settings
    stream = batches(job.val_set, batch_size=t.batch_size, order=range(len(job.val_set)), workers=t.workers)
    try:
        found = bag_metrics(predict(job.model, stream, device=job.device, spatial=False))
    except DataError as problem:
        raise DataError(f"epoch {epoch + 1}, validation: {problem}") from None
    return {"auroc": found["auroc"], "loss": found["loss"]}


def close_epoch(job: TrainingJob, state: State, validation: dict[str, float]) -> None:
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


def epoch_row(job: TrainingJob, state: State, validation: dict[str, float]) -> dict[str, Any]:
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
