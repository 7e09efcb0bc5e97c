"""Tasks on a Dask cluster, given by its address or started here for the purpose."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from smmil.errors import ConfigError, MissingExtra
from smmil.executors.processes import Outcome, attempt, lost

_TRIES = 3
_CONNECT_S = 10


def run_on_dask(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    workers: int | None,
    on_done: Callable[[Outcome[Any, Any]], Any],
    *,
    address: str | None = None,
) -> list[Outcome[Any, Any]]:
    """See `run_tasks`. Paths in the tasks must mean the same files on every machine of the cluster."""
    with _client(address, workers) as client:
        outcomes, alone = _together(client, function, list(enumerate(tasks)), on_done)
        for job in alone:  # one at a time: their workers may have died because of somebody else's task
            more, hopeless = _together(client, function, [job], on_done)
            outcomes += more
            for index, task in hopeless:
                outcomes.append(lost(index, task, 2 * _TRIES))
                on_done(outcomes[-1])
        return outcomes


def _together(
    client: Any,
    function: Callable[[Any], Any],
    jobs: Sequence[tuple[int, Any]],
    on_done: Callable[[Outcome[Any, Any]], Any],
) -> tuple[list[Outcome[Any, Any]], list[tuple[int, Any]]]:
    """The outcomes of the jobs, and the jobs whose workers died again and again."""
    from distributed import KilledWorker, as_completed

    # Each task has its own key: two equal tasks are two tasks, and nothing is remembered from an earlier call.
    waiting = {client.submit(attempt, function, *job, pure=False): job for job in jobs}
    outcomes, killed = [], []
    for future in as_completed(list(waiting)):
        job = waiting.pop(future)
        try:
            outcomes.append(future.result())
        except KilledWorker:
            killed.append(job)
            continue
        on_done(outcomes[-1])
    return outcomes, killed


@contextmanager
def _client(address: str | None, workers: int | None) -> Iterator[Any]:
    try:
        import dask
        from distributed import Client
    except ModuleNotFoundError:
        raise MissingExtra("dask", "dask", "running on a cluster") from None
    with dask.config.set({"distributed.scheduler.allowed-failures": _TRIES - 1}):
        if address is None:
            with _local_cluster(workers) as cluster, Client(cluster) as client:
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


def _local_cluster(workers: int | None) -> Any:
    """Single-threaded worker processes that talk over the loopback interface, without a dashboard."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
        silence_logs=40,
    )
