"""The training loop: epochs, steps, validation, progress events, interruption and non-finite checks.

A model may define these hooks:

bag_weight          attribute: factor of the bag loss next to the model's own terms (CLAM: 0.7)
class_terms         attribute: its own terms, in words, that mean nothing without classes and that it leaves out for
                    other targets; its bag loss then counts in full
parameter_groups()  method: [{"params": [...], "lr_scale": 0.1}], groups with options of their own for the optimiser;
                    `lr_scale` multiplies the learning rate of the schedule
before_step()       method: called when the gradients are complete, before they are used (clipping of its own)
after_step()        method: called when the weights have changed (prototypes, memory banks)
bags_seen(ids)      method: called before `after_step` where several processes divide the bags of a step, with all of
                    them in their order: what a model counts by bag is then the same on all processes
training_state      attribute: prefixes of state dict entries that only training needs (soft labels of training
                    instances); they are in the checkpoint to resume from, not in the selected weights. Such a model is
                    trained by one process: each of several would remember its own bags only

remembers_rows      attribute: True if it keeps something for every instance of a training bag, by row; such a model
                    cannot train on parts of bags (`training.max_instances`)
all_pairs           attribute: True if the time of a step grows with the square of the instances of a bag; only for the
                    estimate that is shown before a step that takes minutes

State of these hooks belongs in buffers, so that it is saved with the weights and resuming stays exact.
"""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from smmil.bag import BagBatch
from smmil.config import TrainingConfig
from smmil.data.loader import BagDataset, balanced_order, batches, epoch_order, planned_batches, whole_bags
from smmil.data.sampling import training_parts
from smmil.errors import DataError
from smmil.evaluate.levels import bag_metrics
from smmil.formats.rows import BLOCK, OpenBag
from smmil.losses import InstanceLoss, bag_loss, penalty_terms, total_loss
from smmil.models import QUICK, Output, own_target, step_seconds
from smmil.predict.inference import outputs, predict
from smmil.prediction import Prediction
from smmil.ranks import Ranks, current
from smmil.runtime import feature_dtype, seed_step
from smmil.target import Target
from smmil.train.folder import State, selection_metric
from smmil.train.targets import _completed, _judged, _judgement, _validate_target
from smmil.weights import tensors_digest


class Progress:
    """Receives the events of a run and ignores them; override methods to show them."""

    def checked(self, done: int, total: int) -> None:
        """`done` of `total` bags have been read and checked, before a new run starts."""

    def begun(self, *, epochs: int, steps: int, epoch: int, step: int) -> None:
        """Training starts at batch `step` of `epoch` (both from 0), with `steps` batches in each of `epochs`."""

    def message(self, text: str) -> None:
        """A message to the user, in one sentence."""

    def step_done(self, epoch: int, step: int, loss: float) -> None:
        """Batch `step` (counted from 1) of `epoch` is done."""

    def epoch_done(self, row: dict[str, Any]) -> None:
        """An epoch is done; `row` is its line in metrics.csv."""


class Interrupted(Exception):  # noqa: N818
    """Training was stopped by a signal and has saved its state; `signal` is the number of the signal."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal = signal_number


class _StopRequest:
    """Records a request to stop; a second one raises KeyboardInterrupt at once.

    agreed  the signal that any of several processes got, once all of them know: they stop at the same step
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.agreed: int | None = None

    def ask(self, number: int, _frame: FrameType | None = None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def _stop_on_signals() -> Iterator[_StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest inside the block; outside the main thread signals are left alone."""
    request = _StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _bag_weight(model: nn.Module) -> float:
    """Factor of the bag loss that the model asks for; 1 by default, and where the other terms are left out."""
    if own_target(model) is not None and hasattr(model, "class_terms"):
        return 1.0
    return float(getattr(model, "bag_weight", 1.0))


def _parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups of the model, or one group with all; every parameter must be in exactly one."""
    if not hasattr(model, "parameter_groups"):
        return [{"params": list(model.parameters())}]
    groups = [{**group, "params": list(group["params"])} for group in model.parameter_groups()]  # type: ignore[operator]
    grouped = sorted(id(p) for group in groups for p in group["params"])
    if grouped != sorted(id(p) for p in model.parameters()):
        raise ValueError(f"{type(model).__name__}.parameter_groups() must hold every parameter exactly once")
    return groups


def _before_step(model: nn.Module) -> None:
    """Call the model's hook before an optimiser step."""
    if hasattr(model, "before_step"):
        model.before_step()  # type: ignore[operator]


def _bags_seen(model: nn.Module, ids: list[str]) -> None:
    """Call the model's hook where several processes divided the bags of a step."""
    if hasattr(model, "bags_seen"):
        model.bags_seen(ids)  # type: ignore[operator]


def _after_step(model: nn.Module) -> None:
    """Call the model's hook after an optimiser step."""
    if hasattr(model, "after_step"):
        model.after_step()  # type: ignore[operator]


def _lasting_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict without the entries that only training needs."""
    prefixes = tuple(getattr(model, "training_state", ()))
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(prefixes)}


# Bags from this size on are timed before their first step; steps longer than this are announced.
_LARGE, _SLOW_S = 8192, 60.0

_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def _make_optimiser(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], settings: TrainingConfig
) -> torch.optim.Optimizer:
    """Create the optimiser; PyTorch's defaults apart from learning rate and weight decay."""
    return _OPTIMISERS[settings.optimiser](list(parameters), lr=settings.lr, weight_decay=settings.weight_decay)


def _warmup_factor(epoch: int, epochs: int, start: float) -> float:
    """Learning rate factor of `epoch`: linear from `start` to 1 over `epochs` epochs.

    The paper's LinearLR (start 0.1, 5 epochs) is 0.1, 0.28, 0.46, 0.64, 0.82, 1, 1, …
    """
    if epoch >= epochs:
        return 1.0
    return start + (1 - start) * epoch / epochs


def _set_epoch_lr(optimiser: torch.optim.Optimizer, settings: TrainingConfig, epoch: int) -> float:
    """Set and return the learning rate of `epoch`; a group with an `lr_scale` gets that multiple of it."""
    lr = settings.lr * _warmup_factor(epoch, settings.warmup_epochs, settings.warmup_start)
    for group in optimiser.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    return lr


_ADVICE = "lower training.lr, set training.clip_norm, or look at this bag with: smmil inspect"


def _refuse_nonfinite_forward(batch: BagBatch, output: Output, parts: Mapping[str, Tensor], where: str) -> None:
    """Raise an error that names the bag if a logit or a loss of this batch is not finite."""
    if bool(torch.isfinite(output.logits).all()) and all(bool(torch.isfinite(p).all()) for p in parts.values()):
        return
    _refuse_rows(batch, where)
    wrong = (~torch.isfinite(output.logits)).any(1).nonzero().flatten().tolist()
    if wrong:
        raise DataError(f"{where}: the logit of {_named(batch, wrong)} is NaN or Inf; {_ADVICE}")
    terms = ", ".join(name for name, part in parts.items() if not bool(torch.isfinite(part).all()))
    raise DataError(f"{where}: loss term {terms} is NaN or Inf, among bags {', '.join(batch.ids)}; {_ADVICE}")


def _refuse_nonfinite_gradient(
    model: nn.Module, batch: BagBatch, forward: Callable[[], Output], where: str
) -> NoReturn:
    """Raise an error that names the bags whose own gradient is not finite (or all, if only their sum is not)."""
    _refuse_rows(batch, where)
    wrong = [b for b in range(len(batch)) if not _finite_gradient(model, forward().logits, batch, b)]
    named = _named(batch, wrong) if wrong else f"bags {', '.join(batch.ids)} together"
    raise DataError(f"{where}: the gradient of {named} is NaN or Inf; {_ADVICE}")


def _gradients_are_finite(model: nn.Module) -> bool:
    """Whether every gradient is finite; one pass over the parameters."""
    sums = [p.grad.sum() for p in model.parameters() if p.grad is not None]
    return not sums or bool(torch.isfinite(torch.stack(sums)).all())


def _refuse_rows(batch: BagBatch, where: str) -> None:
    for name, rows in zip(batch.ids, batch.split(batch.x), strict=True):
        wrong = (~torch.isfinite(rows)).any(1).nonzero().flatten().tolist()
        if wrong:
            raise DataError(f"{where}: bag {name} holds NaN or Inf in row {wrong[0]}; extract its features again")


def _finite_gradient(model: nn.Module, logits: Tensor, batch: BagBatch, b: int) -> bool:
    weights, target, one = [p for p in model.parameters() if p.requires_grad], own_target(model), slice(b, b + 1)
    known = batch.need("y") if target is None else target.known(batch)
    loss = bag_loss if target is None else target.loss
    found = torch.autograd.grad(loss(logits[one], known[one]), weights, allow_unused=True)
    return all(bool(torch.isfinite(g).all()) for g in found if g is not None)


def _named(batch: BagBatch, which: list[int]) -> str:
    return f"bag{'s' if len(which) > 1 else ''} {', '.join(batch.ids[b] for b in which)}"


@dataclass(frozen=True)
class Trainer:
    """Trains one model on one split; holds what stays the same while training runs, and no test set.

    save             writes the checkpoint of a state
    save_selected    stores the weights of this epoch under a name, and returns the row that describes them
    loss_weights     class weights, as keyword arguments of the loss
    target           what is predicted where it is no class; its weights against imbalance are `target_weight`
    instance_loss    of the instances that experts marked; None: no instance label is seen
    runner           the compiled model, for the forward pass of training; None: the model itself
    """

    settings: TrainingConfig
    model: nn.Module
    optimiser: torch.optim.Optimizer
    train_set: BagDataset
    val_set: BagDataset
    device: torch.device
    save: Callable[[State], None]
    save_selected: Callable[[str, dict[str, Any]], dict[str, Any]]
    loss_weights: dict[str, Tensor] = field(default_factory=dict)
    target: Target | None = None
    target_weight: Tensor | None = None
    instance_loss: InstanceLoss | None = None
    progress: Progress = field(default_factory=Progress)
    stop: _StopRequest = field(default_factory=_StopRequest)
    timed: list[int] = field(default_factory=list)
    runner: Callable[[BagBatch], Output] | None = None
    ranks: Ranks = field(default_factory=current)
    sizes: dict[str, list[int]] = field(default_factory=dict)

    @property
    def stopped(self) -> bool:
        """Whether a signal asked to stop; several processes have to agree on it."""
        return (self.stop.signal if self.ranks.alone else self.stop.agreed) is not None

    @property
    def steps(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self.train_set) / self.settings.batch_size)

    def fit(self, state: State) -> bool:
        """Train from `state` to the end; False if a stop was requested before, with everything saved."""
        self._prepare_ranks()
        while state.ended is None and not self.stopped:
            if self.train_epoch(state):
                self.close_epoch(state, self.validate(state.epoch))
                self.save(state)
                self.progress.epoch_done(state.history[-1])
        return state.ended is not None

    def train_epoch(self, state: State) -> bool:
        """Run the rest of the current epoch; False if it was interrupted (and saved) on the way."""
        _set_epoch_lr(self.optimiser, self.settings, state.epoch)
        self.model.train()
        saved = time.monotonic()
        stream = self._training_batches(state)
        while state.step < self.steps:
            self.optimiser_step(state, stream)
            due = time.monotonic() - saved >= 60 * self.settings.checkpoint_minutes
            if due or self.stopped:
                self.save(state)
                saved = time.monotonic()
            if self.stopped:
                return False
        return True

    def _training_batches(self, state: State) -> Iterator[BagBatch]:
        t, order = self.settings, self._order(state.epoch)
        parts = training_parts(t, state.epoch)
        if self.ranks.alone:
            how: dict[str, Any] = {"workers": t.workers, "start": state.step, "parts": parts}
            return batches(self.train_set, batch_size=t.batch_size, order=order, **how)
        plan = [p for step in range(state.step, self.steps, t.accumulate) for p in self._own_passes(order, step)]
        return planned_batches(self.train_set, plan, t.workers, parts)

    def _order(self, epoch: int) -> list[int]:
        t = self.settings
        if t.sampler == "balanced":
            return balanced_order(self.train_set.strata, t.seed, epoch)
        return epoch_order(len(self.train_set), t.seed, epoch)

    def _prepare_ranks(self) -> None:
        """Several processes: compare their weights and learn from each other how large all bags are."""
        if self.ranks.alone:
            return
        self._refuse_unlike_weights()
        for name, bags in (("train", self.train_set), ("val", self.val_set)):
            own = range(self.ranks.number, len(bags), self.ranks.count)
            told = self.ranks.gather([bags.opened(n).bag.n for n in own])
            self.sizes[name] = [told[n % self.ranks.count][n // self.ranks.count] for n in range(len(bags))]

    def _refuse_unlike_weights(self) -> None:
        """Weights must be the same on all processes: they are where all began and added up alike."""
        tensors = {name: t.detach().cpu() for name, t in self.model.state_dict().items() if t.is_floating_point()}
        if len(set(self.ranks.gather(tensors_digest(tensors)))) > 1:
            raise DataError(
                "the processes hold different weights: they need the same model, seed, settings and kind of device; "
                "start all of them again"
            )

    def _step_places(self, step: int) -> slice:
        """Places in the order of an epoch of the bags of the optimiser step that begins at a batch."""
        size = self.settings.batch_size
        return slice(step * size, min(len(self.train_set), (step + self.settings.accumulate) * size))

    def _own_passes(self, order: list[int], step: int) -> list[list[tuple[int, int]]]:
        """Places and bags of a step that are the share of this process, in each of its forward passes."""
        taken, most = list(enumerate(order))[self._step_places(step)], self.settings.max_instances or sys.maxsize
        own = self.ranks.passes([min(most, self.sizes["train"][n]) for _, n in taken], self.settings.accumulate)
        return [[taken[n] for n in one] for one in own]

    def optimiser_step(self, state: State, stream: Iterator[BagBatch]) -> None:
        """Change the weights once: `accumulate` batches forward and backward, as if they were one batch."""
        t, places = self.settings, self._step_places(state.step)
        bags = places.stop - places.start
        self.optimiser.zero_grad(set_to_none=True)
        if self.ranks.alone:
            for batch in islice(stream, t.accumulate):
                self.accumulate_gradient(state, batch, share=len(batch) / bags)
        else:
            self.share_gradient(state, stream, bags)
        _before_step(self.model)
        if t.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), t.clip_norm)
        self.optimiser.step()
        _after_step(self.model)

    def accumulate_gradient(self, state: State, batch: BagBatch, share: float) -> None:
        """Add the gradient of one batch, weighted by its share of the bags, and its losses to the running sums."""
        losses = self.add_gradient(state, batch, share)
        state.add_losses(losses, len(batch))
        state.step += 1
        self.progress.step_done(state.epoch, state.step, float(losses["loss"].detach()))

    def share_gradient(self, state: State, stream: Iterator[BagBatch], bags: int) -> None:
        """Add the gradients of a step whose bags are divided over the processes; one without a bag adds nothing.

        Every process weighs its bags by their share of all bags of the step, so that the sum is the gradient of the
        mean over them, as in one process. Losses are added up in the order of the processes: the same on all of them.
        """
        order, own = self._order(state.epoch), State()
        mine = self._own_passes(order, state.step)
        for number, batch in enumerate(islice(stream, len(mine))):
            part = number * self.ranks.count + self.ranks.number  # no two passes of a step draw the same numbers
            own.add_losses(self.add_gradient(state, batch, len(batch) / bags, part), len(batch))
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        used = [n for n, p in enumerate(parameters) if p.grad is not None]
        said = self.ranks.gather({"sums": own.sums, "used": used, "signal": self.stop.signal})
        self.ranks.sum_gradients(parameters, (n for one in said for n in one["used"]))
        self.ranks.average_buffers(self.model, own.sums.get("bags", 0) / bags)
        _bags_seen(self.model, [self.train_set.ids[n] for n in order[self._step_places(state.step)]])
        for one in said:
            for name, value in one["sums"].items():
                state.sums[name] = state.sums.get(name, 0) + value
        self._agree_to_stop(one["signal"] for one in said)
        state.step = min(self.steps, state.step + self.settings.accumulate)
        loss = sum(one["sums"].get("loss", 0.0) for one in said) / bags
        self.progress.step_done(state.epoch, state.step, loss)

    def _agree_to_stop(self, signals: Iterable[int | None]) -> None:
        self.stop.agreed = self.stop.agreed or next((number for number in signals if number is not None), None)

    def add_gradient(self, state: State, batch: BagBatch, share: float, part: int = 0) -> dict[str, Tensor]:
        """Add the gradient of one batch, weighted by its share of the bags; gives its losses."""
        where = f"epoch {state.epoch + 1}, batch {state.step + 1}"
        batch = replace(batch, y_inst=None).brought_to(self.device, feature_dtype(self.model, batch.x.dtype))
        self.announce(batch)
        output = self.forward(state, batch, part)
        terms: dict[str, Any] = {**penalty_terms(output, batch, self.settings.penalty), **self.loss_weights}
        if self.instance_loss is not None:
            maps = output.scores if self.target is None else self.target.maps(output.scores)
            terms |= self.instance_loss.terms(replace(output, scores=maps), batch)
        y = batch.need("y") if self.target is None else None
        if self.target is not None:
            terms["bag"] = self.target.loss(output.logits, self.target.known(batch), weight=self.target_weight)
        loss, parts = total_loss(output, y, bag_weight=_bag_weight(self.model), **terms)
        _refuse_nonfinite_forward(batch, output, parts, where)
        torch.autograd.backward(loss * share)
        if not _gradients_are_finite(self.model):
            _refuse_nonfinite_gradient(self.model, batch, lambda: self.forward(state, batch, part), where)
        return {"loss": loss, **(parts if len(parts) > 1 else {})}

    def announce(self, batch: BagBatch) -> None:
        """Say before a step that will take minutes how long it takes and which models are quicker.

        Asked once, and again for bags twice as large. Weights, buffers and random numbers are left alone.
        """
        size = max(batch.sizes)
        if size < max([_LARGE, *(2 * n for n in self.timed)]):
            return
        self.timed.append(size)
        try:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
                seconds = step_seconds(self.model, batch)
        except Exception:  # noqa: BLE001 (the model may be anybody's; without an estimate it trains all the same)
            return
        if seconds >= _SLOW_S:
            name, bag = type(self.model).__name__, batch.ids[batch.sizes.index(size)]
            square = ", whose time grows with their square" if getattr(self.model, "all_pairs", False) else ""
            took = f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:,.0f} hours"
            self.progress.message(
                f"bag {bag} has {size:,} instances: one step takes about {took} with {name}{square}; models that can: "
                f"{', '.join(QUICK)}; or tile more coarsely (smmil prepare)"
            )

    def forward(self, state: State, batch: BagBatch, part: int = 0) -> Output:
        """Run the model in training, seeded by the place in the run; in bfloat16 if asked for."""
        seed_step(self.settings.seed, state.epoch, state.step, part)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            output: Output = (self.model if self.runner is None else self.runner)(batch)
            return output

    def validate(self, epoch: int) -> dict[str, float]:
        """Bag AUROC and cross-entropy over all validation bags at once: eval mode, no gradients, labels hidden.

        Of another target its metric and its loss.
        """
        seed_step(self.settings.seed, epoch, -1)
        if not self.ranks.alone:
            return self.share_validation(epoch)
        stream = self._in_order(self.val_set)
        with _validating(epoch):
            if self.target is not None:
                return _validate_target(self.target, outputs(self.model, stream, self.device, block=self.block))
            return _selecting(predict(self.model, stream, device=self.device, spatial=False, block=self.block))

    def share_validation(self, epoch: int) -> dict[str, float]:
        """What `validate` gives, with the validation bags divided over the processes: the first one's numbers for all.

        So all of them select the same epochs and stop at the same one.
        """
        own = self.ranks.share(self.sizes["val"])
        with _validating(epoch):
            rows = self._validation_rows(own)
        self._refuse_unlike_weights()
        said = self.ranks.gather({"rows": rows, "signal": self.stop.signal})
        self._agree_to_stop(one["signal"] for one in said)
        rows = sorted(row for one in said for row in one["rows"])
        if self.target is None:
            ids, nothing = self.val_set.ids, np.zeros((1, 1), np.float32)
            numbers = _selecting([Prediction(ids[n], np.array(probs), nothing, y=y) for n, probs, y in rows])
        else:
            logits, known = (torch.tensor([row[place] for row in rows], dtype=torch.float64) for place in (1, 2))
            numbers = _judgement(self.target, logits, known)
        first: dict[str, float] = self.ranks.gather(numbers)[0]
        return first

    def _validation_rows(self, own: list[int]) -> list[list[Any]]:
        """Number, probabilities or logits, and what is known of these validation bags."""
        stream = self._in_order(self.val_set, own)
        if self.target is None:
            found = predict(self.model, stream, device=self.device, spatial=False, block=self.block)
            return [[n, p.probs.tolist(), p.y] for n, p in zip(own, found, strict=True)]
        outs = outputs(self.model, stream, self.device, block=self.block)
        judged = _judged(self.target, outs) if own else ((), ())
        return [[n, a.tolist(), b.tolist()] for n, a, b in zip(own, *judged, strict=True)]

    @property
    def block(self) -> int | None:
        """Rows that are embedded at a time of whole bags larger than those of training, where the model can."""
        able = self.settings.max_instances is not None and hasattr(self.model, "in_blocks")
        return BLOCK if able else None

    def _in_order(self, bags: BagDataset, order: Sequence[int] | None = None) -> Iterator[BagBatch | OpenBag]:
        t = self.settings
        most = None if self.block is None else t.max_instances
        order = range(len(bags)) if order is None else order
        return whole_bags(bags, order, batch_size=t.batch_size, workers=t.workers, most=most)

    def selected_target(self) -> Target | None:
        """The target with what depends on the weights of now, for those that are selected."""
        if self.target is None:
            return None
        stream = self._in_order(self.train_set)
        return _completed(self.target, outputs(self.model, stream, self.device, block=self.block))

    def close_epoch(self, state: State, validation: dict[str, float]) -> None:
        """Add the epoch to the history, store its weights if they are the best so far, decide whether to go on."""
        row = self._epoch_row(state, validation)
        metric = "auroc" if self.target is None else self.target.metric
        candidate = {"epoch": row["epoch"], metric: row[f"val_{metric}"], "loss": row["val_loss"]}
        if _is_better(candidate, state.lowest_loss, "loss"):
            state.lowest_loss = self.save_selected("lowest_loss", candidate)
        row["best"] = int(_is_better(candidate, state.best, self.settings.select))
        if row["best"]:
            state.best = self.save_selected("best", candidate)
        state.history.append(row)
        state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
        state.ended = _stop_reason(self.settings, state)

    def _epoch_row(self, state: State, validation: dict[str, float]) -> dict[str, Any]:
        """One line of metrics.csv; nothing in it depends on the clock."""
        bags = state.sums["bags"]
        losses = {f"train_{name}": total / bags for name, total in state.sums.items() if name != "bags"}
        lr = self.optimiser.param_groups[0]["lr"]
        measured = {f"val_{name}": value for name, value in validation.items()}
        learned = _learned_alphas(self.model)
        if self.instance_loss is not None:
            learned["marks/offset"] = float(self.instance_loss.offset.detach())
        return {"epoch": state.epoch + 1, "lr": lr, **losses, **measured, **learned}


@contextmanager
def _validating(epoch: int) -> Iterator[None]:
    """Say in errors that they come from the validation of an epoch."""
    try:
        yield
    except DataError as problem:
        raise DataError(f"epoch {epoch + 1}, validation: {problem}") from None


def _selecting(validation: list[Prediction]) -> dict[str, float]:
    """The numbers that select weights."""
    found = bag_metrics(validation)
    return {"auroc": found["auroc"], "loss": found["loss"]}


def _learned_alphas(model: nn.Module) -> dict[str, float]:
    """Value of every learned alpha, as `alpha/<name of the module>`."""
    learning = {name: m for name, m in model.named_modules() if getattr(m, "learned", False) and hasattr(m, "alpha")}
    return {f"alpha/{name}": float(torch.as_tensor(m.alpha).detach()) for name, m in learning.items()}


def _is_better(candidate: dict[str, Any], best: dict[str, Any] | None, select: str) -> bool:
    """Whether an epoch beats the best so far: by AUROC, then loss, or the other way round; the earlier wins a full tie.

    Of a target that is no class its metric stands in place of the AUROC. One that does not exist (one class only)
    counts as the lowest.
    """
    return best is None or _rank(candidate, select) > _rank(best, select)


def _rank(row: dict[str, Any], select: str) -> tuple[float, float]:
    value = row[selection_metric(row)]
    value = -math.inf if math.isnan(value) else value
    return (value, -row["loss"]) if select == "auroc" else (-row["loss"], value)


def _stop_reason(settings: TrainingConfig, state: State) -> str | None:
    """Reason why training ends after the epochs so far, or None."""
    if state.epoch >= settings.epochs:
        return f"all {settings.epochs} epochs done"
    patience = settings.early_stopping
    if patience is not None and state.best is not None and state.epoch - state.best["epoch"] >= patience:
        by = selection_metric(state.best) if settings.select == "auroc" else settings.select
        return f"no better {by} for {patience} epochs"
    return None
