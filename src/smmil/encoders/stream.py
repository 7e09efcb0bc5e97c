"""Encoding tiles while the next ones are read, so that the cores never wait for the disk."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from queue import Full, Queue
from threading import Event, Thread
from typing import Any

import numpy as np

from smmil.encoders.encoder import Encoder, check_tiles
from smmil.errors import ConfigError, DataError


def encode_stream(encoder: Encoder, tiles: Iterable[np.ndarray], batch_size: int = 32, ahead: int = 2) -> np.ndarray:
    """float16 (n, dim) for tiles (side, side, 3) that come one by one, as `Encoder.encode` would give, in their order.

    `tiles` is walked through by a thread of its own, at most `ahead` batches of `batch_size` tiles in advance;
    an error in it ends the encoding and is raised here. Neither number changes the features.
    """
    if batch_size < 1 or ahead < 1:
        raise ConfigError(f"encode_stream: batch_size={batch_size}, ahead={ahead}; both must be at least 1")
    limit = max(1, ahead * batch_size // encoder.group)
    with closing(read_ahead(_groups(tiles, encoder.group), limit)) as groups:
        return encoder.join(encoder.encode_groups(groups))


@dataclass(frozen=True)
class _End:
    """What the reader says last."""

    problem: BaseException | None = None


def read_ahead(items: Iterable[Any], limit: int) -> Generator[Any, None, None]:
    """The items, fetched by a thread of its own, at most `limit` before they are asked for."""
    queue: Queue[Any] = Queue(limit)
    stop = Event()
    reader = Thread(target=_read, args=(items, queue, stop), name="smmil-reader", daemon=True)
    reader.start()
    try:
        while not isinstance(item := queue.get(), _End):
            yield item
        if item.problem is not None:
            raise item.problem
    finally:
        stop.set()
        reader.join()


def _read(items: Iterable[Any], queue: "Queue[Any]", stop: Event) -> None:
    end = _End()
    try:
        for item in items:
            _offer(item, queue, stop)
            if stop.is_set():
                return
    except BaseException as problem:  # noqa: BLE001 - raised again in the thread that asked for the items
        end = _End(problem)
    _offer(end, queue, stop)


def _offer(item: Any, queue: "Queue[Any]", stop: Event) -> None:
    """Wait for room in the queue, but not for somebody who has gone."""
    while not stop.is_set():
        try:
            queue.put(item, timeout=0.1)
            return
        except Full:
            continue


def _groups(tiles: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    source = iter(tiles)
    while group := list(islice(source, size)):
        yield check_tiles(_stack(group))


def _stack(group: list[np.ndarray]) -> np.ndarray:
    shapes = sorted({(tile.shape, str(tile.dtype)) for tile in group})
    if len(shapes) > 1:
        raise DataError(f"tiles: got different kinds in one stream, {shapes[0]} and {shapes[1]}; make them alike")
    return np.stack(group)
