"""Features that stay on disk: a bag without them, and a reader of some of their rows.

Native files keep features as one piece, so any rows of them can be read by themselves. Their checksum covers the whole
file and is compared by `smmil.formats.open_bag` when it is asked to, block after block; rows that are read later are
looked at for NaN and Inf only. Features of other formats are read whole and held.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.files import Pieces, open_hdf5
from smmil.formats.content import Stored, not_finite
from smmil.formats.hdf5 import reader_errors

BLOCK = 8192  # rows that are read at a time, unless told otherwise
_GAP = 4  # rows that are read and left out rather than begin to read anew


class Rows(ABC):
    """The feature rows of a bag, wherever they are."""

    n: int
    width: int
    dtype: torch.dtype

    @abstractmethod
    def take(self, rows: np.ndarray) -> Tensor:
        """These rows, given in ascending order, in the type they are stored in."""

    @abstractmethod
    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        """All rows, `size` at a time."""


class HeldRows(Rows):
    """Features that are in memory."""

    def __init__(self, x: Tensor):
        self.x, (self.n, self.width), self.dtype = x, x.shape, x.dtype

    def take(self, rows: np.ndarray) -> Tensor:
        return self.x[torch.from_numpy(rows)]

    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        return iter(self.x.split(size))


@dataclass(frozen=True)
class FileRows(Rows):
    """Features in a native file, which is open only while it is read."""

    path: Path
    n: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, path: Path, features: np.ndarray) -> "FileRows":
        """Those of a file whose features have the shape and the type of this array."""
        return cls(path, len(features), features.shape[1], torch.from_numpy(np.zeros(0, features.dtype)).dtype)

    def take(self, rows: np.ndarray) -> Tensor:
        x = torch.empty(len(rows), self.width, dtype=self.dtype)
        array, cuts = x.numpy(), np.flatnonzero(np.diff(rows) > _GAP) + 1
        with self._open() as features:
            for begin, end in pairwise([0, *cuts.tolist(), len(rows)]):
                piece = rows[begin:end]
                read = self._read(features, int(piece[0]), int(piece[-1]) + 1)
                array[begin:end] = read if len(read) == len(piece) else read[piece - piece[0]]
            if (wrong := not_finite(array)) is not None:
                raise DataError(f"features: row {rows[wrong[0][0]]} holds {wrong[1]}; extract this case again")
        return x

    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        with self._open() as features:
            for begin in range(0, self.n, size):
                yield torch.from_numpy(self._read(features, begin, min(begin + size, self.n)))

    @contextmanager
    def _open(self) -> Iterator[h5py.Dataset]:
        """The features, open; an error when the file is no longer the one that was opened first."""
        with reader_errors(self.path), open_hdf5(self.path) as file:
            features = file["features"]
            if features.shape != (self.n, self.width):
                shown = f"now {features.shape}, before ({self.n}, {self.width})"
                raise DataError(f"features changed their shape while in use, {shown}; start again")
            yield features

    def _read(self, features: h5py.Dataset, begin: int, end: int) -> np.ndarray:
        array = np.empty((end - begin, self.width), dtype=features.dtype.newbyteorder("="))
        features.read_direct(array, np.s_[begin:end])
        return array


class JoinedRows(Rows):
    """The rows of several cases, one below the other."""

    def __init__(self, name: str, parts: Sequence[Rows]):
        if len(widths := sorted({part.width for part in parts})) > 1:
            found = f"{widths[0]} and {widths[-1]} features per instance"
            raise DataError(f"{name}: its cases have {found}; use one encoder")
        self.parts, self.width, self.dtype = tuple(parts), parts[0].width, parts[0].dtype
        self.ends = np.cumsum([0, *(part.n for part in parts)])
        self.n = int(self.ends[-1])

    def take(self, rows: np.ndarray) -> Tensor:
        cuts = np.searchsorted(rows, self.ends).tolist()
        pieces = zip(self.parts, self.ends.tolist(), pairwise(cuts), strict=False)
        return torch.cat([part.take(rows[a:b] - first) for part, first, (a, b) in pieces if b > a])

    def blocks(self, size: int = BLOCK) -> Iterator[Tensor]:
        for part in self.parts:
            yield from part.blocks(size)


class OpenBag(NamedTuple):
    """A bag without its features, which has an x of no columns, and what reads them."""

    bag: Bag
    rows: Rows

    @classmethod
    def held(cls, bag: Bag) -> "OpenBag":
        """A bag that is in memory."""
        return cls(without_features(bag), HeldRows(bag.x))


def without_features(bag: Bag) -> Bag:
    """The bag with an x of no columns."""
    return replace(bag, x=torch.empty(bag.n, 0, dtype=bag.x.dtype))


def verify_rows(stored: Stored, rows: FileRows) -> None:
    """Compare the checksum of a file, then refuse rows that are not finite, without holding more than a block."""
    begin = 0
    problems: list[str] = []

    def seen() -> Iterator[memoryview]:
        nonlocal begin
        for block in rows.blocks():
            array = block.numpy()
            if not problems and (wrong := not_finite(array)) is not None:
                problems.append(f"features: row {begin + wrong[0][0]} holds {wrong[1]}; extract this case again")
            begin += len(array)
            yield array.reshape(-1).view(np.uint8).data

    if stored.digest(Pieces(stored.features.nbytes, seen())) != stored.sha256:
        raise DataError("content does not match its checksum, the file is damaged; restore or extract it again")
    if problems:
        raise DataError(problems[0])
