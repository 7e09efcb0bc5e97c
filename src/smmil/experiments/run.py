"""One run of a study: train, predict validation and test, compute metrics; finished steps are not repeated."""

import errno
import json
import math
import multiprocessing
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.config import TrainConfig
from smmil.errors import DataError, SmmilError
from smmil.evaluate.bags import shared_target
from smmil.evaluate.folders import summary, without_nan
from smmil.evaluate.instances import POOLS
from smmil.evaluate.levels import froc
from smmil.evaluate.metrics import metrics_of
from smmil.executors import worker_place
from smmil.files import digest, need_file, read_json, remove_leftovers, write_json, write_text
from smmil.predict.cases import predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.train.loop import Interrupted
from smmil.train.run import train

FORMAT = 3  # of result.json; a new one has metrics computed again, without training
PARTS = ("val", "test")
BUSY, DONE, ALREADY, FULL = "busy", "done", "already", "full"
# Errors of a model, a library or the file system that end one run only; the traceback is kept.
_RUN_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, OSError, ImportError)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # would fail every other run too


@contextmanager
def _exclusive_lock(path: Path, wait: bool) -> Iterator[bool]:
    """Hold a file lock inside the block and yield True; False if another process has it.

    The system frees the lock when its holder dies.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two processes must not be started on one study
        yield True
        return
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _measured_row(validation: Sequence[Prediction], test: Sequence[Prediction]) -> dict[str, Any]:
    """Bag metrics at 0.5, instance metrics at the threshold that is best on validation, energies and FROC of the test.

    Names are those of METRIC_NAMES; inst_auroc@positive_bags is the same metric in another pool. Numbers that do not
    exist are nan.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums of several threads differ in the last digits
        found = summary(test, validation=validation, prior=False, resamples=0)
        lesions = froc(test)
    row: dict[str, Any] = {
        "n_test": found["bag"]["n"],
        "n_test_positive": found["bag"]["n_positive"],
        "n_instances": found["instance"]["all"]["n_instances"],
        "score_kind": found["instance"]["all"]["score_kind"],
        "threshold": _number(found["threshold"]["value"]),
        "threshold_source": found["threshold"]["source"],
    }
    row |= {m.name: _number(found["bag"][m.key]) for m in metrics_of("bag", shared_target(test))}
    for pool in POOLS:
        suffix = "" if pool == "all" else f"@{pool}"
        inside = found["instance"][pool]
        row |= {f"{m.name}{suffix}": _number(inside.get(m.key)) for m in metrics_of("instance")}
    row |= {m.name: _number(found["energy"][m.key]) for m in metrics_of("energy")}
    return row | {m.name: _number(lesions[m.key]) for m in metrics_of("lesion")}


def _validation_metric(best: Mapping[str, Any]) -> dict[str, Any]:
    """The metric of the selected epoch on validation: val_auroc, or that of a target which is no class."""
    metric = next((key for key in best if key not in ("epoch", "loss", "weights")), "auroc")
    return {f"val_{metric}": best[metric]}


def _learned_alpha(history: Sequence[dict[str, Any]], epoch: int) -> float:
    """Mean of the smoothing strengths a model had learned in the selected epoch; nan when it learns none."""
    chosen = next((row for row in history if row.get("epoch") == epoch), {})
    found = [float(value) for name, value in chosen.items() if name.startswith("alpha/")]
    return math.fsum(found) / len(found) if found else float("nan")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


@dataclass(frozen=True)
class _RunJob:
    """One run as a task: its folder, label and config, and whether to wait for another process that holds its lock.

    cards  names of several CUDA cards: each worker process sees one of them
    """

    folder: str
    label: str
    config: TrainConfig
    wait: bool = False
    cards: tuple[str, ...] = ()


def _perform(job: _RunJob) -> str:
    """Train and measure one run; gives `done`, or `already` when another process has finished it.

    `busy`: another process is working on it and this job may not wait; `full`: the disk is full.
    Killed at any moment and repeated, it goes on from the last checkpoint and ends with the same bytes.
    """
    folder, place = Path(job.folder), worker_place()
    if job.cards and place is not None:  # before this process asks for cards, which it does once
        os.environ["CUDA_VISIBLE_DEVICES"] = job.cards[place % len(job.cards)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive_lock(folder / "lock", job.wait) as acquired:
            if not acquired:
                return BUSY
            remove_leftovers(folder)
            if _finished(folder) is not None:
                return ALREADY
            _run_recording_failure(job, folder)
        return DONE
    except OSError as problem:
        if problem.errno in _DISK_FULL:
            return FULL
        raise DataError(f"{_one_line(problem)}; its folder cannot be used; repair {folder} and repeat") from problem


def _run_recording_failure(job: _RunJob, folder: Path) -> None:
    """Train and measure; the reason of a failure is written to the folder of the run."""
    try:
        _retrain_if_damaged(job, folder)
    except Interrupted as stopped:
        if multiprocessing.parent_process() is None:
            raise
        sys.exit(128 + stopped.signal)  # an interrupted worker has saved its state; no message is needed
    except SmmilError as problem:
        write_json(folder / "failure.json", {"label": job.label, "reason": str(problem)})
        raise
    except _RUN_ERRORS as problem:
        if isinstance(problem, OSError) and problem.errno in _DISK_FULL:
            raise
        write_text(folder / "traceback.txt", traceback.format_exc())
        reason = f"{_one_line(problem)}; see {folder / 'traceback.txt'}"
        write_json(folder / "failure.json", {"label": job.label, "reason": reason})
        raise DataError(reason) from problem


def _one_line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"


def _retrain_if_damaged(job: _RunJob, folder: Path) -> None:
    """Train and measure; a damaged earlier training is moved to train.damaged and repeated once."""
    begun = (folder / "train").exists()
    try:
        _train_and_measure(job, folder)
    except SmmilError as problem:
        if not begun or not str(problem).startswith(str(folder / "train")):  # errors begin with the file at fault
            raise
        shutil.rmtree(folder / "train.damaged", ignore_errors=True)
        (folder / "train").replace(folder / "train.damaged")
        _train_and_measure(job, folder)


def _train_and_measure(job: _RunJob, folder: Path) -> None:
    """Train, predict and measure one run, and write its result."""
    trained = train(job.config, folder / "train")
    # The data may have moved since it began; the model is one that the study may use.
    options: dict[str, Any] = {"manifest": job.config.data.manifest, "device": job.config.training.device}
    for part in PARTS:
        done = predict_run(folder / "train", out=folder / part, part=part, trust_code=job.config.model.name, **options)
        if done.failed:
            id_, reason = next(iter(done.failed.items()))
            raise DataError(f"{len(done.failed)} {part} bags cannot be predicted, such as {id_}: {reason}")
    facts = read_json(folder / "train" / "run.json", dict)
    row = {
        "epoch": trained.best["epoch"],
        "weights": trained.best["weights"],
        "parameters": facts.get("parameters"),
        "source": (facts.get("versions") or {}).get("source", ""),
        **_validation_metric(trained.best),
        "val_loss": trained.best["loss"],
        "alpha": _learned_alpha(trained.history, trained.best["epoch"]),
        **_measured_row(*(load_predictions(folder / part) for part in PARTS)),
    }
    # result.json: the row, the digest of every prediction behind it, and a checksum over both
    paths = [path for part in PARTS for path in sorted((folder / part).glob("*.npz"))]
    files = {f"{path.parent.name}/{path.name}": digest(need_file(path).read_bytes()) for path in paths}
    content = {"format": FORMAT, "row": without_nan(row), "files": files}
    write_json(folder / "result.json", {**content, "seal": _content_checksum(content)})
    for name in ("failure.json", "traceback.txt"):
        (folder / name).unlink(missing_ok=True)


def _finished(folder: Path, *, thorough: bool = True) -> dict[str, Any] | None:
    """Result row of a finished run, else None; `thorough` also compares the digest of every prediction."""
    try:
        content = read_json(folder / "result.json")
        seal = content.pop("seal")
        if content["format"] != FORMAT or seal != _content_checksum(content):
            return None
        for name, mark in content["files"].items():
            path = folder / name
            if not path.is_file() or (thorough and digest(path.read_bytes()) != mark):
                return None
        return {key: math.nan if value is None else value for key, value in content["row"].items()}
    except (OSError, DataError, KeyError, TypeError, AttributeError):
        return None  # absent, unreadable or damaged: the run is brought to its end again from what is sound


def _content_checksum(content: dict[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True))


def _is_busy(folder: Path) -> bool:
    """Whether a running process holds the lock of this run."""
    if not (folder / "lock").exists():
        return False
    with _exclusive_lock(folder / "lock", wait=False) as acquired:
        return not acquired
