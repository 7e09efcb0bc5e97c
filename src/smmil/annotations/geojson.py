"""Polygons in GeoJSON as QuPath exports them: level-0 pixels, counted from the corner of the scanned area."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from smmil.annotations.boundary import explained, read_bytes
from smmil.annotations.shapes import Drawn, Shapes, joined, ring
from smmil.errors import DataError


def read_geojson(path: str | Path, positive: Collection[str] | None = None) -> Shapes:
    """The lesions of a GeoJSON file: a FeatureCollection, a list of features, one feature or one geometry."""
    path = Path(path)
    with explained(path, "GeoJSON"):
        drawn, flat = [], 0
        for name, geometry in _geometries(json.loads(read_bytes(path))):
            found = list(_polygons(geometry, name))
            flat += not found
            drawn += found
        notes = (f"{flat} feature(s) without area (points, lines) were passed over",) if flat else ()
        return joined(drawn, positive, notes)


def _geometries(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Class name and geometry of every feature."""
    if isinstance(content, dict) and content.get("type") == "FeatureCollection":
        content = content["features"]
    if isinstance(content, dict) and "coordinates" in content:
        content = [{"type": "Feature", "geometry": content}]
    for feature in content if isinstance(content, list) else [content]:
        if not isinstance(feature, dict) or feature.get("type") != "Feature":
            raise DataError("expected a FeatureCollection, features or a geometry of GeoJSON")
        if feature.get("geometry") is not None:
            yield _name(feature.get("properties") or {}), feature["geometry"]


def _name(properties: dict[str, Any]) -> str:
    """QuPath's classification: a dictionary with its name, in old exports the name itself."""
    held = properties.get("classification")
    name = held.get("name", "") if isinstance(held, dict) else held
    return "" if name is None else str(name)


def _polygons(geometry: dict[str, Any], name: str) -> Iterator[Drawn]:
    kind = geometry["type"]
    if kind == "GeometryCollection":
        for part in geometry["geometries"]:
            yield from _polygons(part, name)
    elif kind in ("Polygon", "MultiPolygon"):
        for rings in [geometry["coordinates"]] if kind == "Polygon" else geometry["coordinates"]:
            if rings:
                yield Drawn(ring(rings[0]), tuple(ring(inner) for inner in rings[1:]), name)
    elif kind not in ("Point", "MultiPoint", "LineString", "MultiLineString"):
        raise DataError(f"unknown geometry {str(kind)[:40]!r}; expected Polygon or MultiPolygon")
