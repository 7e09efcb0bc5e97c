"""Independent tasks run one after another, in several processes, or on a Dask cluster: always the same results."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from smmil.errors import ConfigError, check_choice
from smmil.executors.processes import Outcome, Task, Value, attempt

__all__ = ["EXECUTORS", "Outcome", "Task", "Value", "run_tasks"]

EXECUTORS = ("serial", "processes", "dask")
OnDone = Callable[[Outcome[Task, Value]], Any]


def run_tasks(
    function: Callable[[Task], Value],
    tasks: Iterable[Task],
    executor: str = "serial",
    workers: int | None = None,
    on_done: OnDone[Task, Value] | None = None,
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
    listed, callback = list(tasks), on_done or _ignore
    if not listed:
        return []
    outcomes = _runner(executor, address)(function, listed, workers, callback)
    return sorted(outcomes, key=lambda outcome: outcome.index)


def _runner(executor: str, address: str | None) -> Callable[..., list[Outcome[Any, Any]]]:
    """The function that runs tasks on an executor, imported on demand."""
    if executor == "serial":
        return _serial
    if executor == "processes":
        from smmil.executors.processes import run_in_processes

        return run_in_processes
    from functools import partial

    from smmil.executors.cluster import run_on_dask

    return partial(run_on_dask, address=address)


def _serial(
    function: Callable[[Task], Value], tasks: Sequence[Task], _workers: int | None, on_done: OnDone[Task, Value]
) -> list[Outcome[Task, Value]]:
    outcomes = []
    for index, task in enumerate(tasks):
        outcomes.append(attempt(function, index, task))
        on_done(outcomes[-1])
    return outcomes


def _ignore(_outcome: Outcome[Any, Any]) -> None:
    """Default of `on_done`."""
