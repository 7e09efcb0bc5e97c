"""One run of a study: train, predict validation and test, measure; finished work is never repeated."""

import errno
import json
import math
import multiprocessing
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smmil.config import TrainConfig
from smmil.errors import DataError, SmmilError
from smmil.evaluate import froc, summary
from smmil.evaluate.folders import without_nan
from smmil.evaluate.instances import POOLS
from smmil.evaluate.metrics import metrics_of
from smmil.files import digest, read_json, remove_leftovers, write_json, write_text
from smmil.predict import predict_run
from smmil.prediction import Prediction, load_predictions
from smmil.train import Interrupted, train


@contextmanager
def alone(path: Path, wait: bool) -> Iterator[bool]:
    """True inside the block if no other process holds the lock; the system frees it when its holder dies."""
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


def measured_row(validation: Sequence[Prediction], test: Sequence[Prediction]) -> dict[str, Any]:
    """Bag metrics at 0.5, instance metrics at the threshold that is best on validation, energies and FROC of the test.

    Names are those of METRIC_NAMES; inst_auroc@positive_bags is the same metric in another pool. Numbers that do not
    exist are nan.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums of several threads differ in the last digits
        found = summary(test, validation=validation)
        lesions = froc(test)
    row: dict[str, Any] = {
        "n_test": found["bag"]["n"],
        "n_test_positive": found["bag"]["n_positive"],
        "n_instances": found["instance"]["all"]["n_instances"],
        "score_kind": found["instance"]["all"]["score_kind"],
        "threshold": _number(found["threshold"]["value"]),
        "threshold_source": found["threshold"]["source"],
    }
    row |= {m.name: _number(found["bag"][m.key]) for m in metrics_of("bag")}
    for pool in POOLS:
        suffix = "" if pool == "all" else f"@{pool}"
        inside = found["instance"][pool]
        row |= {f"{m.name}{suffix}": _number(inside.get(m.key)) for m in metrics_of("instance")}
    row |= {m.name: _number(found["energy"][m.key]) for m in metrics_of("energy")}
    return row | {m.name: _number(lesions[m.key]) for m in metrics_of("lesion")}


def learned_alpha(history: Sequence[dict[str, Any]], epoch: int) -> float:
    """Mean of the smoothing strengths a model had learned in the selected epoch; nan when it learns none."""
    chosen = next((row for row in history if row.get("epoch") == epoch), {})
    found = [float(value) for name, value in chosen.items() if name.startswith("alpha/")]
    return math.fsum(found) / len(found) if found else float("nan")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


FORMAT = 1  # of result.json; a new one has metrics computed again, without training
PARTS = ("val", "test")
BUSY, DONE, ALREADY, FULL = "busy", "done", "already", "full"
# What a model, a library or the file system may do to one run; the study goes on and the traceback is kept.
_MISHAPS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, OSError, ImportError)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # would fail every other run too


@dataclass(frozen=True)
class RunJob:
    """What a worker needs to know about a run: where it lies, how it is trained, and whether to wait for another."""

    folder: str
    label: str
    config: TrainConfig
    wait: bool = False


def perform(job: RunJob) -> str:
    """Bring one run to its end and say `done`, or `already` when another process did so meanwhile.

    `busy` when another process has it in hand and this one may not wait; `full` when there is no room on the disk.
    Killed at any moment and repeated, it goes on from the last checkpoint and ends with the same bytes.
    """
    folder = Path(job.folder)
    try:
        return _perform(job, folder)
    except OSError as problem:
        if problem.errno in _NO_ROOM:
            return FULL
        raise DataError(f"{_words(problem)}; its folder cannot be used; mend {folder} and repeat") from problem


def _perform(job: RunJob, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "lock", job.wait) as mine:
        if not mine:
            return BUSY
        remove_leftovers(folder)
        if finished(folder) is not None:
            return ALREADY
        _to_the_end(job, folder)
    return DONE


def _to_the_end(job: RunJob, folder: Path) -> None:
    """Train and measure; what goes wrong is kept in the folder of the run with its reason."""
    try:
        _mended(job, folder)
    except Interrupted as stopped:
        if multiprocessing.parent_process() is None:
            raise
        sys.exit(128 + stopped.signal)  # a worker that was asked to go has saved its state; nobody waits for words
    except SmmilError as problem:
        write_json(folder / "failure.json", {"label": job.label, "reason": str(problem)})
        raise
    except _MISHAPS as problem:
        if isinstance(problem, OSError) and problem.errno in _NO_ROOM:
            raise
        write_text(folder / "traceback.txt", traceback.format_exc())
        reason = f"{_words(problem)}; see {folder / 'traceback.txt'}"
        write_json(folder / "failure.json", {"label": job.label, "reason": reason})
        raise DataError(reason) from problem


def _words(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())}"


def _mended(job: RunJob, folder: Path) -> None:
    """Train and measure; what was trained before and turns out damaged is set aside and trained anew, once."""
    begun = (folder / "train").exists()
    try:
        _train_and_measure(job, folder)
    except SmmilError as problem:
        if not begun or not str(problem).startswith(str(folder / "train")):  # errors begin with the file at fault
            raise
        shutil.rmtree(folder / "train.damaged", ignore_errors=True)
        (folder / "train").replace(folder / "train.damaged")
        _train_and_measure(job, folder)


def _train_and_measure(job: RunJob, folder: Path) -> None:
    trained = train(job.config, folder / "train")
    manifest, device = job.config.data.manifest, job.config.training.device  # the data may have moved since it began
    for part in PARTS:
        done = predict_run(folder / "train", out=folder / part, manifest=manifest, part=part, device=device)
        if done.failed:
            id_, reason = next(iter(done.failed.items()))
            raise DataError(f"{len(done.failed)} {part} bags cannot be predicted, such as {id_}: {reason}")
    facts = read_json(folder / "train" / "run.json")
    row = {
        "epoch": trained.best["epoch"],
        "weights": trained.best["weights"],
        "parameters": facts["parameters"],
        "source": facts["versions"].get("source", ""),
        "val_auroc": trained.best["auroc"],
        "val_loss": trained.best["loss"],
        "alpha": learned_alpha(trained.history, trained.best["epoch"]),
        **measured_row(*(load_predictions(folder / part) for part in PARTS)),
    }
    _write_result(folder, row)


def _write_result(folder: Path, row: dict[str, Any]) -> None:
    """result.json: the row, the digest of every prediction it rests on, and a seal over both."""
    files = {f"{part}/{p.name}": _bytes_digest(p) for part in PARTS for p in sorted((folder / part).glob("*.npz"))}
    content = {"format": FORMAT, "row": without_nan(row), "files": files}
    write_json(folder / "result.json", {**content, "seal": _seal(content)})
    for name in ("failure.json", "traceback.txt"):
        (folder / name).unlink(missing_ok=True)


def finished(folder: Path, *, thorough: bool = True) -> dict[str, Any] | None:
    """The row of a run that is done, else None; thorough: the predictions it rests on are read back as well."""
    try:
        content = read_json(folder / "result.json")
        seal = content.pop("seal")
        if content["format"] != FORMAT or seal != _seal(content):
            return None
        same = all(_is_there(folder / name, mark, thorough) for name, mark in content["files"].items())
    except (OSError, DataError, KeyError, TypeError, AttributeError):
        return None  # absent, unreadable or damaged: the run is brought to its end again from what is sound
    return {key: math.nan if value is None else value for key, value in content["row"].items()} if same else None


def _is_there(path: Path, mark: str, thorough: bool) -> bool:
    return path.is_file() and (not thorough or _bytes_digest(path) == mark)


def _bytes_digest(path: Path) -> str:
    return digest(path.read_bytes())


def _seal(content: dict[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True))


def is_busy(folder: Path) -> bool:
    """Whether a living process has this run in hand."""
    if not (folder / "lock").exists():
        return False
    with alone(folder / "lock", wait=False) as mine:
        return not mine
