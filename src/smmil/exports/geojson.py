"""Tiles and regions for QuPath (0.4 and later), and for anything else that reads GeoJSON."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from smmil.errors import MissingExtra
from smmil.exports.case import ExportCase
from smmil.exports.geometry import SlideFacts, boxes, slide_facts
from smmil.files import digest, replacing

POSITIVE = {"name": "smmil positive", "color": [200, 30, 40]}
NEGATIVE = {"name": "smmil negative", "color": [70, 110, 190]}
UNDECIDED = {"name": "smmil tile", "color": [130, 130, 130]}


def write_geojson(case: ExportCase, path: Path) -> None:
    """Write every instance as a tile with its measurements; with a threshold also the merged regions above it.

    Coordinates are level-0 pixels minus the corner of the slide's bounds, as QuPath counts them. Features are
    written one by one, so a slide of a million tiles needs no more memory than its arrays.
    """
    case.need_slide("GeoJSON")
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    key = digest(case.id, json.dumps(case.facts, sort_keys=True), rectangles.tobytes(), case.score.tobytes())
    shown = rectangles - np.tile(facts.offset, 2)
    with replacing(path) as temporary, temporary.open("w", encoding="ascii", newline="\n") as file:
        file.write(f'{{"type":"FeatureCollection","smmil":{json.dumps(_about(case, facts))},"features":[\n')
        before = ""
        for feature in _regions(case, shown, facts, key):
            file.write(before + json.dumps(feature, separators=(",", ":")))
            before = ",\n"
        for text in _tiles(case, shown, key):
            file.write(before + text)
            before = ",\n"
        file.write("\n]}\n")


def _about(case: ExportCase, facts: SlideFacts) -> dict[str, Any]:
    return {
        "case": case.id,
        **case.facts,
        "case_probabilities": case.prediction.probs.tolist(),
        "threshold": case.threshold,
        "unit": "pixels of level 0, from the corner of the bounds",
        "bounds": None if facts.bounds is None else list(facts.bounds),
        "um_per_pixel": facts.mpp,
    }


def _tiles(case: ExportCase, rectangles: np.ndarray, key: str) -> Iterator[str]:
    """Texts of the tile features; put together by hand, since json.dumps takes three times as long."""
    kinds = [json.dumps(kind, separators=(",", ":")) for kind in (NEGATIVE, POSITIVE, UNDECIDED)]
    chosen = np.full(len(rectangles), 2) if case.positive is None else case.positive.astype(int)
    names, columns = _measurements(case)
    template = ",".join(f'"{name}":%s' for name in names)
    rows = zip(rectangles.tolist(), chosen.tolist(), *columns, strict=True)
    for index, (corners, kind, *values) in enumerate(rows):
        left, top, right, bottom = (f"{v:.10g}" for v in corners)
        yield (
            f'{{"type":"Feature","id":"{identifier(key, index)}","geometry":{{"type":"Polygon","coordinates":[['
            f"[{left},{top}],[{right},{top}],[{right},{bottom}],[{left},{bottom}],[{left},{top}]]]}},"
            f'"properties":{{"objectType":"tile","classification":{kinds[kind]},"isLocked":true,'
            f'"measurements":{{{template % tuple(values)}}}}}}}'
        )


def _measurements(case: ExportCase) -> tuple[list[str], list[list[str]]]:
    """Names of the measurements and one list of JSON numbers for each; nan is the text that QuPath expects."""
    found: dict[str, Any] = {"score": case.score, "percentile": case.percentile, "probability": case.probability}
    if case.prediction.scores.shape[1] > 1:
        found |= {f"score {k}": column for k, column in enumerate(case.prediction.scores.T)}
    if case.prediction.y_inst is not None:
        found["label"] = np.where(case.prediction.y_inst < 0, np.nan, case.prediction.y_inst)
    return list(found), [[_number(v) for v in column.tolist()] for column in found.values()]


def _number(value: float) -> str:
    return f"{value:.9g}" if value == value else '"NaN"'


def _regions(case: ExportCase, rectangles: np.ndarray, facts: SlideFacts, key: str) -> Iterator[dict[str, Any]]:
    """Positive tiles that touch or overlap, merged into one annotation each, holes kept; hottest first."""
    if case.positive is None or not case.positive.any():
        return
    try:
        import shapely
    except ModuleNotFoundError:
        raise MissingExtra("shapely", "slides", "merging tiles into regions") from None
    hot, scores = rectangles[case.positive], case.score[case.positive].astype(np.float64)
    tiles = shapely.box(*hot.T)
    parts = shapely.get_parts(shapely.union_all(tiles))
    members: dict[int, list[int]] = {}
    centres = shapely.centroid(tiles)
    for tile, region in shapely.STRtree(parts).query(centres, predicate="intersects").T.tolist():
        members.setdefault(region, []).append(tile)
    regions = [(parts[region], scores[inside]) for region, inside in members.items()]
    for number, (polygon, inside) in enumerate(sorted(regions, key=lambda r: (-r[1].max(), r[0].bounds))):
        yield _annotation(case, shapely.orient_polygons(polygon), inside, number, facts, key)


def _annotation(
    case: ExportCase, polygon: Any, scores: np.ndarray, number: int, facts: SlideFacts, key: str
) -> dict[str, Any]:
    rings = [
        [[_coordinate(x), _coordinate(y)] for x, y in ring.coords] for ring in (polygon.exterior, *polygon.interiors)
    ]
    measured = {"tiles": len(scores), "score max": float(scores.max()), "score mean": float(scores.mean())}
    measured |= {"area px^2": polygon.area}
    if facts.mpp is not None:
        measured["area um^2"] = polygon.area * facts.mpp**2
    properties = {
        "objectType": "annotation",
        "name": f"region {number + 1}",
        "classification": POSITIVE,
        "isLocked": True,
        "measurements": measured,
        "metadata": case.facts,
    }
    shape = {"type": "Polygon", "coordinates": rings}
    return {"type": "Feature", "id": identifier(key, f"region {number}"), "geometry": shape, "properties": properties}


def _coordinate(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 4)


def identifier(key: str, what: object) -> str:
    """A valid random-style UUID (version 4) that is the same for the same case, scores and instance."""
    data = bytearray(hashlib.sha256(f"{key} {what}".encode()).digest()[:16])
    data[6], data[8] = data[6] & 0x0F | 0x40, data[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(data)))
