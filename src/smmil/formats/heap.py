"""Texts in HDF5 files that may be damaged: reading them fails then, where HDF5 itself could search for ever."""

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py


@contextmanager
def open_for_texts(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file whose attributes may be read as text even when it is damaged: it fails then, and never hangs."""
    with _HeapGuard(path, "rb") as raw, h5py.File(raw, "r") as file:
        yield file


class _HeapGuard(io.FileIO):
    """A file that refuses to hand over a global heap (where HDF5 keeps texts) with an entry that leads nowhere.

    HDF5 walks from entry to entry by their sizes; at an empty entry of size 0 it would stay for ever.
    """

    def readinto(self, buffer: Any) -> int:
        begin = self.tell()
        count = super().readinto(buffer)
        block = bytes(memoryview(buffer)[:count])
        end, start = self.tell(), block.find(b"GCOL")
        while start >= 0:
            self._refuse_endless(begin + start)
            start = block.find(b"GCOL", start + 1)
        self.seek(end)
        return count

    def _refuse_endless(self, begin: int) -> None:
        """HDF5 may fetch a heap in pieces, so it is examined as a whole, where it lies in the file."""
        self.seek(begin)
        size = int.from_bytes(self.read(16)[8:], "little")
        self.seek(begin)
        heap, place = self.read(min(size, os.fstat(self.fileno()).st_size)), 16
        while place + 16 <= len(heap):
            index, length = struct.unpack_from("<H6xQ", heap, place)
            if index == 0 and length == 0:
                raise OSError("damaged text in the file")
            place += length if index == 0 else 16 + -(-length // 8) * 8
