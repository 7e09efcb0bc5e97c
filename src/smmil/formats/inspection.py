"""Facts about feature files, and which files of a folder are bags."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import open_hdf5
from smmil.formats import _choose_reader, find_reader
from smmil.formats.content import Stored, edgeless_note
from smmil.formats.hdf5 import ENDINGS, _layout, reader_errors
from smmil.formats.lazyslide import _LazySlideReader
from smmil.graph import ALARM_FROM, ALARM_SHARE, nearest_distance

_is_store = _LazySlideReader().recognises
_WHOLE_SLIDE = "features of a whole slide, not of its patches"
_SHOWN = 10  # warnings about the files of a folder that are spelled out
_CHECKSUM = {True: "matches", False: "does not match"}


def find_bags(source: str | Path, leave_out: Path | None = None) -> tuple[list[Path], dict[str, str]]:
    """Feature files and stores below `source` in a fixed order, and the files that are none, with the reason.

    Damaged files count as bags: they fail by name later on. The folder `leave_out` is not entered.
    """
    source = Path(source)
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.is_file() or _is_store(source):
        return [source], {}
    reasons = {path: _why_not(path) for path in _candidates(source, leave_out)}
    others = {str(path.relative_to(source)): reason for path, reason in reasons.items() if reason is not None}
    return [path for path, reason in reasons.items() if reason is None], others


def _candidates(source: Path, leave_out: Path | None) -> Iterator[Path]:
    """Files that may be bags, folder by folder in sorted order; a zarr store is a candidate, not a folder."""
    for folder, below, files in os.walk(source):
        here = Path(folder)
        stores = [name for name in below if _is_store(here / name)]
        left_out = [name for name in below if leave_out is not None and (here / name).resolve() == leave_out.resolve()]
        below[:] = sorted({*below} - {*stores, *left_out})
        endings = (*ENDINGS, ".pt", ".npy", ".csv")
        candidates = [name for name in files if name.lower().endswith(endings) and not name.startswith(".")]
        yield from (here / name for name in sorted(candidates + stores))


def _why_not(path: Path) -> str | None:
    """Why a file is not a bag of its own; None when it is one, or should be."""
    ending = path.suffix.lower()
    if ending == ".pt" and (path.parent.parent / "h5_files" / f"{path.stem}.h5").is_file():
        return "the same features as in h5_files"
    if ending == ".npy" and not path.absolute().parent.name.startswith("features"):
        return "not in a folder of features"
    if ending in (*ENDINGS, ".pt") and path.absolute().parent.name.startswith("slide_features"):
        return _WHOLE_SLIDE
    if ending == ".csv":
        return None if find_or_none(path) else "a table, not the patches of a case"
    if ending in ENDINGS:
        with suppress(DataError), reader_errors(path):
            return _whole_slide(path) or ("coordinates without features" if _layout(path) == "positions" else None)
    return None


def _whole_slide(path: Path) -> str | None:
    """Whether a file holds one vector of features, as encoders of whole slides give."""
    with open_hdf5(path) as file:
        found = next((file[name] for name in ("features", "feats") if name in file), None)
        return _WHOLE_SLIDE if getattr(found, "ndim", 2) == 1 else None


def find_or_none(path: Path) -> str | None:
    """Name of the reader that recognises a file, or None."""
    try:
        return find_reader(path).name
    except DataError:
        return None


def describe(path: str | Path) -> dict[str, Any]:
    """What a feature file holds, as plain JSON values; only a file that cannot be read at all is an error."""
    path = Path(path)
    with reader_errors(path):
        reader = _choose_reader(path)
        stored = reader.read(path)
        graph, (n, dim) = stored.graph(), stored.features.shape
        facts = {
            "file": str(path),
            "format": reader.name,
            "id": stored.id,
            "instances": n,
            "dim": dim,
            "dtype": str(stored.features.dtype),
            "rows_not_finite": int((~np.isfinite(stored.features).all(1)).sum()),
            "coords": _extent(stored.coords),
            "frame": json.loads(stored.frame),
            "graph": json.loads(stored.rule),
            "degrees": None if graph is None else _counts(graph.indptr.diff().numpy()),
            "isolated_share": None if graph is None else graph.isolated_share,
            "provenance": reader.all_facts(path, stored),
            "checksum": "absent" if stored.sha256 is None else _CHECKSUM[stored.digest() == stored.sha256],
            "instance_labels": _counts(stored.y_inst),
            "quality": _medians(stored),
            "extreme_rows": _extremes(stored),
        }
        return {**facts, "warnings": _warnings(facts, stored)}


def describe_folder(folder: Path) -> dict[str, Any]:
    """What the bags below a folder hold together, as plain JSON values, with what is wrong in some as warnings."""
    paths, others = find_bags(folder)
    if not paths:
        raise DataError(f"{folder}: no feature file found; give a folder of bags, a file, or a manifest")
    bags, warnings, lonely, sizes = [], [], 0, []
    for path in paths:
        try:
            facts = describe(path)
        except DataError as problem:
            warnings.append(str(problem))
            continue
        bags.append(facts)
        sizes.append(facts["instances"])
        if facts["instances"] < ALARM_FROM and _no_pairs(facts):
            lonely += 1
        else:
            warnings += [f"{path.relative_to(folder)}: {text}" for text in facts["warnings"]]
    if lonely:
        warnings.append(edgeless_note(lonely, len(bags)))
    hidden = len(warnings) - _SHOWN
    return {
        "file": str(folder),
        "bags": len(bags),
        "not_readable": len(paths) - len(bags),
        "formats": _counts(np.array([bag["format"] for bag in bags])),
        "dims": _counts(np.array([bag["dim"] for bag in bags])),
        "instances": {"least": min(sizes, default=0), "most": max(sizes, default=0), "all": sum(sizes)},
        "graphs": _counts(np.array([bag["graph"]["kind"] for bag in bags])),
        "without_neighbours": lonely,
        "left_aside": {reason: list(others.values()).count(reason) for reason in sorted(set(others.values()))},
        "warnings": [*warnings[:_SHOWN], *([f"and {hidden} more"] if hidden > 0 else [])],
    }


def _no_pairs(facts: dict[str, Any]) -> bool:
    return facts["degrees"] is not None and set(facts["degrees"]) == {"0"}


def _extent(coords: np.ndarray | None) -> dict[str, Any] | None:
    if coords is None:
        return None
    apart = nearest_distance(coords)
    extent = {"dtype": str(coords.dtype), "least": coords.min(0).tolist(), "largest": coords.max(0).tolist()}
    return {**extent, "nearest": None if np.isnan(apart) else apart}


def _extremes(stored: Stored, shown: int = 3) -> dict[str, str]:
    """The instances with the smallest and largest features: artefacts such as pen, glass or blank tiles stand out."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", stored.features, stored.features, dtype=np.float64))
    order = np.argsort(norms, kind="stable")
    order = order[np.isfinite(norms[order])]
    ends = {"smallest_norm": order[:shown], "largest_norm": order[::-1][:shown]}

    def described(row: int) -> str:
        place = "" if stored.coords is None else f" at ({', '.join(f'{v:.12g}' for v in stored.coords[row])})"
        return f"row {row}{place}: {norms[row]:.4g}"

    return {name: "; ".join(map(described, rows)) for name, rows in ends.items()}


def _medians(stored: Stored) -> dict[str, float] | None:
    """The middle of every fact of image quality over the instances that have it."""
    if stored.quality is None:
        return None
    known = [column[~np.isnan(column)] for column in stored.quality.T]
    return {n: float(np.median(k)) for n, k in zip(stored.quality_names(), known, strict=True) if len(k)}


def _counts(values: np.ndarray | None) -> dict[str, int] | None:
    if values is None:
        return None
    found, number = np.unique(values, return_counts=True)
    return {str(v): int(c) for v, c in zip(found, number, strict=True)}


def _warnings(facts: dict[str, Any], stored: Stored) -> list[str]:
    found = []
    if facts["checksum"] == "does not match":
        found.append("content does not match its checksum: the file is damaged")
    if facts["rows_not_finite"]:
        found.append(f"{facts['rows_not_finite']:,} rows hold NaN or Inf")
    isolated = facts["isolated_share"] or 0.0
    if isolated > ALARM_SHARE and facts["instances"] >= ALARM_FROM and stored.coords is not None:
        found.append(f"{isolated:.0%} of the instances have no neighbour, {stored.why_isolated()}")
    if 1 < facts["instances"] < ALARM_FROM and _no_pairs(facts):
        found.append(f"no two of the {facts['instances']} instances are neighbours: smoothing does nothing here")
    return found
