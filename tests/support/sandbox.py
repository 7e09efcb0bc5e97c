"""Files read one after another in a process with limits of time and memory; what came of each is counted.

error      an error of smmil that names the file       same     the content is that of the undamaged file
unnoticed  other content came back without a word      traceback, hang, crash, memory, executed   failures
"""

import faulthandler
import json
import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from smmil.errors import SmmilError

FAILURES = ("traceback", "hang", "crash", "memory", "executed")
SECONDS = 10
MEMORY = 2 << 30


@dataclass(frozen=True)
class Outcome:
    """What became of one file; `detail` is the message, or where the exception was raised."""

    kind: str
    detail: str = ""


def outcomes(
    read: Callable[[Path], Any],
    files: Sequence[Path],
    truth: Any,
    *,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    marker: Path | None = None,
    named: Sequence[str] = (),
) -> list[Outcome]:
    """What `read` makes of each file; `truth` is what it returns for the undamaged one.

    `files` may make each file when it is asked for (see `mutations.Damaged`). A file on which the process dies or
    exceeds its time is counted, and a new process goes on behind it. `marker` is a file that only code in a hostile
    file would write: when it appears, the kind is "executed". An error names the file, or one of `named`.
    """
    found: list[Outcome] = []
    task = _Task(read, files, truth, memory, marker, tuple(named))
    while len(found) < len(files):
        found += _until_it_ends(task, len(found), seconds)
    return found


class _Task(NamedTuple):
    read: Callable[[Path], Any]
    files: Sequence[Path]
    truth: Any
    memory: int
    marker: Path | None
    named: tuple[str, ...]


def _until_it_ends(task: _Task, start: int, seconds: float) -> list[Outcome]:
    """What became of the files from number `start` on, up to the first that ends the process."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        here.close()
        _work(task, start, there)
    there.close()
    found: list[Outcome] = []
    ended = None
    try:
        while start + len(found) < len(task.files):
            if not here.poll(seconds):
                ended = Outcome("hang", f"more than {seconds:g} s")
                break
            found.append(Outcome(**json.loads(here.recv_bytes())))
            if found[-1].kind == "no file":
                raise RuntimeError(f"file {start + len(found) - 1} cannot be made: {found[-1].detail}")
    except EOFError:
        ended = Outcome("crash")
    if ended is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended is not None and ended.kind == "crash":
        ended = Outcome("crash", f"exit status {os.waitstatus_to_exitcode(status)}")
    here.close()
    return found if ended is None else [*found, ended]


def _work(task: _Task, start: int, answer: Any) -> None:
    """The child: reads, answers, and leaves without the parent's exit handlers."""
    faulthandler.disable()  # a crash is counted, not shown
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + task.memory, used + task.memory))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1), os.dup2(quiet, 2)
    try:
        for number in range(start, len(task.files)):
            try:
                path = task.files[number]
            except BaseException as problem:  # noqa: BLE001 (no disk, no memory: not the reader's fault)
                answer.send_bytes(json.dumps({"kind": "no file", "detail": repr(problem)}).encode())
                break
            kind, detail = _attempt(task, path)
            if task.marker is not None and task.marker.exists():
                task.marker.unlink()
                kind = "executed"
            answer.send_bytes(json.dumps({"kind": kind, "detail": detail[:500]}).encode())
    finally:
        os._exit(0)


def _attempt(task: _Task, path: Path) -> tuple[str, str]:
    try:
        content = task.read(path)
    except SmmilError as problem:
        message = str(problem)
        if not any(name in message for name in (path.name, *task.named)):
            return "traceback", f"the error does not name the file: {message}"
        # a list of problems, one indented line each, is meant so
        loose = [line for line in message.split("\n")[1:] if not line.startswith("  ")]
        return ("traceback", f"more than one line: {message}") if loose else ("error", message)
    except MemoryError:
        return "memory", _where()
    except BaseException as problem:  # noqa: BLE001 (everything else is what is looked for)
        return "traceback", f"{type(problem).__name__}: {problem} | {_where()}"
    return ("same" if content == task.truth else "unnoticed"), ""


def _where() -> str:
    """The last line of our own that the present exception passed."""
    lines = [line.strip().splitlines()[0] for line in traceback.format_exc().split("  File ")[1:]]
    ours = [line for line in lines if "smmil" in line]
    return (ours or lines or [""])[-1]
