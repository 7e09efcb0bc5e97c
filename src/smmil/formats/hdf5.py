"""HDF5 feature files: layouts, datasets and texts read with care, and the error boundary of all readers."""

import io
import json
import lzma
import os
import pickle
import struct
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.files import check_dataset, check_once, open_hdf5
from smmil.formats.content import Stored, _stored_type, _WritePlan
from smmil.frame import Frame

# What h5py, numpy, torch and zarr raise on damaged files.
_DAMAGE = (
    *(OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError),
    *(EOFError, SyntaxError, AssertionError, ImportError),
    *(pickle.UnpicklingError, tokenize.TokenError, zipfile.BadZipFile, struct.error, zlib.error, lzma.LZMAError),
)


@contextmanager
def reader_errors(path: Path) -> Iterator[None]:
    """Turn whatever a library raises inside into one DataError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path column of the manifest") from None
    except SmmilError as problem:
        raise DataError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except _DAMAGE as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"{path}: not readable as a feature file ({reason}); restore or extract it again") from None


OURS = ("smmil_format", "id", "frame", "graph", "provenance", "sha256")
ENDINGS = (".h5", ".hdf5")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def _is_hdf5(path: Path) -> bool:
    """Whether a file is, or by its name should be, HDF5."""
    return path.suffix.lower() in ENDINGS or _starts_with(path, _SIGNATURE)


def _starts_with(path: Path, *signatures: bytes) -> bool:
    """Whether the first bytes of a file are one of these; False for what is not a file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(max(map(len, signatures))).startswith(signatures)


def _layout(path: Path) -> str:
    """Whose layout an HDF5 file has: native, trident, clam or stamp; "positions" without features, or "unknown".

    Only names are looked at: in a damaged file, HDF5 can search for the text of an attribute for ever.
    """
    layout: str = check_once(path, _find_layout)
    return layout


def _find_layout(path: Path) -> str:
    with open_hdf5(path) as file:
        attributes = file.attrs
        if any(name in attributes for name in OURS):
            return "native"
        if "feats" in file:
            return "stamp"
        if "features" in file:
            return "trident" if "coords" in file and "patch_size_level0" in file["coords"].attrs else "clam"
        return "positions" if "coords" in file else "unknown"


def _dataset(file: h5py.File, name: str, like: str | None = None, *, unread: bool = False) -> np.ndarray | None:
    """A dataset of numbers as the array `like` of a bag (by default its own name); None when it is absent.

    What claims to be larger than the file can hold is refused before memory is taken.
    unread  zeros of its shape and type that take no memory, in place of what it holds
    """
    if name not in file:
        return None
    found, like = file[name], like or name
    dtype = found.dtype  # asked once: HDF5 makes it anew each time
    if dtype.kind not in "fiu" or (like == "features" and dtype.kind != "f"):
        raise DataError(f"{name} must hold {'floating point ' * (like == 'features')}numbers, got {dtype}")
    check_dataset(found)
    if unread:
        return np.lib.stride_tricks.as_strided(np.zeros((), dtype.newbyteorder("=")), found.shape, (0,) * found.ndim)
    array = np.empty(found.shape, dtype=dtype.newbyteorder("="))
    if array.size:
        found.id.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return _stored_type(like, array)


def _bag_arrays(file: h5py.File, *, unread: bool = False) -> dict[str, Any]:
    """The datasets of a file in TRIDENT's or our own layout as arguments of `Stored`; features may be left unread."""
    arrays = {name: _dataset(file, name) for name in ("coords", "y_inst")}
    arrays["features"] = _dataset(file, "features", unread=unread)
    pairs, weight = _dataset(file, "edges"), _dataset(file, "edge_weight")
    return {**arrays, "edges": None if pairs is None or weight is None else (pairs, weight)}


def _text(attributes: Any, name: str, absent: str = "") -> str:
    """A text in the attributes, stored as bytes or as a string; of another type it is refused unread.

    Where damage has made the type of a text one that does not exist, HDF5 would crash.
    """
    if name not in attributes:
        return absent
    found = attributes.get_id(name)
    kind = found.get_type()
    if kind.get_class() != h5py.h5t.STRING:
        raise DataError(f"attribute {name!r} is no text, the file is damaged")
    if kind.is_variable_str() or found.shape != ():
        value = attributes[name]
    else:  # as we write it: read without opening it again
        fixed = np.zeros((), dtype=f"S{kind.get_size()}")
        found.read(fixed, mtype=kind)
        value = fixed.item()
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _numbers(attributes: Any, name: str) -> np.ndarray | None:
    """A numeric attribute as an array; None when it is absent or a text ('None').

    The text itself is never read: in a damaged file, HDF5 can search for it for ever.
    """
    kind = attributes.get_id(name).get_type().get_class() if name in attributes else h5py.h5t.STRING
    if kind == h5py.h5t.STRING:
        return None
    if kind not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM):
        raise DataError(f"attribute {name!r} holds no numbers, the file is damaged")
    return np.asarray(attributes[name], dtype=np.float64)


def _number(attributes: Any, name: str) -> float | None:
    """A single numeric attribute; None when it is absent or a text."""
    values = _numbers(attributes, name)
    return None if values is None else float(values.reshape(-1)[0])


@contextmanager
def _open_for_texts(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file whose attributes may be read as text even when it is damaged: it fails then, and never hangs."""
    with open_hdf5(path):
        pass  # is it a file that shows nothing of others?
    with _HeapGuard(path, "rb") as raw, h5py.File(raw, "r") as file:
        yield file


class _HeapGuard(io.FileIO):
    """File object that raises an error on a malformed HDF5 global heap (where texts are kept), which HDF5 never leaves.

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


def _coords_attributes(name: str, frame: Frame | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of `coords` in TRIDENT's layout; without facts, the target magnification is that of level 0."""
    side = overlap = None
    target = facts.get("patch_size")
    if frame is not None:
        side, target = frame.patch[0], facts.get("patch_size", frame.patch[0])
        overlap = (side - frame.step[0]) * target / side  # in pixels at target magnification
        overlap = round(overlap) if abs(overlap - round(overlap)) < 1e-6 else overlap
    known: dict[str, Any] = {
        "patch_size": target,
        "patch_size_level0": side,
        "level0_magnification": facts.get("level0_magnification"),
        "target_magnification": facts.get("target_magnification"),
        "overlap": overlap,
        "name": name,
        "level0_width": facts.get("level0_width"),
        "level0_height": facts.get("level0_height"),
    }
    return {key: _plain(value) for key, value in known.items()}


def _plain(value: Any) -> Any:
    if value is None:
        return "None"
    return np.int64(value) if isinstance(value, int | float) and float(value).is_integer() else value


class Reader(ABC):
    """One kind of feature file: how to recognise and read it and, where `convert` writes it, which files to write."""

    name = ""

    def recognises(self, path: Path) -> bool:
        """Whether a file or folder is of this kind, by its content; here: an HDF5 file of the layout called `name`."""
        return _is_hdf5(path) and _layout(path) == self.name

    @abstractmethod
    def load(self, path: Path) -> Stored:
        """Everything in the file but the labels that lie in files of their own."""

    def provenance(self, path: Path) -> dict[str, Any]:
        """Where the features come from, without reading them."""
        return {}

    def label(self, path: Path) -> int | None:
        """Label of the bag, in the rare formats that have one."""
        return None

    def instance_labels(self, path: Path) -> np.ndarray | None:
        """Instance labels from a file next to the features; not called in training, where nobody may look at them."""
        return None

    def plan(self, stored: Stored, facts: dict[str, Any], label: int | None) -> _WritePlan:
        """The files of a case in this format, and notes on what is lost or assumed."""
        raise DataError(f"{self.name} files are read but not written; convert to native")

    def read(self, path: Path, instance_labels: bool = True) -> Stored:
        """The content of a file, with the instance labels that lie in a file of their own if they are wanted."""
        stored, labels = self.load(path), self.instance_labels(path) if instance_labels else None
        return stored if labels is None else replace(stored, y_inst=labels)

    def all_facts(self, path: Path, stored: Stored) -> dict[str, Any]:
        """Everything known about the origin of a file: its provenance and what was found while loading it."""
        return {**self.provenance(path), **json.loads(stored.provenance)}
