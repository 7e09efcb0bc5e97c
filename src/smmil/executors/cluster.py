"""Tasks on a cluster: Dask (a given scheduler or a local one started here) and SLURM arrays through submitit."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smmil.errors import ConfigError, MissingExtra
from smmil.executors import Function, Job, OnDone, Outcome, _attempt, _worker_lost

_TRIES = 3
_CONNECT_S = 10
_PAUSE_S = 0.2


def _run_on_dask(
    function: Function, tasks: Sequence[Any], workers: int | None, on_done: OnDone, *, address: str | None = None
) -> list[Outcome[Any, Any]]:
    """See `run_tasks`. Paths in the tasks must mean the same files on every machine of the cluster."""
    with _client(address, workers) as client:
        outcomes, killed = _run_batch(client, function, list(enumerate(tasks)), on_done)
        for job in killed:  # one at a time: another task may have caused the death of the worker
            more, hopeless = _run_batch(client, function, [job], on_done)
            outcomes += more
            for index, task in hopeless:
                outcomes.append(_worker_lost(index, task, 2 * _TRIES))
                on_done(outcomes[-1])
        return outcomes


def _run_batch(
    client: Any, function: Function, jobs: Sequence[Job], on_done: OnDone
) -> tuple[list[Outcome[Any, Any]], list[Job]]:
    """The outcomes of the jobs, and the jobs whose workers died again and again."""
    from distributed import KilledWorker, as_completed

    # Each task has its own key: equal tasks run twice, and no result of an earlier call is reused.
    waiting = {client.submit(_attempt, function, *job, pure=False): job for job in jobs}
    outcomes, dead = [], []
    for future in as_completed(list(waiting)):
        job = waiting.pop(future)
        try:
            outcomes.append(future.result())
        except KilledWorker:
            dead.append(job)
            continue
        on_done(outcomes[-1])
    return outcomes, dead


@contextmanager
def _client(address: str | None, workers: int | None) -> Iterator[Any]:
    try:
        import dask
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise MissingExtra("dask", "dask", "running on a cluster") from None
    with dask.config.set({"distributed.scheduler.allowed-failures": _TRIES - 1}):
        if address is None:
            # Single-threaded worker processes that talk over the loopback interface, without a dashboard.
            quiet = {"dashboard_address": None, "worker_dashboard_address": None, "silence_logs": 40}
            size = {"n_workers": workers, "threads_per_worker": 1, "processes": True}
            with LocalCluster(**size, **quiet, host="127.0.0.1") as cluster, Client(cluster) as client:
                yield client
            return
        try:
            client = Client(address, timeout=_CONNECT_S)
        except (OSError, ValueError) as problem:
            raise ConfigError(
                f"--dask {address}: no Dask scheduler answers there ({type(problem).__name__}); "
                "start one with `dask scheduler` and give the address it prints"
            ) from None
        with client:
            yield client


def run_on_slurm(
    function: Function,
    tasks: Sequence[Any],
    on_done: OnDone,
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
    function: Function, tasks: Sequence[Any], folder: Path, workers: int | None, parameters: dict[str, Any]
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
    return executor.map_array(_attempt, [function] * len(tasks), range(len(tasks)), tasks)


def _awaited(jobs: list[Any], tasks: Sequence[Any], on_done: OnDone) -> list[Any]:
    """Wait for all jobs, call `on_done` as each ends, and give the outcomes."""
    waiting, outcomes = dict(enumerate(jobs)), {}
    while waiting:
        for index in [i for i, job in waiting.items() if job.done()]:
            job = waiting.pop(index)
            problem = job.exception()  # killed or out of time
            words = " ".join(str(problem).split())[:300]
            error = f"SLURM job {job.job_id} did not end well ({words}); see its log, then repeat"
            outcomes[index] = Outcome(index, tasks[index], error=error) if problem else job.result()
            on_done(outcomes[index])
        time.sleep(_PAUSE_S if waiting else 0)
    return [outcomes[index] for index in sorted(outcomes)]
