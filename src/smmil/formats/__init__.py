"""Feature files to bags and back; READERS is the ordered list of what can be read."""

from pathlib import Path
from typing import Any, Protocol

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import native
from smmil.formats.native import write_bag

__all__ = ["READERS", "Reader", "read_bag", "read_provenance", "write_bag"]


class Reader(Protocol):
    """What a file of this folder offers to be listed in READERS."""

    def recognises(self, path: Path) -> bool: ...

    def read(self, path: Path, verify: bool) -> Bag: ...

    def provenance(self, path: Path) -> dict[str, Any]: ...


READERS: tuple[Reader, ...] = (native,)


def read_bag(path: str | Path, *, verify: bool = True) -> Bag:
    """The bag in a feature file, with its neighbourhood. `verify` compares the stored checksum, where there is one."""
    return _reader(Path(path)).read(Path(path), verify)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Where the features of a file come from (encoder, recipe, licence, …), without reading the features."""
    return _reader(Path(path)).provenance(Path(path))


def _reader(path: Path) -> Reader:
    for reader in READERS:
        if reader.recognises(path):
            return reader
    raise DataError(f"{path}: not a known feature file; expected HDF5 with the ending .h5 or .hdf5")
