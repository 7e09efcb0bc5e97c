"""Encoder: a pretrained network that turns tiles into feature vectors, in batches or as a stream.

Features are bit-identical whatever the batch size and the number of threads.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from smmil.encoders.table import Colour
from smmil.errors import ConfigError, DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def _in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """work(item) of every item, in order, on `threads` threads, at most 2 `threads` items ahead of the consumer.

    Inside a worker torch computes on one thread: splitting one sum among threads would change its rounding
    with their number, and threads that share one layer wait for each other after every layer.
    """
    if threads == 1:
        yield from map(work, items)
        return
    try:
        # The number of threads belongs to each thread in OpenMP, so every worker sets its own.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for item in items:
                    waiting.append(pool.submit(work, item))
                    if len(waiting) == 2 * threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(threads)  # for threads that begin later


def _resize(images: Tensor, pixels: int) -> Tensor:
    """Square images (n, 3, side, side) as (n, 3, pixels, pixels).

    Shrinking gives each pixel the mean over exactly the area it covers, fractions of source pixels included;
    enlarging interpolates linearly between pixel centres. Both keep the mean colour of an even area.
    """
    side = images.shape[-1]
    if side == pixels:
        return images
    weights = torch.from_numpy(_resampling(side, pixels)).to(images.device)
    return weights @ images @ weights.T


@lru_cache(maxsize=16)
def _resampling(side: int, pixels: int) -> np.ndarray:
    """(pixels, side): the share of each source pixel in each pixel of the result; every row adds up to 1."""
    sources = np.arange(side)
    if side > pixels:
        edges = np.arange(pixels + 1) * (side / pixels)
        overlap = np.minimum(edges[1:, None], sources + 1) - np.maximum(edges[:-1, None], sources)
        overlap = np.clip(overlap, 0, None)
        return (overlap / overlap.sum(1, keepdims=True)).astype(np.float32)
    # Beyond the outermost centres the border pixel goes on.
    centres = np.clip((np.arange(pixels) + 0.5) * side / pixels - 0.5, 0, side - 1)
    return np.clip(1 - np.abs(centres[:, None] - sources), 0, None).astype(np.float32)


# Tiles that go through the network together. Always the same number, filled up with grey when fewer are left:
# libraries choose their kernels by shape, and another kernel may round differently.
# Four on a processor: larger groups leave its cache and take longer per tile.
_GROUP_ON_PROCESSOR = 4
_GROUP_ON_CARD = 32


@dataclass(frozen=True, eq=False)
class Encoder:
    """Tiles in, vectors out, and where the network came from.

    id        name@revision: the revision is a digest of the weights; an input side other than the usual is added
    dim       length of a feature vector
    pixels    side of the square the network sees; other tiles are resized to it
    mean      subtracted from colours in [0, 1] …
    std       … before dividing by this
    mpp       micrometres per pixel it was trained at; None: natural images, any
    autocast  whether the network computes in 16 bits, or in which: faster on many devices, differs in the third digit
    pooling   how the vector is made of the last layer
    gate      what the owner of the weights asks before they can be fetched: none, terms, approval
    commit    of the repository that the weights came from, where it is known
    depth     slices of the boxes that the network sees, (n, 3, depth, pixels, pixels); None: it sees pictures
    """

    id: str
    dim: int
    pixels: int
    mean: Colour
    std: Colour
    mpp: float | None
    licence: str
    source: str
    network: nn.Module
    device: torch.device
    autocast: bool | str = False
    pooling: str = "not stated"
    gate: str = "none"
    commit: str | None = None
    depth: int | None = None

    @property
    def precision(self) -> str:
        """Type of the numbers in which the network computes."""
        usual = "bfloat16" if self.device.type == "cpu" else "float16"
        return (usual if self.autocast else "float32") if isinstance(self.autocast, bool) else self.autocast

    @property
    def group(self) -> int:
        """Tiles that go through the network together."""
        return _GROUP_ON_PROCESSOR if self.device.type == "cpu" else _GROUP_ON_CARD

    def encode(self, tiles: np.ndarray) -> np.ndarray:
        """float16 (n, dim) for square tiles, uint8 or float32 in [0, 1], of shape (n, side, side, 3).

        An encoder of boxes takes (n, depth, side, side, 3).

        On a processor several groups of tiles run side by side, each on one thread (as many as
        `torch.get_num_threads()` allows): the result does not depend on their number, and cores do not wait.
        """
        _check_tiles(tiles)
        groups = (tiles[start : start + self.group] for start in range(0, len(tiles), self.group))
        return self.join(self.encode_groups(groups))

    def encode_groups(self, groups: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """float16 features of each group of at most `group` checked tiles, in their order."""
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        return _in_order(self._features, groups, threads)

    def join(self, features: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.empty((0, self.dim), np.float16), *features])

    def provenance(self) -> dict[str, Any]:
        """What a feature file should remember about its encoder, as plain values."""
        names = ["id", "dim", "pixels", "mean", "std", "mpp", "licence", "source", "autocast"]
        names += ["pooling", "gate", "commit", "precision", *(["depth"] if self.depth is not None else [])]
        name, _, revision = self.id.partition("@")
        values = {one: getattr(self, one) for one in names} | {"name": name, "revision": revision.partition("/")[0]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def _features(self, tiles: np.ndarray) -> np.ndarray:
        """float16 (n, dim) of at most `group` tiles; what does not fit is an error, not an infinity in a file."""
        kind = getattr(torch, self.precision) if self.autocast else None
        with torch.inference_mode(), torch.autocast(self.device.type, dtype=kind, enabled=bool(self.autocast)):
            features = self.network(self._images(tiles))
        with np.errstate(over="ignore"):
            half = features[: len(tiles)].float().cpu().numpy().astype(np.float16)
        if not np.isfinite(half).all():
            raise DataError(
                f"encoder {self.id}: some features are not finite in 16 bits; check the weights, "
                "or use autocast=False (--precision float32)"
            )
        return half

    def _images(self, tiles: np.ndarray) -> Tensor:
        """Normalised images (group, 3, pixels, pixels), or boxes (group, 3, depth, …); the missing ones grey."""
        pixels = torch.from_numpy(np.ascontiguousarray(tiles)).to(self.device).movedim(-1, 1).float()
        full = pixels.new_full((self.group, *pixels.shape[1:]), 0.5)
        full[: len(tiles)] = pixels / 255 if tiles.dtype == np.uint8 else pixels
        shape = 3, *[1] * (pixels.ndim - 2)
        mean, std = (torch.tensor(colour, device=self.device).view(shape) for colour in (self.mean, self.std))
        images = (_resize(full, self.pixels) - mean) / std
        return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def _check_tiles(tiles: np.ndarray) -> np.ndarray:
    """The tiles themselves, if an encoder can take them."""
    if tiles.ndim not in (4, 5) or tiles.shape[-1] != 3 or tiles.shape[-3] != tiles.shape[-2] or tiles.shape[-2] == 0:
        raise DataError(f"tiles: got shape {tiles.shape}, expected (n, side, side, 3); pad or crop them to squares")
    if tiles.dtype == np.uint8:
        return tiles
    if tiles.dtype != np.float32:
        raise DataError(f"tiles: got {tiles.dtype} values, expected uint8 or float32 in [0, 1]; convert them")
    if tiles.size and not (tiles.min() >= 0 and tiles.max() <= 1):
        span = f"{tiles.min():g} to {tiles.max():g}"
        raise DataError(f"tiles: got float32 values from {span}, expected [0, 1]; apply a window or divide by 255")
    return tiles


def encode_stream(encoder: Encoder, tiles: Iterable[np.ndarray], batch_size: int = 32, ahead: int = 2) -> np.ndarray:
    """float16 (n, dim) for tiles (side, side, 3) that come one by one, as `Encoder.encode` would give, in their order.

    `tiles` is consumed by a thread of its own, at most `ahead` batches of `batch_size` tiles in advance;
    an error in it ends the encoding and is raised here. Neither number changes the features.
    """
    if batch_size < 1 or ahead < 1:
        raise ConfigError(f"encode_stream: batch_size={batch_size}, ahead={ahead}; both must be at least 1")
    limit = max(1, ahead * batch_size // encoder.group)
    with closing(_read_ahead(_groups(tiles, encoder.group), limit)) as groups:
        return encoder.join(encoder.encode_groups(groups))


@dataclass(frozen=True)
class _End:
    """Marks the end of the queue, with the exception that ended the reading, if any."""

    problem: BaseException | None = None


def _read_ahead(items: Iterable[Any], limit: int) -> Generator[Any, None, None]:
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
    """Wait for room in the queue, but not after the consumer has stopped."""
    while not stop.is_set():
        try:
            queue.put(item, timeout=0.1)
            return
        except Full:
            continue


def _groups(tiles: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    source = iter(tiles)
    while group := list(islice(source, size)):
        shapes = sorted({(tile.shape, str(tile.dtype)) for tile in group})
        if len(shapes) > 1:
            raise DataError(f"tiles: got different kinds in one stream, {shapes[0]} and {shapes[1]}; make them alike")
        yield _check_tiles(np.stack(group))
