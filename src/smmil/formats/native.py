"""smmil's own feature file: HDF5 in TRIDENT's layout, plus frame, graph rule, provenance and a checksum.

features (n, d)   as given, float16 or float32, contiguous       attributes: name, encoder
coords   (n, k)   int64, or float64 when not whole numbers       attributes: TRIDENT's (patch_size_level0, …)
edges, edge_weight, y_inst                                       only when needed
quality  (n, q)   float32, nan: not known                        only from prepare; the provenance names the columns
root attributes   smmil_format, id, frame, graph, provenance (JSON) and sha256 over all of the above

The label of a bag is not in the file: labels belong to the manifest.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.files import file_name, open_hdf5, replacing
from smmil.formats.content import Stored, _as_int8, _frame_json, _full_rule, _stored_type, _WritePlan
from smmil.formats.hdf5 import OURS, Reader, _bag_arrays, _coords_attributes, _dataset, _number, _text, reader_errors
from smmil.graph import Graph

FORMAT = 1
_LAYOUT = ("v108", "v108")  # of HDF5


class _NativeReader(Reader):
    name = "native"

    def load(self, path: Path, *, unread: bool = False) -> Stored:
        """Content of the file as arrays and texts; one read per dataset, in the stored type.

        unread  features are zeros that take no memory
        """
        with open_hdf5(path) as file:
            arrays, texts = _bag_arrays(file, unread=unread), _texts(file)
            quality = _dataset(file, "quality")
        return Stored(**arrays, quality=quality, rule=texts.pop("graph"), **texts)

    def provenance(self, path: Path) -> dict[str, Any]:
        """Where the features come from, without reading them."""
        with open_hdf5(path) as file:
            return json.loads(_texts(file)["provenance"])

    def plan(self, stored: Stored, facts: dict[str, Any], label: int | None) -> _WritePlan:
        """Our own file holds everything; the name of the case lies inside."""

        def content() -> bytes:
            rule = stored.parsed_rule()
            bag = _to_bag(stored, stored.graph() if rule["kind"] == "edges" else None)
            checked = _checked_store(bag, rule, facts)
            with h5py.File("bag.h5", "w", libver=_LAYOUT, driver="core", backing_store=False) as file:
                _fill(file, checked)
                file.flush()
                return file.id.get_file_image()

        return _WritePlan({f"{file_name(stored.id)}.h5": content})


def _texts(file: h5py.File) -> dict[str, Any]:
    """The texts in the attributes of the file; an error when one is missing or the format is another."""
    attributes = file.attrs
    missing = [name for name in OURS if name not in attributes]
    if missing:
        raise DataError(f"attribute {missing[0]!r} is missing, the file is damaged")
    if (version := _number(attributes, "smmil_format")) != FORMAT:
        raise DataError(f"written in format {version:g}, this smmil reads format {FORMAT}; upgrade smmil")
    return {name: _text(attributes, name) for name in OURS[1:]}


def _to_bag(stored: Stored, graph: Graph | None) -> Bag:
    """The content of a feature file as a bag with this graph."""
    coords = None if stored.coords is None else torch.from_numpy(stored.coords)
    y_inst = None if stored.y_inst is None else torch.from_numpy(stored.y_inst).long()
    quality = None if stored.quality is None else torch.from_numpy(stored.quality)
    features, frame = torch.from_numpy(stored.features), stored.parsed_frame()
    return Bag(stored.id, features, coords, frame, graph, y_inst=y_inst, quality=quality)


def write_bag(
    path: str | Path, bag: Bag, *, graph: str | Mapping[str, Any] = "grid", provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a bag as a native file, atomically; its label `y` is not written, labels belong to the manifest.

    graph       how neighbours are found when reading: "grid", "chain", "knn", "radius", "none", with options as in
                {"kind": "knn", "k": 5}, or "edges" to store the bag's own graph; it must agree with `bag.graph`
    provenance  plain JSON: encoder, recipe, licence, mpp, versions; `quality` names the columns of the bag's own
    """
    path, rule = Path(path), _full_rule(graph)
    with reader_errors(path):
        stored = _checked_store(bag, rule, dict(provenance or {}))
    try:
        with replacing(path) as temporary, h5py.File(temporary, "w", libver=_LAYOUT) as file:
            _fill(file, stored)
    except OSError as problem:
        raise DataError(f"{path}: cannot be written ({problem}); check the folder and the free space") from None


def _checked_store(bag: Bag, rule: dict[str, Any], provenance: dict[str, Any]) -> Stored:
    """The bag as it is stored; an error when it is not finite or the rule does not give its graph."""
    stored = _to_store(bag, rule, provenance)
    stored.refuse_not_finite()
    built = stored.connected_graph()
    if bag.graph is not None and bag.graph.kind is not None:
        raise DataError(f"the graph is normalised as {bag.graph.kind!r}; store the graph as built")
    if bag.graph is not None and (built is None or not built.same_as(bag.graph)):
        raise DataError(f"the rule {stored.rule} does not give the bag's own graph; use graph='edges' to keep it")
    return stored


def _to_store(bag: Bag, rule: dict[str, Any], provenance: dict[str, Any]) -> Stored:
    if bag.x.dtype not in (torch.float16, torch.float32, torch.float64):
        raise DataError(f"features of type {bag.x.dtype} cannot be stored; use float16 or float32")
    return Stored(
        bag.id,
        np.ascontiguousarray(bag.x.detach().cpu().numpy()),
        None if bag.coords is None else np.ascontiguousarray(_stored_type("coords", bag.coords.cpu().numpy())),
        _own_edges(bag) if rule["kind"] == "edges" else None,
        None if bag.y_inst is None else _as_int8(bag.y_inst.cpu().numpy()),
        _frame_json(bag.frame),
        json.dumps(rule, sort_keys=True),
        json.dumps(provenance, sort_keys=True),
        quality=None if bag.quality is None else np.ascontiguousarray(bag.quality.cpu().numpy(), dtype=np.float32),
    )


def _own_edges(bag: Bag) -> tuple[np.ndarray, np.ndarray]:
    """Each pair of the bag's graph once, with its weight."""
    if bag.graph is None:
        raise DataError("graph='edges' stores the bag's own graph, but it has none")
    edges, weight = bag.graph.edges().cpu().numpy(), bag.graph.weight.cpu().numpy()
    once = edges[0] < edges[1]
    return np.ascontiguousarray(edges[:, once]), weight[once]


def _fill(file: h5py.File, stored: Stored) -> None:
    encoder = json.loads(stored.provenance).get("encoder")
    file.create_dataset("features", data=stored.features).attrs.update(name=stored.id, encoder=str(encoder))
    if stored.coords is not None:
        stated = _coords_attributes(stored.id, stored.parsed_frame(), {})
        file.create_dataset("coords", data=stored.coords).attrs.update(stated)
    if stored.edges is not None:
        file.create_dataset("edges", data=stored.edges[0])
        file.create_dataset("edge_weight", data=stored.edges[1])
    if stored.y_inst is not None:
        file.create_dataset("y_inst", data=stored.y_inst)
    if stored.quality is not None:
        file.create_dataset("quality", data=stored.quality)
    texts = (stored.id, stored.frame, stored.rule, stored.provenance, stored.digest())
    for name, text in zip(OURS[1:], texts, strict=True):  # of fixed length: in the header, which HDF5 itself checks
        file.attrs[name] = np.bytes_(text.encode())
    file.attrs["smmil_format"] = FORMAT
