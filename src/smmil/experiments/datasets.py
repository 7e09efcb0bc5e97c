"""From the description of a data set to a manifest on disk and a fingerprint of everything in it."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smmil.data.manifest import Manifest
from smmil.data.synthetic import synthetic_scans, synthetic_slides, write_synthetic
from smmil.errors import ConfigError, DataError
from smmil.experiments.study import Dataset, Synthetic
from smmil.files import digest, read_json, write_json

_BLOCK = 1 << 20


class Ready(NamedTuple):
    """A data set whose bags are there: its manifest and the digest of its content."""

    manifest: Path
    digest: str


def prepare(dataset: Dataset, folder: Path) -> Ready:
    """The data set, ready to train on; a synthetic one is written into `folder` unless it is there and sound."""
    if dataset.missing is not None:
        raise DataError(
            f"data set {dataset.name!r}: nobody said where it lies; give --data {dataset.missing}=manifest.csv "
            f"or set the environment variable {dataset.missing}"
        )
    if dataset.synthetic is not None:
        path = _written(dataset.synthetic, folder)
    else:
        path = Path(str(dataset.manifest))
    return Ready(path, content_digest(Manifest.read(path), folder / "digests.json"))


def _written(spec: Synthetic, folder: Path) -> Path:
    """The manifest of a synthetic set; the folder is named by what decides its content."""
    place = folder / f"{spec.kind}-{digest(repr(sorted(_flat(spec).items())))[:12]}"
    manifest = place / "manifest.csv"
    try:
        Manifest.read(manifest).check_files()
    except DataError:
        make = synthetic_slides if spec.kind == "slides" else synthetic_scans
        try:
            bags = make(spec.bags, seed=spec.seed, **_ranges(spec.options))
        except TypeError as problem:
            raise ConfigError(f"synthetic {spec.kind}: {problem}; see smmil.data.synthetic_{spec.kind}") from None
        write_synthetic(place, bags)
    return manifest


def _flat(spec: Synthetic) -> dict[str, Any]:
    return {**spec.model_dump(exclude={"options"}), **{f"options.{k}": v for k, v in spec.options.items()}}


def _ranges(options: dict[str, Any]) -> dict[str, Any]:
    """YAML has lists where Python has pairs."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def content_digest(manifest: Manifest, memory: Path) -> str:
    """Fingerprint of labels, patients, splits and the bytes of every file; where files lie does not count.

    Files of unchanged size and time are not read again: `memory` is a JSON file of what was found before.
    """
    known = _remembered(memory)
    seen: dict[str, Any] = {}
    rows = []
    for id_ in sorted(manifest.ids):
        places = [manifest.path_of(id_), manifest.instance_labels_of(id_)]
        marks = ["" if path is None else _file_mark(path, known, seen) for path in places]
        rows.append([id_, manifest.labels[id_], manifest.groups[id_], manifest.splits[id_], *marks])
    if any(known.get(key) != value for key, value in seen.items()):
        write_json(memory, {**known, **seen})
    return digest(repr(rows))


def _file_mark(path: Path, known: dict[str, Any], seen: dict[str, Any]) -> str:
    try:
        facts = path.stat()
        mark = [facts.st_size, facts.st_mtime_ns]
        before = known.get(str(path.resolve()))
        value = before[2] if before is not None and before[:2] == mark else _file_digest(path)
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror}); check the manifest") from None
    seen[str(path.resolve())] = [*mark, value]
    return value


def _file_digest(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            total.update(block)
    return total.hexdigest()


def _remembered(memory: Path) -> dict[str, Any]:
    try:
        found = read_json(memory)
    except DataError:
        return {}  # a memory that cannot be read is made anew
    return found if isinstance(found, dict) else {}


def neighbour_agreement(y_inst: np.ndarray, edges: np.ndarray) -> float:
    """Share of the edges between labelled instances that join equal labels; nan without such edges."""
    return share_of(*agreeing_pairs(y_inst, edges))


def agreeing_pairs(y_inst: np.ndarray, edges: np.ndarray) -> tuple[int, int]:
    """How many edges between labelled instances join equal labels, and how many such edges there are."""
    a, b = y_inst[edges[0]], y_inst[edges[1]]
    known = (a >= 0) & (b >= 0) & (edges[0] != edges[1])
    return int((a == b)[known].sum()), int(known.sum())


def share_of(part: int, whole: int) -> float:
    """A part of a whole; nan of nothing."""
    return part / whole if whole else float("nan")
