"""Feature files to bags and back; READERS is the ordered list of what can be read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import clam, hdf5, lazyslide, native, stamp, torchmil, trident, wsinfer
from smmil.formats.content import Stored, refuse_isolated, refuse_not_finite
from smmil.formats.hdf5 import boundary
from smmil.formats.native import write_bag

__all__ = [
    "READERS",
    "Reader",
    "all_facts",
    "choose_reader",
    "find_reader",
    "read_bag",
    "read_provenance",
    "read_stored",
    "write_bag",
]


@dataclass(frozen=True)
class Reader:
    """One way to read a bag. `recognises` looks into the file, `provenance` does not read features, `label` is rare."""

    name: str
    recognises: Callable[[Path], bool]
    load: Callable[[Path], Stored]
    provenance: Callable[[Path], dict[str, Any]]
    label: Callable[[Path], int | None] = lambda _path: None


def _hdf5(name: str) -> Callable[[Path], bool]:
    return lambda path: hdf5.is_hdf5(path) and hdf5.layout(path) == name


READERS: tuple[Reader, ...] = (
    Reader("native", _hdf5("native"), native.load, native.provenance),
    Reader("trident", _hdf5("trident"), trident.load, trident.provenance),
    Reader("clam", _hdf5("clam"), clam.load_h5, clam.provenance),
    Reader("stamp", _hdf5("stamp"), stamp.load, stamp.provenance),
    Reader("clam_pt", clam.is_pt, clam.load_pt, clam.provenance),
    Reader("torchmil", torchmil.recognises, torchmil.load, torchmil.provenance, torchmil.label),
    Reader("lazyslide", lazyslide.recognises, lazyslide.load, lazyslide.provenance),
    Reader("wsinfer", wsinfer.recognises, wsinfer.load, wsinfer.provenance),
)


def read_bag(path: str | Path, *, verify: bool = True) -> Bag:
    """The bag in a feature file, with its neighbourhood. `verify` compares the stored checksum, where there is one."""
    path = Path(path)
    with boundary(path):
        stored = read_stored(path, choose_reader(path), verify=verify)
        graph, frame = stored.graph(), stored.parsed_frame()
        refuse_isolated(graph, json.loads(stored.rule), stored.coords, frame)
        coords = None if stored.coords is None else torch.from_numpy(stored.coords)
        y_inst = None if stored.y_inst is None else torch.from_numpy(stored.y_inst).long()
        return Bag(stored.id, torch.from_numpy(stored.features), coords, frame, graph, y_inst=y_inst)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Where the features of a file come from (encoder, recipe, licence, …), without reading the features."""
    path = Path(path)
    with boundary(path):
        return choose_reader(path).provenance(path)


def find_reader(path: str | Path) -> Reader:
    """The first reader that recognises a file or folder by its content."""
    path = Path(path)
    with boundary(path):
        return choose_reader(path)


def read_stored(path: Path, reader: Reader, *, verify: bool = True) -> Stored:
    """The content of a feature file as arrays, checked and finite; to be called inside `boundary`."""
    stored = reader.load(path)
    if verify and stored.sha256 is not None and stored.digest() != stored.sha256:
        raise DataError("content does not match its checksum, the file is damaged; restore or extract it again")
    refuse_not_finite(stored.features)
    return stored


def all_facts(path: Path, reader: Reader, stored: Stored) -> dict[str, Any]:
    """Everything known about the origin of a file: its provenance and what was found while loading it."""
    return {**reader.provenance(path), **json.loads(stored.provenance)}


def choose_reader(path: Path) -> Reader:
    """As `find_reader`, to be called inside `boundary`."""
    if not path.exists():
        raise FileNotFoundError
    for reader in READERS:
        if reader.recognises(path):
            return reader
    if hdf5.is_hdf5(path) and hdf5.layout(path) == "positions":
        raise DataError("holds coordinates but no features; give the file of features that belongs to it")
    raise DataError("not a known feature file; expected HDF5, .pt, .npy in a folder features_…, .zarr or .csv")
