"""Data set and batches of bags: the same batches for any number of workers and from any start position."""

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from smmil.bag import Bag, BagBatch
from smmil.data.sampling import PartSampler
from smmil.errors import ConfigError, DataError, SmmilError
from smmil.formats.rows import HeldRows, OpenBag

_LOG = logging.getLogger(__name__)
_BALANCED = 1  # keeps the random numbers of the balanced order apart from those of the plain one


class _ReadableBags(Protocol):
    """What a data set reads: a Manifest, or its bags by patient and with covariates (`StudyBags`)."""

    @property
    def ids(self) -> tuple[str, ...]: ...

    @property
    def labels(self) -> dict[str, int | None]: ...

    def strata(self) -> dict[str, int | None]: ...

    def path_of(self, id_: str) -> Path: ...

    def bag(self, id_: str, *, verify: bool = True, instance_labels: bool = True) -> Bag: ...

    def open_bag(self, id_: str, *, verify: bool = True, instance_labels: bool = True) -> OpenBag: ...


class _Job(NamedTuple):
    """A bag to read, for a place in the order of the epoch."""

    id: str
    place: int


class _ReadJobs(Dataset):
    """Lists of bags to read in worker processes; errors in the data are returned as values and raised by the caller."""

    def __init__(
        self,
        manifest: _ReadableBags,
        jobs: Sequence[Sequence[_Job]],
        options: dict[str, bool],
        parts: PartSampler | None,
    ):
        self.manifest, self.jobs, self.options, self.parts = manifest, jobs, options, parts

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> list[Bag] | SmmilError:
        try:
            return [self._read(job) for job in self.jobs[number]]
        except SmmilError as problem:
            return problem

    def _read(self, job: _Job) -> Bag:
        drawn = None
        if self.parts is not None:
            opened = self.manifest.open_bag(job.id, **self.options | {"verify": False})
            drawn = self.parts.drawn(opened, job.place)
        return self.manifest.bag(job.id, **self.options) if drawn is None else drawn


def _read_ahead(
    manifest: _ReadableBags,
    jobs: Sequence[Sequence[_Job]],
    workers: int,
    options: dict[str, bool],
    parts: PartSampler | None,
) -> Iterator[list[Bag]]:
    """Read the bags of each job in worker processes; after the death of a worker the rest is read in this process.

    options  keyword arguments of `Manifest.bag`
    """
    done = 0
    todo = _ReadJobs(manifest, jobs, options, parts)
    try:
        for result in _started(todo, workers) if workers and jobs else ():
            # Copied out of shared memory, which holds one file handle per tensor.
            yield tree_map_only(Tensor, Tensor.clone, _or_raise(result))
            done += 1
    except (RuntimeError, OSError, EOFError) as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        _LOG.warning("a reading worker failed (%s); the rest is read in the main process", reason)
    for number in range(done, len(jobs)):
        yield _or_raise(todo[number])


def _started(todo: _ReadJobs, workers: int) -> Iterator[Any]:
    """Start a DataLoader with its own random generator; a dying worker does not interrupt the code of the caller.

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


class BagDataset(Dataset):
    """Bags of a manifest, or of `StudyBags`, by index, read on demand and cached in memory up to `cache_bytes`.

    instance_labels  False: bags come without them and label files are not opened, as in training
    No file stays open between reads, so worker processes receive the table only.
    """

    def __init__(
        self,
        manifest: _ReadableBags,
        ids: Sequence[str] | None = None,
        *,
        cache: bool = True,
        cache_bytes: int = 4 << 30,
        verify: bool = True,
        instance_labels: bool = True,
    ):
        self.manifest = manifest
        self.ids = tuple(manifest.ids if ids is None else ids)
        self.options = {"verify": verify, "instance_labels": instance_labels}
        self._room = cache_bytes if cache else 0
        self._cache: dict[int, Bag] = {}
        self._opened: dict[int, OpenBag] = {}
        self._width: tuple[str, int] | None = None
        for id_ in self.ids:
            manifest.path_of(id_)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Bag:
        if not 0 <= index < len(self):
            raise IndexError(f"bag {index} of {len(self)}")
        if index in self._cache:
            return self._cache[index]
        return self.keep(index, self.manifest.bag(self.ids[index], **self.options))

    def part(self, index: int, place: int, parts: PartSampler) -> Bag:
        """The bag, or the part of it that is drawn for a place of an epoch, whose rows alone are then read.

        Their checksum is that of the whole file and is not compared: `Manifest.check_files` does that before a run.
        """
        if index in self._cache:
            return parts.part(self._cache[index], place)
        drawn = parts.drawn(self._open(index), place)
        if drawn is None:
            return self[index]
        self._refuse_other_width(drawn.id, drawn.x.shape[1])
        return drawn

    def ready(self, index: int, place: int, parts: PartSampler | None, fresh: Bag | None = None) -> Bag:
        """What a batch takes for a place: the bag or its part, read by a worker (`fresh`) or here."""
        if fresh is None:
            return self[index] if parts is None else self.part(index, place, parts)
        if parts is None or fresh.n < parts.most:  # a part has as many; it must not be taken for the bag later
            return self.keep(index, fresh)
        self._refuse_other_width(fresh.id, fresh.x.shape[1])
        return fresh

    def opened(self, index: int) -> OpenBag:
        """A bag with its features left in its file, unless they are in memory already."""
        bag = self._cache.get(index)
        return self._open(index) if bag is None else OpenBag.held(bag)

    def _open(self, index: int) -> OpenBag:
        """A bag without its features; cached if there is room."""
        if index in self._opened:
            return self._opened[index]
        opened = self.manifest.open_bag(self.ids[index], **self.options | {"verify": False})
        if isinstance(opened.rows, HeldRows):  # of a format that is read whole
            self.keep(index, replace(opened.bag, x=opened.rows.x))
        elif (size := _bytes(opened.bag)) <= self._room:
            self._room -= size
            self._opened[index] = opened
        return opened

    @property
    def widths(self) -> tuple[int, int | None]:
        """Features per instance of the first bag, and its number of covariates, if any; its features stay unread."""
        opened = self.opened(0)
        known = opened.bag.covariates
        return opened.rows.width, None if known is None else len(known)

    @property
    def labels(self) -> list[int | None]:
        return [self.manifest.labels[i] for i in self.ids]

    @property
    def strata(self) -> list[int | None]:
        """Kind of every bag: its class."""
        known = self.manifest.strata()
        return [known[i] for i in self.ids]

    def has(self, index: int) -> bool:
        """Whether the bag is cached."""
        return index in self._cache

    def keep(self, index: int, bag: Bag) -> Bag:
        """Check the feature width of a bag, cache the bag if there is room, and return it."""
        self._refuse_other_width(bag.id, bag.x.shape[1])
        if (size := _bytes(bag)) <= self._room and index not in self._cache:
            self._room -= size
            self._cache[index] = bag
        return bag

    def _refuse_other_width(self, id_: str, found: int) -> None:
        self._width = self._width or (id_, found)
        first, width = self._width
        if found != width:
            raise DataError(
                f"{self.manifest.path_of(id_)}: {found} features per instance, but bag {first} has "
                f"{width}; use one encoder for all"
            )


def _bytes(bag: Bag) -> int:
    """Memory that a cached bag takes."""
    tensors = [bag.x, bag.coords, bag.y_inst]
    if bag.graph is not None:
        tensors += 3 * [bag.graph.indptr, bag.graph.indices, bag.graph.weight]  # as built, normalised, as a matrix
    return sum(t.nbytes for t in tensors if t is not None)


def epoch_order(n: int, seed: int, epoch: int) -> list[int]:
    """A permutation of 0..n-1 that depends on nothing but its arguments."""
    return np.random.default_rng(np.random.SeedSequence([seed, epoch])).permutation(n).tolist()


def balanced_order(strata: Sequence[int | None], seed: int, epoch: int) -> list[int]:
    """As many bags as there are, drawn so that every class is equally likely at every place; depends on nothing else.

    Classes get equal numbers of places (which have one more is drawn); within a class every bag comes up before any of
    them comes again, so that bags of rare classes repeat and those of frequent ones take turns over the epochs.
    """
    if None in strata:
        raise ConfigError("training.sampler: balanced needs a class of every training bag; use sampler: shuffle")
    rng = np.random.default_rng(np.random.SeedSequence([seed, epoch, _BALANCED]))
    kinds = np.array(strata)
    present, n = rng.permutation(np.unique(kinds)), len(kinds)
    drawn = []
    for place, kind in enumerate(present):
        members, wanted = np.flatnonzero(kinds == kind), n // len(present) + (place < n % len(present))
        rounds = [rng.permutation(members) for _ in range(-(-wanted // len(members)))]
        drawn.append(np.concatenate([members[:0], *rounds])[:wanted])
    return rng.permutation(np.concatenate(drawn)).tolist()


def batches(
    dataset: BagDataset,
    *,
    batch_size: int,
    order: Sequence[int],
    workers: int = 0,
    start: int = 0,
    parts: PartSampler | None = None,
) -> Iterator[BagBatch]:
    """Packed batches in exactly this order; the first `start` are skipped without being read.

    Features keep the type they are stored in. With workers, bags that are not in memory are read by other processes:
    the batches are the same, and when a worker dies the rest is read here.

    parts  large bags give a part of their rows, drawn for their place in the order; None: whole bags
    """
    if batch_size < 1 or start < 0 or workers < 0:
        raise ConfigError(f"batches: batch_size={batch_size}, start={start}, workers={workers} is out of range")
    places = range(start * batch_size, len(order), batch_size)
    plan = [[(place, order[place]) for place in range(p, min(p + batch_size, len(order)))] for p in places]
    return planned_batches(dataset, plan, workers, parts)


def planned_batches(
    dataset: BagDataset, plan: list[list[tuple[int, int]]], workers: int = 0, parts: PartSampler | None = None
) -> Iterator[BagBatch]:
    """Packed batches of exactly these bags, each as its place in the order of an epoch and its index; see `batches`."""
    ahead = [[(place, i) for place, i in numbers if workers and not dataset.has(i)] for numbers in plan]
    jobs = [[_Job(dataset.ids[i], place) for place, i in numbers] for numbers in ahead if numbers]
    arriving = _read_ahead(dataset.manifest, jobs, workers, dataset.options, parts)
    for numbers, coming in zip(plan, ahead, strict=True):
        fresh = dict(zip(coming, next(arriving) if coming else (), strict=True))
        yield BagBatch.pack([dataset.ready(i, place, parts, fresh.get((place, i))) for place, i in numbers])


def whole_bags(
    dataset: BagDataset, order: Sequence[int], *, batch_size: int, workers: int = 0, most: int | None = None
) -> Iterator[BagBatch | OpenBag]:
    """Bags in this order, packed; those of more than `most` instances each by itself, with its features in its file."""
    if most is None:
        yield from batches(dataset, order=order, batch_size=batch_size, workers=workers)
        return
    for large, numbers in groupby(order, lambda index: dataset.opened(index).bag.n > most):
        if large:
            yield from map(dataset.opened, numbers)
        else:
            yield from batches(dataset, order=list(numbers), batch_size=batch_size, workers=workers)
