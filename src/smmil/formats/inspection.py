"""Plain facts about a feature file, also about one that could not be used."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from smmil.formats import all_facts, find_reader
from smmil.formats.boundary import boundary
from smmil.formats.content import Stored
from smmil.formats.neighbours import ALARM_FROM, ALARM_SHARE, nearest_distance
from smmil.graph import Graph


def describe(path: str | Path) -> dict[str, Any]:
    """What a feature file holds, as plain JSON values; only a file that cannot be read at all is an error."""
    path = Path(path)
    with boundary(path):
        reader = find_reader(path)
        stored = reader.load(path)
        facts = {"file": str(path), "format": reader.name, "id": stored.id, **_rows(stored), **_place(stored)}
        facts.update(_neighbours(stored, stored.graph()))
        facts["provenance"] = all_facts(path, stored)
        facts["checksum"] = _checksum(stored)
        facts["instance_labels"] = _counts(stored.y_inst)
        facts["extreme_rows"] = _extremes(stored)
        return {**facts, "warnings": _warnings(facts)}


def _rows(stored: Stored) -> dict[str, Any]:
    bad = np.flatnonzero(~np.isfinite(stored.features).all(1))
    n, dim = stored.features.shape
    return {"instances": n, "dim": dim, "dtype": str(stored.features.dtype), "rows_not_finite": len(bad)}


def _place(stored: Stored) -> dict[str, Any]:
    if stored.coords is None:
        return {"coords": None, "frame": json.loads(stored.frame)}
    extent = [stored.coords.min(0).tolist(), stored.coords.max(0).tolist()]
    apart = nearest_distance(stored.coords)
    facts = {"dtype": str(stored.coords.dtype), "least": extent[0], "largest": extent[1]}
    facts["nearest"] = None if np.isnan(apart) else apart
    return {"coords": facts, "frame": json.loads(stored.frame)}


def _neighbours(stored: Stored, graph: Graph | None) -> dict[str, Any]:
    rule = json.loads(stored.rule)
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
