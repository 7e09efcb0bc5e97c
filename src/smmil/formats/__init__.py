"""Feature files to bags and back; READERS is the ordered list of what can be read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.files import need_file, opening_once
from smmil.formats.clam import _ClamReader, _ClamTensorReader
from smmil.formats.content import Stored
from smmil.formats.hdf5 import Reader, _is_hdf5, _layout, reader_errors
from smmil.formats.lazyslide import _LazySlideReader
from smmil.formats.native import _NativeReader, _to_bag, write_bag
from smmil.formats.rows import FileRows, OpenBag, verify_rows, without_features
from smmil.formats.stamp import _StampReader
from smmil.formats.torchmil import TorchmilReader
from smmil.formats.trident import _TridentReader
from smmil.formats.wsinfer import _WSInferReader

__all__ = ["READERS", "Reader", "find_reader", "open_bag", "read_bag", "read_provenance", "write_bag"]

READERS: tuple[Reader, ...] = (
    _NativeReader(),
    _TridentReader(),
    _ClamReader(),
    _StampReader(),
    _ClamTensorReader(),
    TorchmilReader(),
    _LazySlideReader(),
    _WSInferReader(),
)


def read_bag(path: str | Path, *, y: int | None = None, verify: bool = True, instance_labels: bool = True) -> Bag:
    """The bag in a feature file, with its neighbourhood.

    y                label of the bag, which feature files do not hold
    verify           compare the stored checksum, where there is one
    instance_labels  False: the bag has none, and files that hold nothing else are not opened, as in training
    """
    path = Path(path)
    with reader_errors(path), opening_once():
        stored = _read_stored(path, _choose_reader(path), verify, instance_labels)
        bag = _to_bag(stored, stored.connected_graph())
    bag = bag if instance_labels else replace(bag, y_inst=None)
    return bag if y is None else replace(bag, y=y)


def open_bag(path: str | Path, *, verify: bool = True, instance_labels: bool = True) -> OpenBag:
    """The bag in a feature file, whose features are left there until rows of them are asked for.

    verify  compare the stored checksum and refuse NaN and Inf, which reads all rows once, a block at a time
    """
    path = Path(path)
    with reader_errors(path), opening_once():
        reader = _choose_reader(path)
        if isinstance(reader, _NativeReader):
            stored = reader.load(path, unread=True)
            rows = FileRows.of(path, stored.features)
            if verify:
                verify_rows(stored, rows)
            bag = without_features(_to_bag(stored, stored.connected_graph()))
            return OpenBag(bag if instance_labels else replace(bag, y_inst=None), rows)
    return OpenBag.held(read_bag(path, verify=verify, instance_labels=instance_labels))


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Where the features of a file come from (encoder, recipe, licence, …), without reading the features."""
    path = Path(path)
    with reader_errors(path), opening_once():
        return _choose_reader(path).provenance(path)


def find_reader(path: str | Path) -> Reader:
    """The first reader that recognises a file or folder by its content."""
    path = Path(path)
    with reader_errors(path):
        return _choose_reader(path)


def _read_stored(path: Path, reader: Reader, verify: bool = True, instance_labels: bool = True) -> Stored:
    """The content of a feature file as arrays, checked and finite; to be called inside `reader_errors`."""
    stored = reader.read(path, instance_labels)
    if verify and stored.sha256 is not None and stored.digest() != stored.sha256:
        raise DataError("content does not match its checksum, the file is damaged; restore or extract it again")
    stored.refuse_not_finite()
    return stored


def _choose_reader(path: Path) -> Reader:
    """As `find_reader`, to be called inside `reader_errors`."""
    need_file(path)
    for reader in READERS:
        if reader.recognises(path):
            return reader
    if _is_hdf5(path) and _layout(path) == "positions":
        raise DataError("holds coordinates but no features; give the file of features that belongs to it")
    raise DataError("not a known feature file; expected HDF5, .pt, .npy in a folder features_…, .zarr or .csv")
