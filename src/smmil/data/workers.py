"""Reading bags in other processes, without their troubles reaching the caller."""

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from smmil.bag import Bag
from smmil.data.manifest import Manifest
from smmil.errors import SmmilError

_LOG = logging.getLogger(__name__)


class _Jobs(Dataset):
    """Lists of bags to read; a mistake in the data is handed over as a value, so that it arrives as it was raised."""

    def __init__(self, manifest: Manifest, jobs: Sequence[Sequence[str]], verify: bool):
        self.manifest, self.jobs, self.verify = manifest, jobs, verify

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> list[Bag] | SmmilError:
        try:
            return [self.manifest.bag(id_, verify=self.verify) for id_ in self.jobs[number]]
        except SmmilError as problem:
            return problem


def read_ahead(
    manifest: Manifest, jobs: Sequence[Sequence[str]], workers: int, verify: bool = True
) -> Iterator[list[Bag]]:
    """The bags of each job in turn, read ahead by worker processes; when one of them dies, the rest is read here."""
    done = 0
    todo = _Jobs(manifest, jobs, verify)
    try:
        for result in _started(todo, workers) if workers and jobs else ():
            yield [_own(bag) for bag in _or_raise(result)]
            done += 1
    except (RuntimeError, OSError, EOFError) as problem:
        _LOG.warning("a reading worker failed (%s); the rest is read in the main process", _first_line(problem))
    for number in range(done, len(jobs)):
        yield _or_raise(todo[number])


def _started(todo: _Jobs, workers: int) -> Iterator[Any]:
    """A running loader. It draws from a generator of its own, and a dying worker does not interrupt the caller's code.

    (torch would raise from a signal handler in whatever the main thread does at that moment; without it the death is
    noticed at the next read, within seconds.)
    """
    loader = DataLoader(
        todo,
        batch_size=None,
        num_workers=min(workers, len(todo)),
        collate_fn=_as_is,
        worker_init_fn=_one_thread,
        generator=torch.Generator(),
    )
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def _as_is(item: Any) -> Any:
    return item


def _one_thread(_: int) -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def _or_raise(result: list[Bag] | SmmilError) -> list[Bag]:
    if isinstance(result, SmmilError):
        raise result
    return result


def _own(bag: Bag) -> Bag:
    """The bag in this process's memory: shared memory holds a file handle per tensor, of which there are few."""
    graph = bag.graph
    if graph is not None:
        parts = {name: getattr(graph, name).clone() for name in ("indptr", "indices", "weight")}
        graph = replace(graph, **parts)
    return replace(bag, x=bag.x.clone(), coords=_copy(bag.coords), y_inst=_copy(bag.y_inst), graph=graph)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


def _first_line(problem: BaseException) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
