"""Files read one after another in a process with limits of time and memory; what came of each is counted.

error      an error of smmil that names the file       same     the content is that of the undamaged file
unnoticed  other content came back without a word      traceback, hang, crash, memory   failures
"""

import json
import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smmil.errors import SmmilError

FAILURES = ("traceback", "hang", "crash", "memory")
SECONDS = 10
MEMORY = 2 << 30


@dataclass(frozen=True)
class Outcome:
    """What became of one file; `detail` is the message, or where the exception was raised."""

    kind: str
    detail: str = ""


def outcomes(
    read: Callable[[Path], Any], files: Sequence[Path], truth: Any, *, seconds: float = SECONDS, memory: int = MEMORY
) -> list[Outcome]:
    """What `read` makes of each file; `truth` is what it returns for the undamaged one.

    A file on which the process dies or exceeds its time is counted, and a new process goes on behind it.
    """
    found: list[Outcome] = []
    while len(found) < len(files):
        found += _until_it_ends(read, files[len(found) :], truth, seconds, memory)
    return found


def _until_it_ends(
    read: Callable[[Path], Any], files: Sequence[Path], truth: Any, seconds: float, memory: int
) -> list[Outcome]:
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        here.close()
        _work(read, files, truth, memory, there)
    there.close()
    found: list[Outcome] = []
    ended = None
    try:
        while len(found) < len(files):
            if not here.poll(seconds):
                ended = Outcome("hang", f"more than {seconds:g} s")
                break
            found.append(Outcome(**json.loads(here.recv_bytes())))
    except EOFError:
        ended = Outcome("crash")
    if ended is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended is not None and ended.kind == "crash":
        ended = Outcome("crash", f"exit status {os.waitstatus_to_exitcode(status)}")
    here.close()
    return found if ended is None else [*found, ended]


def _work(read: Callable[[Path], Any], files: Sequence[Path], truth: Any, memory: int, answer: Any) -> None:
    """The child: reads, answers, and leaves without the parent's exit handlers."""
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1), os.dup2(quiet, 2)
    try:
        for path in files:
            kind, detail = _attempt(read, path, truth)
            answer.send_bytes(json.dumps({"kind": kind, "detail": detail[:500]}).encode())
    finally:
        os._exit(0)


def _attempt(read: Callable[[Path], Any], path: Path, truth: Any) -> tuple[str, str]:
    try:
        content = read(path)
    except SmmilError as problem:
        message = str(problem)
        if path.name not in message:
            return "traceback", f"the error does not name the file: {message}"
        return ("traceback", f"more than one line: {message}") if "\n" in message else ("error", message)
    except MemoryError:
        return "memory", _where()
    except BaseException as problem:  # noqa: BLE001 (everything else is what is looked for)
        return "traceback", f"{type(problem).__name__}: {problem} | {_where()}"
    return ("same" if content == truth else "unnoticed"), ""


def _where() -> str:
    """The last line of our own that the present exception passed."""
    lines = [line.strip().splitlines()[0] for line in traceback.format_exc().split("  File ")[1:]]
    ours = [line for line in lines if "smmil" in line]
    return (ours or lines or [""])[-1]
