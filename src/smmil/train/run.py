"""One training run in one folder: start, resume, or report that it is done."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smmil.config import DataConfig, ModelConfig, TrainConfig, anchored, config_hash
from smmil.data.loader import BagDataset
from smmil.data.manifest import Manifest
from smmil.data.splits import Split, load_splits, make_splits, refuse_leaks
from smmil.errors import ConfigError, DataError
from smmil.files import digest
from smmil.losses import class_weights
from smmil.models import create_model
from smmil.predict import feature_source
from smmil.runtime import choose_device, reproducible, seed_step, source_digest, versions
from smmil.train.checkpoint import State, load_checkpoint, save_checkpoint
from smmil.train.folder import RunFolder, TensorBoardLog, outcome
from smmil.train.loop import TrainingJob, fit, lasting_state, make_optimiser, parameter_groups
from smmil.train.progress import Interrupted, Progress, StopRequest, stop_on_signals
from smmil.weights import save_weights


@dataclass(frozen=True)
class RunResult:
    """Where a run lies and what it selected: `best` and `lowest_loss` hold epoch, auroc and loss on validation."""

    folder: Path
    history: list[dict[str, Any]]
    best: dict[str, Any]
    lowest_loss: dict[str, Any]
    ended: str


def train(config: TrainConfig, out: str | Path, *, progress: Progress | None = None) -> RunResult:
    """Train in the folder `out`, from the beginning or from where it was stopped, and give what was selected.

    Repeating the call after a crash or a kill goes on from the last checkpoint and ends with the same bytes.
    """
    config, folder, progress = anchored(config), RunFolder(Path(out)), progress or Progress()
    folder.refuse_other(config)
    state = folder.finished()
    if state is None:
        with reproducible(config.training.threads), stop_on_signals() as stop:
            state = _Run(config, folder, progress, stop).go_on()
    else:
        folder.write_metrics(state.history)
        folder.mark_finished(state)
        progress.said(f"{folder.path}: finished already ({state.ended}); nothing to do")
    return RunResult(folder.path, state.history, state.best or {}, state.lowest_loss or {}, state.ended or "")


class _Run:
    """Everything between a config and the loop."""

    def __init__(self, config: TrainConfig, folder: RunFolder, progress: Progress, stop: StopRequest):
        self.config, self.folder, self.progress, self.stop = config, folder, progress, stop
        self.manifest = Manifest.read(config.data.manifest)
        self.manifest.check_table()
        self.split = choose_split(self.manifest, config.data)
        self.identity = {
            "config": config_hash(config),
            "split": split_digest(self.manifest, self.split),
            "versions": versions() | {"source": source_digest()},
        }
        self.board: TensorBoardLog | None = None
        self.since = time.monotonic()

    def go_on(self) -> State:
        """Train to the end; raises Interrupted if somebody asked to stop."""
        job, state = self._prepare()
        if self.config.training.tensorboard:
            self.board = TensorBoardLog(self.folder.path / "tensorboard", state.epoch)
        self.progress.begun(epochs=job.settings.epochs, steps=job.steps, epoch=state.epoch, step=state.step)
        self.folder.write_metrics(state.history)
        self._write_facts(state, "running")
        self.since = time.monotonic()
        complete = fit(job, state)
        if self.board is not None:
            self.board.close()
        self._write_facts(state, "finished" if complete else "interrupted")
        if not complete:
            self._tell_interrupted(state)
        return state

    def _prepare(self) -> tuple[TrainingJob, State]:
        used = (*self.split.train, *self.split.val)
        train_set, val_set = (
            BagDataset(self.manifest, ids, instance_labels=False) for ids in (self.split.train, self.split.val)
        )
        device = choose_device(self.config.training.device)
        self.shape = model_shape(self.config.model, train_set, [*train_set.labels, *val_set.labels])
        self.model = fresh_model(self.shape, self.config.training.seed).to(device)
        self.optimiser = make_optimiser(parameter_groups(self.model), self.config.training)
        resumes = self.folder.last.exists()
        if not resumes:
            self.manifest.select(used).check_files(self.progress.checked)
            self._mention_missing_test_bags()
        self.features = feature_source(self.manifest, used)
        job = self._job(train_set, val_set, device)
        state = self._resumed() if resumes else State()
        self.folder.claim(self.config, self.split.to_dict())
        return job, state

    def _mention_missing_test_bags(self) -> None:
        """Test bags are never opened in training, but their absence is better known now than at prediction."""
        missing = [i for i in self.split.test if not self.manifest.path_of(i).exists()]
        if missing:
            self.progress.said(f"note: files of {len(missing)} test bags are missing, such as {missing[0]}")

    def _job(self, train_set: BagDataset, val_set: BagDataset, device: torch.device) -> TrainingJob:
        balanced = self.config.training.class_weights
        labels = [y for y in train_set.labels if y is not None]
        return TrainingJob(
            settings=self.config.training,
            model=self.model,
            optimiser=self.optimiser,
            train_set=train_set,
            val_set=val_set,
            device=device,
            save=self._save,
            keep=self._keep,
            weights=class_weights(labels, self.shape["n_classes"]) if balanced else {},
            progress=self.progress,
            stop=self.stop,
        )

    def _resumed(self) -> State:
        state, saved = load_checkpoint(self.folder.last, self.model, self.optimiser, self.identity)
        self.progress.said(f"{self.folder.path}: goes on at epoch {state.epoch + 1}, batch {state.step + 1}")
        if saved["versions"] != self.identity["versions"]:
            self.progress.said(f"begun with {saved['versions']}, now {self.identity['versions']}: bits may differ")
        return state

    def _save(self, state: State) -> None:
        save_checkpoint(self.folder.last, self.model, self.optimiser, state, self.identity)
        if state.step == 0:
            self._close_epoch(state)

    def _close_epoch(self, state: State) -> None:
        self.folder.write_metrics(state.history)
        now = time.monotonic()
        self.folder.add_timing(state.epoch, now - self.since)
        self.since = now
        if self.board is not None:
            self.board.add(state.history[-1])

    def _keep(self, name: str, chosen: dict[str, Any]) -> dict[str, Any]:
        facts = {"model": self.shape, "features": self.features, "selected_by": name, **chosen, **self.identity}
        return {**chosen, "weights": save_weights(self.folder.weights(name), lasting_state(self.model), facts)}

    def _write_facts(self, state: State, status: str) -> None:
        facts = {
            **outcome(state, status),
            "model": self.shape,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "features": self.features,
            "manifest": {"path": self.config.data.manifest, "digest": self.manifest.digest()},
            "bags": {part: len(ids) for part, ids in self.split.to_dict().items()},
            **self.identity,
        }
        self.folder.write_facts(facts)

    def _tell_interrupted(self, state: State) -> None:
        where = f"epoch {state.epoch + 1}, batch {state.step + 1}"
        message = f"stopped before {where}; everything is saved, the same command goes on from there"
        raise Interrupted(f"{self.folder.path}: {message}", self.stop.signal or 0)


def check_settings(config: TrainConfig) -> None:
    """Everything that can be wrong before a bag is read: the model and its options, the table and the split."""
    create_model(config.model.name, 1, config.model.n_classes or 1, **config.model.options)
    manifest = Manifest.read(config.data.manifest)
    manifest.check_table()
    choose_split(manifest, config.data)


def choose_split(manifest: Manifest, data: DataConfig) -> Split:
    """The split of fold `data.fold`, from a file of splits if there is one."""
    if data.splits is not None:
        splits = load_splits(data.splits)
    else:
        shares = {"val_share": data.val_share, "test_share": data.test_share}
        splits = make_splits(manifest, folds=data.folds, seed=data.split_seed, **shares)
    if data.fold >= len(splits):
        raise ConfigError(f"data.fold: {data.fold} was asked for, but there are only folds 0 to {len(splits) - 1}")
    refuse_leaks(manifest, splits[data.fold])
    return splits[data.fold]


def split_digest(manifest: Manifest, split: Split) -> str:
    """Fingerprint of who trains and validates with which label; labels of the test set play no part."""
    used = [(part, id_, manifest.labels[id_]) for part in ("train", "val") for id_ in getattr(split, part)]
    return digest(repr(used), repr(split.test))


def model_shape(model: ModelConfig, train_set: BagDataset, labels: list[int | None]) -> dict[str, Any]:
    """Name, options, input width and number of classes: all that is needed to build the model again."""
    missing = [id_ for id_, y in zip(train_set.ids, labels, strict=False) if y is None]
    if missing:
        raise DataError(f"bag {missing[0]!r} has no label; training needs one for every bag")
    classes = max(y for y in labels if y is not None) + 1
    n_classes = model.n_classes or (1 if classes <= 2 else classes)
    if max(n_classes, 2) < classes:
        raise ConfigError(f"model.n_classes: {n_classes} does not fit labels up to {classes - 1}; leave it out")
    return {
        "name": model.name,
        "options": dict(model.options),
        "in_dim": train_set[0].x.shape[1],
        "n_classes": n_classes,
    }


def fresh_model(shape: dict[str, Any], seed: int) -> nn.Module:
    """The untrained model that belongs to a seed."""
    seed_step(seed, -1, 0)
    return create_model(shape["name"], shape["in_dim"], shape["n_classes"], **shape["options"])
