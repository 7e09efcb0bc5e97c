"""Runs as a SLURM array, through submitit."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smmil.errors import ConfigError, MissingExtra
from smmil.executors import Outcome
from smmil.executors.outcome import attempt

_PAUSE_S = 0.2


def run_on_slurm(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    on_done: Callable[[Outcome[Any, Any]], Any],
    *,
    folder: Path,
    workers: int | None = None,
    parameters: dict[str, Any] | None = None,
) -> list[Outcome[Any, Any]]:
    """`function(task)` for every task, each a job of one SLURM array; outcomes in the order of the tasks.

    folder      for the logs and messages of submitit, on a disk that all nodes see
    workers     how many jobs of the array may run at once
    parameters  of `submitit.AutoExecutor.update_parameters` (timeout_min, slurm_partition, mem_gb, …); the key
                `cluster` chooses: slurm where there is one, else local processes; "local" asks for these
    """
    if not tasks:
        return []
    jobs = _submitted(function, tasks, folder, workers, dict(parameters or {}))
    try:
        return _awaited(jobs, tasks, on_done)
    finally:
        for job in jobs:
            if not job.done():
                job.cancel(check=False)


def _submitted(
    function: Callable[[Any], Any], tasks: Sequence[Any], folder: Path, workers: int | None, parameters: dict[str, Any]
) -> list[Any]:
    try:
        import submitit
    except ModuleNotFoundError:
        raise MissingExtra("submitit", "slurm", "running on SLURM") from None
    executor = submitit.AutoExecutor(folder=folder, cluster=parameters.pop("cluster", None))
    if workers is not None:
        parameters["slurm_array_parallelism"] = workers
    try:
        executor.update_parameters(**{"timeout_min": 24 * 60, "cpus_per_task": 1, **parameters})
    except (NameError, ValueError, TypeError) as problem:
        raise ConfigError(f"--slurm: {problem}; see submitit's update_parameters") from None
    return executor.map_array(attempt, [function] * len(tasks), range(len(tasks)), tasks)


def _awaited(jobs: list[Any], tasks: Sequence[Any], on_done: Callable[[Outcome[Any, Any]], Any]) -> list[Any]:
    """The outcomes, each told when its job ends."""
    waiting, outcomes = dict(enumerate(jobs)), {}
    while waiting:
        for index in [i for i, job in waiting.items() if job.done()]:
            outcomes[index] = _outcome(waiting.pop(index), index, tasks[index])
            on_done(outcomes[index])
        time.sleep(_PAUSE_S if waiting else 0)
    return [outcomes[index] for index in sorted(outcomes)]


def _outcome(job: Any, index: int, task: Any) -> Outcome[Any, Any]:
    """What the job gave; a job that was killed or ran out of time is an outcome with an error."""
    problem = job.exception()
    if problem is None:
        return job.result()
    words = " ".join(str(problem).split())[:300]
    return Outcome(index, task, error=f"SLURM job {job.job_id} did not end well ({words}); see its log, then repeat")
