"""Training runs: `train` from a config into a folder, `fit` from bags in memory; both resume in their folder."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from smmil.annotations.marks import CaseMarks, find_marks
from smmil.bag import Bag
from smmil.config import IN_MEMORY, DataConfig, ModelConfig, TargetConfig, TrainConfig, TrainingConfig, checked
from smmil.data.covariates import Covariates
from smmil.data.loader import BagDataset
from smmil.data.manifest import Manifest
from smmil.data.patients import StudyBags, need_patients
from smmil.data.sampling import training_parts
from smmil.data.splits import Split, load_splits, make_splits, refuse_leaks, run_split, small_test_note
from smmil.data.targets import target_strata
from smmil.errors import ConfigError, DataError
from smmil.evaluate.resampling import LEAST
from smmil.files import digest
from smmil.formats import read_provenance
from smmil.formats.content import edgeless_note
from smmil.losses import InstanceLoss, class_weights
from smmil.models import create_model
from smmil.nn.covariates import WithCovariates
from smmil.predict.cases import SOURCE_KEYS, feature_source
from smmil.predict.inference import load_trained, outputs
from smmil.prediction import corrections_text
from smmil.ranks import current
from smmil.runtime import reproducible, seed_step, source_digest, versions
from smmil.target import Target
from smmil.train.folder import RunFolder, State, _load_checkpoint, _outcome, _read_state, _save_checkpoint
from smmil.train.loggers import _EpochLog
from smmil.train.loop import (
    Interrupted,
    Progress,
    Trainer,
    _lasting_state,
    _make_optimiser,
    _parameter_groups,
    _stop_on_signals,
    _StopRequest,
)
from smmil.train.targets import _fit_run_target, _give_target, _memory_columns, _memory_row, _target_notes, _target_rows
from smmil.weights import save_weights, tensors_digest


@dataclass(frozen=True)
class RunResult:
    """Folder of a run and what it selected: `best` and `lowest_loss` hold epoch, auroc and loss on validation.

    Of a target that is no class its metric stands in place of auroc.
    """

    folder: Path
    history: list[dict[str, Any]]
    best: dict[str, Any]
    lowest_loss: dict[str, Any]
    ended: str


@dataclass(frozen=True)
class FitResult:
    """The trained model, in eval mode with the weights of the best epoch, and how it got there.

    history  one row per epoch: losses, validation AUROC and loss, learned alphas     ended  why training stopped
    best     epoch, auroc and loss of the selected epoch, as for `lowest_loss`         folder the run folder, if any
    """

    model: nn.Module
    history: list[dict[str, Any]]
    best: dict[str, Any]
    lowest_loss: dict[str, Any]
    ended: str
    folder: Path | None = None


def train(config: TrainConfig, out: str | Path, *, progress: Progress | None = None) -> RunResult:
    """Train in the folder `out`, from the beginning or from where it was stopped.

    Repeating the call after a crash or a kill resumes from the last checkpoint and ends with the same bytes.
    """
    return _train_in_folder(config.anchored(), out, lambda c: _ManifestBags(c.data, c.target), progress or Progress())


def fit(
    model: nn.Module | str,
    train_bags: Sequence[Bag],
    val_bags: Sequence[Bag],
    *,
    options: Mapping[str, Any] | None = None,
    n_classes: int | None = None,
    out: str | Path | None = None,
    corrections: Mapping[str, Tensor] | None = None,
    target: str | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **training: Any,
) -> FitResult:
    """Train a model on bags in memory, with the loop, the defaults and the selection of `smmil train`.

    model      a module, trained in place, or the name of a model, created for these bags with `options` and `n_classes`
    out        folder of the run: checkpoints, logs, and resuming when the call is repeated; the model must be a name
    corrections  {id of a training bag: (n,) labels of instances that experts marked, -1 elsewhere}; they teach with the
               weight `instance_loss`. The bags' own y_inst are never seen
    target     kind of the bags' `target`, where it is no class: multilabel, ordinal (levels in y), regression, survival
               or cox; or {"kind": …, "intervals": …, "columns": […]}
    training   settings of `smmil.config.TrainingConfig`: epochs=50, batch_size=4, lr=1e-4, seed=0, device="auto", …

    The seeds of torch, numpy and random are set at every step, so equal calls give equal weights.
    """
    settings = checked(TrainingConfig, training, "smmil.fit")
    if bool(corrections) != bool(settings.instance_loss):
        raise ConfigError("smmil.fit: corrections= and their weight instance_loss= go together; give both or neither")
    wanted = checked(TargetConfig, {"kind": target} if isinstance(target, str) else target or {}, "smmil.fit: target")
    bags = _MemoryBags(train_bags, val_bags, corrections or {}, wanted)
    progress = progress or Progress()
    if not isinstance(model, str):
        for name, value in {"options": options, "n_classes": n_classes, "out": out}.items():
            if value is not None:
                raise ConfigError(f"smmil.fit: {name}= needs the model by name, such as 'sm_ap', to create it (again)")
        return _fit_without_folder(model, settings, bags, progress)
    named = ModelConfig(name=model, options=dict(options or {}), n_classes=n_classes)
    if out is None:
        with reproducible(settings.threads):
            created = _fresh_model(_model_shape(named, bags), settings.seed)
        return _fit_without_folder(created, settings, bags, progress)
    config = TrainConfig(data=DataConfig(manifest=IN_MEMORY), model=named, training=settings, target=wanted)
    result = _train_in_folder(config, out, lambda _: bags, progress)
    trained = load_trained(result.folder, trust_code=model)
    return FitResult(trained.model.to(current().device(settings.device)), **vars(result))


def _fit_without_folder(
    model: nn.Module, settings: TrainingConfig, bags: "_MemoryBags", progress: Progress
) -> FitResult:
    if settings.tensorboard or settings.loggers:
        name = "tensorboard=True" if settings.tensorboard else f"loggers={settings.loggers}"
        raise ConfigError(f"smmil.fit: {name} needs the folder of a run; give out=")
    model, state, selected, target = model.to(current().device(settings.device)), State(), {}, bags.target

    def select(name: str, row: dict[str, Any]) -> dict[str, Any]:
        nonlocal target
        if name == "best":
            selected.update({key: value.detach().clone() for key, value in model.state_dict().items()})
            target = trainer.selected_target()
        return row

    with reproducible(settings.threads):
        trainer = _trainer(model, settings, bags, lambda _: None, select, progress=progress)
        for note in _target_notes(model, bags.target, settings):
            progress.message(note)
        progress.begun(epochs=settings.epochs, steps=trainer.steps, epoch=0, step=0)
        trainer.fit(state)
    model.load_state_dict(selected)
    _give_target(model, target)
    return FitResult(model.eval(), state.history, state.best or {}, state.lowest_loss or {}, state.ended or "")


def _train_in_folder(
    config: TrainConfig, out: str | Path, bags_of: Callable[[TrainConfig], "_RunBags"], progress: Progress
) -> RunResult:
    folder, ranks, state = RunFolder(Path(out)), current(), None
    if ranks.first:
        folder.refuse_other(config)
        state = folder.finished()
    if ranks.gather(state is None)[0]:
        with reproducible(config.training.threads), _stop_on_signals() as stop:
            state = _Run(config, folder, bags_of(config), progress, stop).resume()
    elif state is not None:
        run_split(folder.path)
        folder.write_metrics(state.history)
        folder.mark_finished(state)
        progress.message(f"{folder.path}: finished already ({state.ended}); nothing to do")
    else:
        state = _read_state(folder.last)
    return RunResult(folder.path, state.history, state.best or {}, state.lowest_loss or {}, state.ended or "")


class _RunBags(Protocol):
    """Bags of a run, and what its folder records about them."""

    split: Split
    train_set: BagDataset
    val_set: BagDataset
    corrections: "_Corrections | None"
    target: Target | None
    reading: dict[str, Any]  # how predictions have to read bags, where it is not one per case: for the weights

    def digest(self) -> str:
        """Digest of the ids and labels that train and validate, and of the corrections."""

    def check(self, progress: Progress) -> None:
        """Read every bag once before a new run starts."""

    def features(self) -> dict[str, Any]:
        """Encoder and recipe that all bags share."""

    def source(self) -> dict[str, Any]:
        """Where the bags come from, for run.json."""


class _ManifestBags:
    """Bags of a manifest, split as the settings say."""

    def __init__(self, data: DataConfig, target: TargetConfig):
        self.manifest = Manifest.read(data.manifest).for_target(target)
        self.manifest.check_table()
        self.split = _choose_split(self.manifest, data)
        self.fixed_test = data.test == "fixed" and data.splits is None
        self.path = data.manifest
        self.covariates = None
        if data.covariates is not None:
            self.covariates = Covariates.learned(self.manifest, data.covariates, self.split.train)
            self.covariates.need(self.manifest, self._used)
        self.reading: dict[str, Any] = {} if data.bags == "case" else {"bags": data.bags}
        self.reading |= {} if self.covariates is None else {"covariates": self.covariates.facts()}
        chosen: dict[str, Any] = {"bags": data.bags, "covariates": self.covariates}
        self.tables = [StudyBags(self.manifest, ids, **chosen) for ids in (self.split.train, self.split.val)]
        self.train_set, self.val_set = (BagDataset(table, instance_labels=False) for table in self.tables)
        self.corrections = None if data.corrections is None else self._corrections(data.corrections)
        self.target = _fit_run_target(target, self.train_set, self.val_set)

    def _corrections(self, where: str) -> "_Corrections":
        """What was marked in training cases; marks in others are counted, and left out."""
        found, strays = find_marks(where, self.manifest.ids)
        marks = {}
        for id_, members in self.tables[0].members.items():
            if any(case in found for case in members):
                marks[id_] = torch.cat([self._marks_of(case, found.get(case)) for case in members])
        held_out = [id_ for id_ in (*self.split.val, *self.split.test) if id_ in found]
        unknown = [*(id_ for id_ in found if id_ not in self.manifest.labels), *strays]
        return _Corrections.of(marks, held_out, unknown, where)

    def _marks_of(self, id_: str, marked: CaseMarks | None) -> Tensor:
        """Labels (n,) of what was marked in a case, -1 elsewhere."""
        bag = self.manifest.bag(id_, instance_labels=False)
        if marked is None:
            return torch.full((bag.n,), -1)
        bounds = read_provenance(self.manifest.path_of(id_)).get("bounds") or (0, 0)
        coords = None if bag.coords is None else bag.coords.numpy()
        patch = None if bag.frame is None else bag.frame.patch
        return torch.from_numpy(marked.labels(bag.n, coords, patch, bounds[:2]))

    def digest(self) -> str:
        labels = self.manifest.labels if self.target is None else self.manifest.targets
        known = [] if self.covariates is None else [self._covariate_digest(self.covariates)]
        return _split_digest(labels, self.split, self.corrections, known)

    def _covariate_digest(self, covariates: Covariates) -> str:
        """Of the covariates that train and validate; those of the test set play no part."""
        rows = [covariates.row(self.manifest, [id_]).numpy().tobytes() for id_ in self._used]
        return digest(*rows)

    def check(self, progress: Progress) -> None:
        """Read every bag once. Test bags are never opened, but it is said now if their files are missing."""
        edgeless = self.manifest.select(self._used).check_files(progress.checked)
        if edgeless:
            progress.message(f"note: {edgeless_note(edgeless, len(self._used))}")
        if self.fixed_test and (note := small_test_note(self.manifest, self.split, LEAST)):
            progress.message(f"note: {note}")
        missing = [i for i in self.split.test if not self.manifest.path_of(i).exists()]
        if missing:
            progress.message(f"note: files of {len(missing)} test bags are missing, such as {missing[0]}")
        if self.covariates is not None:
            for sentence in self.covariates.missing_in_words(self.manifest, self._used):
                progress.message(f"note: {sentence}")
            if unusable := self.covariates.unusable(self.manifest, self.split.test):
                first = next(iter(unusable.values()))
                progress.message(f"note: {len(unusable)} test cases cannot be predicted as they are ({first})")

    def features(self) -> dict[str, Any]:
        return feature_source(self.manifest, self._used)

    def source(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.manifest.digest()}

    @property
    def _used(self) -> tuple[str, ...]:
        return (*self.split.train, *self.split.val)


class _MemoryBags:
    """Training and validation bags in memory."""

    def __init__(
        self, train: Sequence[Bag], val: Sequence[Bag], corrections: Mapping[str, Tensor], target: TargetConfig
    ):
        for name, given in (("train_bags", train), ("val_bags", val)):
            if isinstance(given, Bag):
                raise DataError(f"smmil.fit: {name} is a single bag; give a list of bags")
            if not len(given):
                raise DataError(f"smmil.fit: {name} is empty")
        table: Any = _BagTable([*train, *val], target)
        self.labels = table.labels if table.target is None else table.targets
        self.split = Split(tuple(b.id for b in train), tuple(b.id for b in val))
        sets = [BagDataset(table, ids, cache_bytes=sys.maxsize) for ids in (self.split.train, self.split.val)]
        for bags in sets:
            if table.target is None:
                _labels(bags)
            for n in range(len(bags)):
                bags[n]  # compares the widths, and leaves nothing for worker processes to read
        self.train_set, self.val_set = sets
        self.reading: dict[str, Any] = {}
        self.corrections = self._corrections(corrections) if corrections else None
        self.target = _fit_run_target(target, self.train_set, self.val_set)

    def _corrections(self, given: Mapping[str, Tensor]) -> "_Corrections":
        sizes = {bag.id: bag.n for bag in (self.train_set[n] for n in range(len(self.train_set)))}
        marks = {id_: torch.as_tensor(labels).long() for id_, labels in given.items()}
        for id_, labels in marks.items():
            if id_ not in sizes:
                raise DataError(f"smmil.fit: corrections of {id_!r}, which is no training bag; only those may teach")
            if labels.shape != (sizes[id_],) or bool(((labels < -1) | (labels > 1)).any()):
                raise DataError(
                    f"smmil.fit: corrections of {id_!r} must be {sizes[id_]} labels 1, 0 or -1 (not marked)"
                )
        return _Corrections.of(marks, (), (), "smmil.fit: corrections")

    def digest(self) -> str:
        return _split_digest(self.labels, self.split, self.corrections)

    def check(self, progress: Progress) -> None:
        """Nothing to read: a Bag has checked itself, and the width is compared when batches are made."""

    def features(self) -> dict[str, Any]:
        return dict.fromkeys(SOURCE_KEYS)

    def source(self) -> dict[str, Any]:
        return {"path": None, "digest": self.digest()}


@dataclass(frozen=True)
class _Corrections:
    """Marks of experts in training cases: (n,) labels by id, and which other cases were left out."""

    marks: dict[str, Tensor]
    held_out: tuple[str, ...]
    unknown: tuple[str, ...]

    @classmethod
    def of(
        cls, marks: dict[str, Tensor], held_out: Sequence[str], unknown: Sequence[str], where: str
    ) -> "_Corrections":
        """Marks in at least one case, or an error."""
        found = cls({id_: m for id_, m in marks.items() if bool((m >= 0).any())}, tuple(held_out), tuple(unknown))
        if not found.marks:
            left = f" ({len(held_out)} marked cases validate or test)" if held_out else ""
            raise DataError(f"{where}: no mark in training cases{left}; mark lesions and places without lesion in them")
        return found

    def facts(self, weight: float) -> dict[str, Any]:
        """For run.json, the weights and every prediction: how much was marked, without names of cases."""
        marked = [int(m[m >= 0].numel()) for m in self.marks.values()]
        lesions = sum(int((m == 1).sum()) for m in self.marks.values())
        return {"instances": sum(marked), "lesions": lesions, "cases": len(marked), "weight": weight}

    def message(self, weight: float) -> str:
        """What is learned from, and what is not, in words."""
        facts = self.facts(weight)
        text = f"learns from {corrections_text(facts)}"
        if facts["lesions"] in (0, facts["instances"]):
            kind, other, side = ("lesions", "others", "above") if facts["lesions"] else ("others", "lesions", "below")
            text += (
                f"; all are marks of {kind}, which say no more than that these score {side} the average of their case: "
                f"mark some {other} too, so that the map learns where to draw the line"
            )
        if self.held_out:
            text += (
                f"; marks in {len(self.held_out)} validation and test cases are not used, such as {self.held_out[0]}"
            )
        if self.unknown:
            text += f"; {len(self.unknown)} marked cases are not in the manifest, such as {self.unknown[0]}"
        return text

    def digest(self) -> str:
        return digest(*(part for id_ in sorted(self.marks) for part in (id_, self.marks[id_].numpy().tobytes())))


class _BagTable:
    """The part of a Manifest that a BagDataset uses, over bags in memory."""

    def __init__(self, bags: Sequence[Bag], target: TargetConfig):
        self.bags = {bag.id: bag for bag in bags}
        self.labels = {bag.id: bag.y for bag in bags}
        self.ids = tuple(self.bags)
        if len(self.bags) < len(bags):
            repeated = next(bag.id for n, bag in enumerate(bags) if bag.id in {b.id for b in bags[:n]})
            raise DataError(f"smmil.fit: bag {repeated!r} is given twice; every bag trains or validates once")
        self.target = _memory_columns(target, bags)
        self.targets = {bag.id: _memory_row(target.kind, bag) for bag in bags}
        self.groups = {bag.id: bag.id for bag in bags}

    def strata(self) -> dict[str, int | None]:
        return target_strata(self.target, self.labels, self.targets, self.ids)

    def bag(self, id_: str, **_: Any) -> Bag:
        return self.bags[id_]

    def path_of(self, id_: str) -> str:
        return id_


class _Run:
    """A run in its folder: builds model and trainer, saves, logs and resumes."""

    def __init__(self, config: TrainConfig, folder: RunFolder, bags: _RunBags, progress: Progress, stop: _StopRequest):
        self.config, self.folder, self.bags, self.progress, self.stop = config, folder, bags, progress, stop
        self.identity: dict[str, Any] = {
            "config": config.digest(),
            "split": bags.digest(),
            "versions": versions() | {"source": source_digest()},
        }
        self.ranks = current()
        if not self.ranks.alone:
            self.identity["processes"] = self.ranks.count
        self.taught = (
            {} if bags.corrections is None else {"corrections": bags.corrections.facts(config.training.instance_loss)}
        )
        self.log: _EpochLog | None = None
        self.since = time.monotonic()

    def resume(self) -> State:
        """Train to the end, from the last checkpoint if there is one; raises Interrupted when stopped by a signal."""
        trainer, state = self._prepare()
        self.progress.begun(epochs=trainer.settings.epochs, steps=trainer.steps, epoch=state.epoch, step=state.step)
        if self.ranks.first:
            self.log = _EpochLog(self.folder.path, self.config, state.history, self.progress.message)
            self.folder.write_metrics(state.history)
            self._write_facts(state, "running")
        self.since = time.monotonic()
        complete = trainer.fit(state)
        if self.log is not None:
            self.log.close()
        if self.ranks.first:
            self._write_facts(state, "finished" if complete else "interrupted")
        self.ranks.gather()  # only now may the others read what the first one wrote
        if not complete:
            where = f"epoch {state.epoch + 1}, batch {state.step + 1}"
            message = f"stopped before {where}; everything is saved, the same command goes on from there"
            raise Interrupted(f"{self.folder.path}: {message}", self.stop.agreed or self.stop.signal or 0)
        return state

    def _prepare(self) -> tuple[Trainer, State]:
        training = self.config.training
        device = self.ranks.device(training.device)
        self.shape = _model_shape(self.config.model, self.bags)
        self.model = _fresh_model(self.shape, training.seed).to(device)
        resumes = self.folder.last.exists()
        if len(set(self.ranks.gather(resumes))) > 1:
            raise DataError(f"{self.folder.path}: not all processes see the same files in it; use a disk they share")
        unchecked = not resumes or training.max_instances is not None  # whose rows are read without their checksum
        if unchecked and self.ranks.first:
            self.bags.check(self.progress)
        self.ranks.gather()
        self.features = self.bags.features()
        hooks = {"progress": self.progress, "stop": self.stop}
        trainer = _trainer(self.model, training, self.bags, self._save, self._save_selected, **hooks)
        self.trainer = trainer
        for note in _target_notes(self.model, self.bags.target, training):
            self.progress.message(note)
        self.optimiser = trainer.optimiser
        self.instance_loss = trainer.instance_loss
        if self.bags.corrections is not None:
            self.progress.message(self.bags.corrections.message(training.instance_loss))
        state = self._restored() if resumes else State()
        if self.ranks.first:
            self.folder.bind(self.config, self.bags.split.to_dict())
        return trainer, state

    def _restored(self) -> State:
        state, saved = _load_checkpoint(self.folder.last, self.model, self.optimiser, self.identity, self.instance_loss)
        self.progress.message(f"{self.folder.path}: goes on at epoch {state.epoch + 1}, batch {state.step + 1}")
        if (versions := saved.get("versions")) != self.identity["versions"]:
            self.progress.message(f"begun with {versions}, now {self.identity['versions']}: bits may differ")
        if (before := saved.get("processes", 1)) != self.ranks.count:
            self.progress.message(f"begun with {before} processes, now {self.ranks.count}: bits may differ")
        return state

    def _save(self, state: State) -> None:
        if not self.ranks.first:
            return
        _save_checkpoint(self.folder.last, self.model, self.optimiser, state, self.identity, self.instance_loss)
        if state.step == 0:
            self._log_epoch(state)

    def _log_epoch(self, state: State) -> None:
        self.folder.write_metrics(state.history)
        now = time.monotonic()
        self.folder.add_timing(state.epoch, now - self.since)
        self.since = now
        if self.log is not None:
            self.log.add(state.history[-1])

    def _save_selected(self, name: str, chosen: dict[str, Any]) -> dict[str, Any]:
        known = {"model": self.shape, "features": self.features, **self.taught, **self.bags.reading}
        if (target := self.trainer.selected_target()) is not None:
            known["target"] = target.facts()
        facts, lasting = {**known, "selected_by": name, **chosen, **self.identity}, _lasting_state(self.model)
        if not self.ranks.first:
            return {**chosen, "weights": tensors_digest({k: t.detach().cpu() for k, t in lasting.items()})}
        return {**chosen, "weights": save_weights(self.folder.weights(name), lasting, facts)}

    def _write_facts(self, state: State, status: str) -> None:
        facts = {
            **_outcome(state, status),
            "model": self.shape,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "features": self.features,
            "manifest": self.bags.source(),
            "bags": {part: len(ids) for part, ids in self.bags.split.to_dict().items()},
            **self.taught,
            **({"reading": self.bags.reading} if self.bags.reading else {}),
            **self.identity,
        }
        self.folder.write_facts(facts)


_OFFSET_LR = 100.0  # a single number that has to follow all scores: it learns as much quicker than the weights


def _trainer(
    model: nn.Module,
    settings: TrainingConfig,
    bags: _RunBags,
    save: Callable[[State], None],
    save_selected: Callable[[str, dict[str, Any]], dict[str, Any]],
    **hooks: Any,
) -> Trainer:
    """The trainer of a model that is on its device."""
    device = current().device(settings.device)
    _refuse_for_several(model, settings, bags.target, hooks["progress"])
    if settings.max_instances is not None and getattr(model, "remembers_rows", False):
        what = f"{type(model).__name__} remembers instances by row, so it needs whole bags"
        raise ConfigError(f"training.max_instances: {what}; leave it out")
    groups = _parameter_groups(model)
    if bags.corrections is not None and bags.target is not None and bags.target.kind == "multilabel":
        raise ConfigError("data.corrections: marks say lesion or not, not which of several labels; leave them out")
    if bags.corrections is not None:
        kind = getattr(model, "score_kind", "attention logit")
        hooks["instance_loss"] = loss = InstanceLoss(settings.instance_loss, kind, bags.corrections.marks).to(device)
        groups.append({"params": [loss.offset], "lr_scale": _OFFSET_LR, "weight_decay": 0.0})
    optimiser = _make_optimiser(groups, settings)
    _give_target(model, bags.target)
    weights = {}
    if settings.class_weights and bags.target is None:
        first = bags.train_set.ready(0, 0, training_parts(settings, 0), None)
        weights = _loss_weights(model, bags, first, device)
    elif settings.class_weights and bags.target is not None:
        hooks["target_weight"] = bags.target.class_weights(_target_rows(bags.train_set))
    hooks["target"] = bags.target
    if settings.compile:
        hooks["runner"] = _compiled(model)
    sets = bags.train_set, bags.val_set
    return Trainer(settings, model, optimiser, *sets, device, save, save_selected, loss_weights=weights, **hooks)


def _refuse_for_several(model: nn.Module, settings: TrainingConfig, target: Target | None, progress: Progress) -> None:
    """Refuse what several processes cannot train as one would; say what they train in another way."""
    ranks, name = current(), type(model).__name__
    if ranks.alone:
        return
    if getattr(model, "training_state", None):
        raise ConfigError(
            f"{name}: remembers instances of training bags from step to step, and each of {ranks.count} processes "
            "would remember its own; train it with one process (training.accumulate for larger steps)"
        )
    if target is not None and target.kind == "cox":
        raise ConfigError(
            f"target.kind: cox compares the cases of a batch, which {ranks.count} processes would divide; use "
            "target.kind=survival, or one process"
        )
    if any(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules()):
        progress.message(
            f"note: {name} normalises over the bags of a forward pass: each of {ranks.count} processes over its own, "
            "so the result is not that of one process"
        )


def _compiled(model: nn.Module) -> Callable[[Any], Any]:
    """The model, compiled for bags of any size; it keeps its weights, names and hooks."""
    if hasattr(model, "after_step"):
        raise ConfigError(
            f"training.compile: {type(model).__name__} remembers bags between steps, which a compiled program does "
            "not; leave it out"
        )
    program: Callable[[Any], Any] = torch.compile(model, dynamic=True)

    def forward(batch: Any) -> Any:
        try:
            return program(batch)
        except torch._dynamo.exc.TorchDynamoException as problem:
            reason = " ".join(str(problem).split())[:200]
            raise ConfigError(
                f"training.compile: {type(model).__name__} cannot be compiled here ({reason}); it needs a C++ "
                "compiler, on a CUDA card Triton; leave it out"
            ) from None

    return forward


def _loss_weights(model: nn.Module, bags: _RunBags, first: Bag, device: torch.device) -> dict[str, Tensor]:
    """Class weights for the number of logits that the model gives."""
    ((_, output),) = outputs(model, [first], device)
    return class_weights(_labels(bags.train_set), output.logits.shape[1])


def check_settings(config: TrainConfig) -> None:
    """Check what can be checked before a bag is read: the model and its options, the table and the split."""
    create_model(config.model.name, 1, config.model.n_classes or 1, **config.model.options)
    manifest = Manifest.read(config.data.manifest).for_target(config.target)
    manifest.check_table()
    split = _choose_split(manifest, config.data)
    if config.data.covariates is not None:
        Covariates.learned(manifest, config.data.covariates, split.train)
    if config.data.corrections is not None:
        find_marks(config.data.corrections, manifest.ids)


def _choose_split(manifest: Manifest, data: DataConfig) -> Split:
    """The split of fold `data.fold`, from a file of splits if there is one; bags of patients as their cases."""
    if data.bags == "patient":
        need_patients(manifest)
    bags = StudyBags(manifest, bags=data.bags)
    if data.splits is not None:
        splits = load_splits(data.splits)
    else:
        shares = {"val_share": data.val_share, "test_share": data.test_share}
        rows = manifest if data.bags == "case" else bags.rows()
        splits = make_splits(rows, folds=data.folds, seed=data.split_seed, test=data.test, **shares)
        splits = splits if rows is manifest else [bags.expanded(split) for split in splits]
    if data.fold >= len(splits):
        raise ConfigError(f"data.fold: {data.fold} was asked for, but there are only folds 0 to {len(splits) - 1}")
    refuse_leaks(manifest, splits[data.fold])
    return splits[data.fold]


def _split_digest(
    labels: Mapping[str, Any],
    split: Split,
    corrections: _Corrections | None = None,
    more: Sequence[str] = (),
) -> str:
    """Digest of the ids that train and validate with their labels and marks; labels of the test set play no part."""
    used = [(part, id_, labels[id_]) for part in ("train", "val") for id_ in getattr(split, part)]
    return digest(repr(used), repr(split.test), *([] if corrections is None else [corrections.digest()]), *more)


def _model_shape(model: ModelConfig, bags: _RunBags) -> dict[str, Any]:
    """Name, options, input width and number of classes: all that is needed to create the model again."""
    (width, covariates), target = bags.train_set.widths, bags.target
    shape = {"name": model.name, "options": dict(model.options), "in_dim": width}
    shape |= {} if covariates is None else {"covariates": covariates}
    if target is not None:
        if model.n_classes not in (None, target.n_logits):
            need = f"a target of kind {target.kind} needs {target.n_logits}"
            raise ConfigError(f"model.n_classes: {model.n_classes} was asked for, but {need}; leave it out")
        return {**shape, "n_classes": target.n_logits}
    classes = max(_labels(bags.train_set) + _labels(bags.val_set)) + 1
    n_classes = model.n_classes or (1 if classes <= 2 else classes)
    if max(n_classes, 2) < classes:
        raise ConfigError(f"model.n_classes: {n_classes} does not fit labels up to {classes - 1}; leave it out")
    return {**shape, "n_classes": n_classes}


def _labels(bags: BagDataset) -> list[int]:
    """Labels of all bags; a bag without one is an error."""
    for id_, label in zip(bags.ids, bags.labels, strict=True):
        if label is None:
            raise DataError(f"bag {id_!r} has no label; training needs one for every bag")
    return [label for label in bags.labels if label is not None]


def _fresh_model(shape: dict[str, Any], seed: int) -> nn.Module:
    """Create the untrained model that belongs to a seed."""
    seed_step(seed, -1, 0)
    model = create_model(shape["name"], shape["in_dim"], shape["n_classes"], **shape["options"])
    return WithCovariates(model, shape["covariates"], shape["n_classes"]) if "covariates" in shape else model
