"""Facts about feature files, and which files of a folder are bags."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.formats import _choose_reader, find_reader
from smmil.formats.content import ALARM_FROM, ALARM_SHARE, Stored, _nearest_distance
from smmil.formats.hdf5 import ENDINGS, _layout, boundary
from smmil.formats.lazyslide import _LazySlideReader

_is_store = _LazySlideReader().recognises


def find_bags(source: str | Path, leave_out: Path | None = None) -> tuple[list[Path], dict[str, str]]:
    """Feature files and stores below `source` in a fixed order, and the files that are none, with the reason.

    Damaged files count as bags: they fail by name later on. The folder `leave_out` is not entered.
    """
    source = Path(source)
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.is_file() or _is_store(source):
        return [source], {}
    bags: list[Path] = []
    others: dict[str, str] = {}
    for folder, names in _walk(source, leave_out):
        for name in names:
            path = folder / name
            reason = _why_not(path)
            if reason is None:
                bags.append(path)
            else:
                others[str(path.relative_to(source))] = reason
    return bags, others


def _walk(source: Path, leave_out: Path | None) -> list[tuple[Path, list[str]]]:
    """Every folder with its candidates in sorted order; a zarr store is a candidate, not a folder."""
    places = []
    for folder, below, files in os.walk(source):
        here = Path(folder)
        stores = [name for name in below if _is_store(here / name)]
        left_out = [name for name in below if leave_out is not None and (here / name).resolve() == leave_out.resolve()]
        below[:] = sorted({*below} - {*stores, *left_out})
        endings = (*ENDINGS, ".pt", ".npy", ".csv")
        candidates = [name for name in files if name.lower().endswith(endings) and not name.startswith(".")]
        places.append((here, sorted(candidates + stores)))
    return places


def _why_not(path: Path) -> str | None:
    """Why a file is not a bag of its own; None when it is one, or should be."""
    ending = path.suffix.lower()
    if ending == ".pt" and (path.parent.parent / "h5_files" / f"{path.stem}.h5").is_file():
        return "the same features as in h5_files"
    if ending == ".npy" and not path.absolute().parent.name.startswith("features"):
        return "not in a folder of features"
    if ending == ".csv":
        return None if find_or_none(path) else "a table, not the patches of a case"
    if ending in ENDINGS:
        with suppress(DataError), boundary(path):
            return "coordinates without features" if _layout(path) == "positions" else None
    return None


def find_or_none(path: Path) -> str | None:
    """Name of the reader that recognises a file, or None."""
    try:
        return find_reader(path).name
    except DataError:
        return None


def describe(path: str | Path) -> dict[str, Any]:
    """What a feature file holds, as plain JSON values; only a file that cannot be read at all is an error."""
    path = Path(path)
    with boundary(path):
        reader = _choose_reader(path)
        stored = reader.read(path)
        facts = {"file": str(path), "format": reader.name, "id": stored.id, **_rows(stored), **_place(stored)}
        facts |= _neighbours(stored)
        facts["provenance"] = reader.all_facts(path, stored)
        facts["checksum"] = _checksum(stored)
        facts["instance_labels"] = _counts(stored.y_inst)
        facts["extreme_rows"] = _extremes(stored)
        return {**facts, "warnings": _warnings(facts)}


def _rows(stored: Stored) -> dict[str, Any]:
    n, dim = stored.features.shape
    bad = int((~np.isfinite(stored.features).all(1)).sum())
    return {"instances": n, "dim": dim, "dtype": str(stored.features.dtype), "rows_not_finite": bad}


def _place(stored: Stored) -> dict[str, Any]:
    if stored.coords is None:
        return {"coords": None, "frame": json.loads(stored.frame)}
    apart = _nearest_distance(stored.coords)
    facts = {
        "dtype": str(stored.coords.dtype),
        "least": stored.coords.min(0).tolist(),
        "largest": stored.coords.max(0).tolist(),
        "nearest": None if np.isnan(apart) else apart,
    }
    return {"coords": facts, "frame": json.loads(stored.frame)}


def _neighbours(stored: Stored) -> dict[str, Any]:
    rule, graph = json.loads(stored.rule), stored.graph()
    if graph is None:
        return {"graph": rule, "degrees": None, "isolated_share": None}
    return {"graph": rule, "degrees": _counts(graph.indptr.diff().numpy()), "isolated_share": graph.isolated_share}


def _extremes(stored: Stored, shown: int = 3) -> dict[str, str]:
    """The instances with the smallest and largest features: artefacts such as pen, glass or blank tiles stand out."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", stored.features, stored.features, dtype=np.float64))
    order = np.argsort(norms, kind="stable")
    order = order[np.isfinite(norms[order])]
    ends = {"smallest_norm": order[:shown], "largest_norm": order[::-1][:shown]}
    return {name: "; ".join(_row(stored, row, norms[row]) for row in rows) for name, rows in ends.items()}


def _row(stored: Stored, row: int, norm: float) -> str:
    place = "" if stored.coords is None else f" at ({', '.join(f'{v:.12g}' for v in stored.coords[row])})"
    return f"row {row}{place}: {norm:.4g}"


def _checksum(stored: Stored) -> str:
    if stored.sha256 is None:
        return "absent"
    return "matches" if stored.digest() == stored.sha256 else "does not match"


def _counts(values: np.ndarray | None) -> dict[str, int] | None:
    if values is None:
        return None
    found, number = np.unique(values, return_counts=True)
    return {str(v): int(c) for v, c in zip(found, number, strict=True)}


def _warnings(facts: dict[str, Any]) -> list[str]:
    found = []
    if facts["checksum"] == "does not match":
        found.append("content does not match its checksum: the file is damaged")
    if facts["rows_not_finite"]:
        found.append(f"{facts['rows_not_finite']:,} rows hold NaN or Inf")
    isolated = facts["isolated_share"] or 0.0
    if isolated > ALARM_SHARE and facts["instances"] >= ALARM_FROM:
        found.append(f"{isolated:.0%} of the instances have no neighbour: the step in the file is probably wrong")
    return found
