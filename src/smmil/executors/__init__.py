"""Tasks in processes of this machine: a killed worker is replaced and its task retried."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from smmil.errors import ConfigError, SmmilError, check_choice

__all__ = ["EXECUTORS", "Outcome", "Task", "Value", "run_tasks", "worker_place"]

EXECUTORS = ("serial", "processes", "dask")
Task = TypeVar("Task")
Value = TypeVar("Value")
# Tries in parallel; one more follows in a single worker, in case all together needed too much memory.
_TRIES = 2
_GRACE_S = 5.0
_TERMINATED = 128 + signal.SIGTERM  # exit code of a shell: the worker ended on request
Job = tuple[int, Any]
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome(Generic[Task, Value]):
    """Result of one task: a value, or an error in one line."""

    index: int
    task: Task
    value: Value | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def _attempt(function: Callable[[Task], Value], index: int, task: Task) -> Outcome[Task, Value]:
    """Run one task. Errors of the user and a lack of memory become a text; any other exception is a bug and is raised.

    Errors travel as text, since not every exception survives the way between processes.
    """
    try:
        return Outcome(index, task, value=function(task))
    except SmmilError as problem:
        return Outcome(index, task, error=str(problem))
    except MemoryError as problem:
        return Outcome(index, task, error=f"out of memory ({problem or 'no details'}); use fewer workers")


def _worker_lost(index: int, task: Task, times: int) -> Outcome[Task, Value]:
    """Outcome of a task whose worker was killed every time."""
    error = f"the worker was killed {times} times (out of memory?); give it more memory and repeat"
    return Outcome(index, task, error=error)


OnDone = Callable[[Outcome[Any, Any]], Any]


class _Worker:
    """A spawned process, the pipe to it, its current job, and its place among the workers, which a successor takes."""

    def __init__(self, function: Function, place: int):
        # Not forked: locks held by threads of this process would stay locked for ever in the copy.
        fresh = multiprocessing.get_context("spawn")
        self.pipe, other = fresh.Pipe()
        self.process = fresh.Process(target=_worker_main, args=(other, function, place), daemon=True)
        self.process.start()
        other.close()
        self.job: Job | None = None
        self.place = place

    def give(self, job: Job) -> None:
        self.job = job
        # A worker killed at this moment is noticed when its result is received.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send(job)

    def receive(self) -> Outcome[Any, Any] | None:
        """Receive the outcome of the job; None when the worker was killed or terminated; other exit codes are bugs."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
        code = self.process.exitcode or 0  # negative: the number of the signal that killed it
        if code > 0 and code != _TERMINATED:
            raise RuntimeError(f"task {self.job}: a worker stopped with exit code {code}; its own message is above")
        return None

    def end(self) -> None:
        """Terminate the process, so that it removes its temporary files; kill it after a grace period."""
        self.process.terminate()
        self.process.join(_GRACE_S)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _run_in_processes(
    function: Function, tasks: Sequence[Any], workers: int | None, on_done: OnDone
) -> list[Outcome[Any, Any]]:
    """See `run_tasks`. Tasks whose worker was killed twice are repeated at the end in a single worker."""
    # One worker per core unless asked otherwise.
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    outcomes, remaining = _round(function, deque(enumerate(tasks)), workers, _TRIES, on_done)
    more, hopeless = _round(function, deque(remaining), 1, 1, on_done)
    given_up: list[Outcome[Any, Any]] = [_worker_lost(index, task, _TRIES + 1) for index, task in hopeless]
    for outcome in given_up:
        on_done(outcome)
    return outcomes + more + given_up


def _round(
    function: Function, todo: deque[Job], workers: int, tries: int, on_done: OnDone
) -> tuple[list[Outcome[Any, Any]], list[Job]]:
    """All jobs, each in up to `tries` workers: the outcomes, and the jobs whose workers were all killed."""
    outcomes: list[Outcome[Any, Any]] = []
    lost_jobs: list[Job] = []
    deaths = dict.fromkeys((index for index, _ in todo), 0)
    pool: list[_Worker] = []
    try:
        while todo or any(worker.job for worker in pool):
            for worker in pool:
                if worker.job is None and todo:
                    worker.give(todo.popleft())
            while todo and len(pool) < workers:
                taken = {worker.place for worker in pool}
                pool.append(_Worker(function, next(n for n in range(workers) if n not in taken)))
                pool[-1].give(todo.popleft())
            # A worker has a result or is dead: a pipe with a closed end is ready too.
            busy: dict[Any, _Worker] = {worker.pipe: worker for worker in pool if worker.job is not None}
            for worker in [busy[pipe] for pipe in wait(list(busy))]:
                job, outcome = worker.job, worker.receive()
                assert job is not None
                if outcome is not None:
                    worker.job = None
                    outcomes.append(outcome)
                    on_done(outcome)
                    continue
                pool.remove(worker)
                worker.end()
                deaths[job[0]] += 1
                (todo if deaths[job[0]] < tries else lost_jobs).append(job)
    finally:
        for worker in pool:
            worker.end()
    return outcomes, lost_jobs


_place: int | None = None


def worker_place() -> int | None:
    """Place of this worker process among those of the executor `processes`, from 0; None in other processes."""
    return _place


def _worker_main(pipe: Connection, function: Function, place: int) -> None:
    """Main function of a worker process: run jobs until the pipe closes."""
    global _place
    _place = place
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides
    signal.signal(signal.SIGTERM, _exit_on_terminate)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            index, task = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(function, index, task))


def _exit_on_terminate(*_: Any) -> None:
    """Unwind, so that temporary files are removed; errors on the way out are not printed."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (the process ends here)
    sys.exit(_TERMINATED)


def _end_with_parent() -> None:
    """End this worker as soon as the main process is dead."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_tasks(
    function: Callable[[Task], Value],
    tasks: Iterable[Task],
    executor: str = "serial",
    workers: int | None = None,
    on_done: Callable[[Outcome[Task, Value]], Any] | None = None,
    *,
    address: str | None = None,
) -> list[Outcome[Task, Value]]:
    """`function(task)` for every task; the outcomes in the order of the tasks, whatever order they ended in.

    serial     here, one after another
    processes  in `workers` fresh processes of this machine (default: one per core)
    dask       on the Dask cluster at `address` (tcp://host:8786), or on a local one with `workers` processes

    A task that raises a SmmilError is an outcome with `error` and does not stop the others; any other exception is
    raised here. A task whose worker is killed is tried again, the last time without other tasks; so tasks must be
    repeatable and write their files atomically. Function, tasks and values travel between processes: the function is
    one of a module, tasks and values are plain data. `on_done` is called here after each task. On Ctrl-C all workers
    end and KeyboardInterrupt goes on.
    """
    check_choice(executor, EXECUTORS, "executor")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: must be at least 1, got {workers}")
    if address is not None and executor != "dask":
        raise ConfigError(f"a Dask address was given with the executor {executor!r}; choose the executor dask")
    listed, callback = list(tasks), on_done or (lambda _outcome: None)
    outcomes: list[Outcome[Task, Value]] = []
    if listed and executor == "dask":
        from smmil.executors.cluster import _run_on_dask

        outcomes = _run_on_dask(function, listed, workers, callback, address=address)
    elif listed and executor == "processes":
        outcomes = _run_in_processes(function, listed, workers, callback)
    else:
        for index, task in enumerate(listed):
            outcomes.append(_attempt(function, index, task))
            callback(outcomes[-1])
    return sorted(outcomes, key=lambda outcome: outcome.index)
