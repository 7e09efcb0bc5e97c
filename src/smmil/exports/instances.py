"""One row or feature per instance: CSV, Parquet and GeoJSON for QuPath."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.evaluate.case_words import case_numbers
from smmil.evaluate.suggestion import Region
from smmil.exports.case import ExportCase
from smmil.exports.geometry import SlideFacts, boxes, slide_facts
from smmil.exports.registry import ExportFormat, register_export
from smmil.files import (
    digest,
    escape_formula,
    file_name,
    need_file,
    remove_leftovers,
    replacing,
    table_text,
    write_text,
)
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame


_SIZES = {"x": "width", "y": "height", "z": "depth"}
_POSITIVE = {"name": "smmil positive", "color": [200, 30, 40]}
_NEGATIVE = {"name": "smmil negative", "color": [70, 110, 190]}
_UNDECIDED = {"name": "smmil tile", "color": [130, 130, 130]}
_TO_MARK = [250, 190, 40]


def _write_geojson(case: ExportCase, path: Path) -> None:
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
        regions = (json.dumps(feature, separators=(",", ":")) for feature in _regions(case, shown, facts, key))
        for number, text in enumerate(chain(regions, _tiles(case, shown, key))):
            file.write(",\n" + text if number else text)
        file.write("\n]}\n")


register_export(ExportFormat(
    "geojson", _write_geojson, (".geojson", ".json"),
    "one tile per instance; with a threshold merged regions and classes", "QuPath 0.4 and later, shapely",
    slide="optional", threshold="optional", extra="slides",
))  # fmt: skip


def write_suggestions(
    out: str | Path,
    regions: Sequence[Region],
    cases: Mapping[str, Prediction],
    images: Mapping[str, Path] | None = None,
) -> list[Path]:
    """Write regions worth marking into a folder: marks.csv with a row per patch, and of slides <id>.geojson for QuPath.

    The column label of the table is empty: filled in, and with the regions classed, the folder is one of corrections.
    A file that is there with other content is refused, since an expert may have worked on it.
    """
    by_case: dict[str, dict[int, Region]] = {}
    for rank, region in enumerate(regions, 1):
        by_case.setdefault(region.id, {})[rank] = region
    table, out = Path(out) / "marks.csv", Path(out)
    drawings = {id_: out / f"{file_name(id_)}.geojson" for id_ in by_case if _on_slide(cases[id_])}
    rows = [row for rank, region in enumerate(regions, 1) for row in _patch_rows(rank, region, cases[region.id])]
    texts = {
        path: _wanted(ExportCase(cases[id_], (images or {}).get(id_)), by_case[id_]) for id_, path in drawings.items()
    }
    texts[table] = table_text(("rank", "id", "instance", "x", "y", "z", "score", "doubt", "why", "label"), rows)
    there = {path for path in texts if path.exists()}
    for path in there:  # what a killed process of the same command wrote is not in the way
        if need_file(path).read_bytes() != texts[path].encode():
            raise DataError(f"{path}: is there already, maybe with your marks; give another folder with --out")
    remove_leftovers(out)  # also when there is nothing left to write
    for path in texts.keys() - there:
        write_text(path, texts[path])
    return [table, *drawings.values()]


def _on_slide(prediction: Prediction) -> bool:
    return prediction.coords is not None and prediction.coords.shape[1] == 2 and prediction.frame is not None


def _patch_rows(rank: int, region: Region, prediction: Prediction) -> Iterator[list[Any]]:
    coords = prediction.coords
    names = () if coords is None else {1: "z", 2: "xy", 3: "xyz"}[coords.shape[1]]
    for index in region.instances.tolist():
        place = {} if coords is None else dict(zip(names, coords[index].tolist(), strict=True))
        score = float(prediction.scores[index, -1])
        yield [
            rank,
            region.id,
            index,
            *(place.get(axis) for axis in "xyz"),
            score,
            round(region.doubt, 4),
            region.why,
            None,
        ]


def _wanted(case: ExportCase, regions: Mapping[int, Region]) -> str:
    """GeoJSON with the regions of a slide as annotations of QuPath, one each, free to be classed and redrawn."""
    from smmil.annotations.marks import WANTED

    shapely, facts = _shapely(), slide_facts(case)
    shown = boxes(case, facts) - np.tile(facts.offset, 2)
    features = []
    for rank, region in sorted(regions.items()):
        tiles = shown[region.instances]
        properties = {
            "objectType": "annotation",
            "name": f"mark {rank}",
            "classification": {"name": WANTED, "color": _TO_MARK},
            "isLocked": False,
            "measurements": {"patches": len(tiles), "doubt": region.doubt},
        }
        geometry = shapely.geometry.mapping(shapely.union_all(shapely.box(*tiles.T)))
        identifier = _identifier(digest(case.id, tiles.tobytes()), f"wanted {rank}")
        features.append({"type": "Feature", "id": identifier, "geometry": geometry, "properties": properties})
    return json.dumps({"type": "FeatureCollection", "smmil": _about(case, facts), "features": features})


def _shapely() -> Any:
    try:
        import shapely
    except ModuleNotFoundError:
        raise MissingExtra("shapely", "slides", "merging tiles into regions") from None
    return shapely


def _about(case: ExportCase, facts: SlideFacts) -> dict[str, Any]:
    return {
        "case": case.id,
        **case.facts,
        "case_probabilities": case.prediction.probs.tolist(),
        **case.target_facts,
        "threshold": case.threshold,
        "unit": "pixels of level 0, from the corner of the bounds",
        "bounds": None if facts.bounds is None else list(facts.bounds),
        "um_per_pixel": facts.mpp,
    }


def _tiles(case: ExportCase, rectangles: np.ndarray, key: str) -> Iterator[str]:
    """Texts of the tile features; put together by hand, since json.dumps takes three times as long."""
    kinds = [json.dumps(kind, separators=(",", ":")) for kind in (_NEGATIVE, _POSITIVE, _UNDECIDED)]
    chosen = np.full(len(rectangles), 2) if case.positive is None else case.positive.astype(int)
    names, columns = _measurements(case)
    template = ",".join(f'"{name}":%s' for name in names)
    rows = zip(rectangles.tolist(), chosen.tolist(), *columns, strict=True)
    for index, (corners, kind, *values) in enumerate(rows):
        left, top, right, bottom = (f"{v:.10g}" for v in corners)
        yield (
            f'{{"type":"Feature","id":"{_identifier(key, index)}","geometry":{{"type":"Polygon","coordinates":[['
            f"[{left},{top}],[{right},{top}],[{right},{bottom}],[{left},{bottom}],[{left},{top}]]]}},"
            f'"properties":{{"objectType":"tile","classification":{kinds[kind]},"isLocked":true,'
            f'"measurements":{{{template % tuple(values)}}}}}}}'
        )


def _measurements(case: ExportCase) -> tuple[list[str], list[list[str]]]:
    """Names of the measurements and one list of JSON numbers for each; nan is the text that QuPath expects."""
    found: dict[str, Any] = {"score": case.score, "percentile": case.percentile, "probability": case.probability}
    if case.prediction.scores.shape[1] > 1:
        found |= {f"score {k}": column for k, column in enumerate(case.prediction.scores.T)}
    found |= {layer.name: getattr(case.prediction, layer.name) for layer in case.prediction.layers}
    if case.prediction.y_inst is not None:
        found["label"] = np.where(case.prediction.y_inst < 0, np.nan, case.prediction.y_inst)
    return list(found), [[f"{v:.9g}" if v == v else '"NaN"' for v in column.tolist()] for column in found.values()]


def _regions(case: ExportCase, rectangles: np.ndarray, facts: SlideFacts, key: str) -> Iterator[dict[str, Any]]:
    """Positive tiles that touch or overlap, merged into one annotation each, holes kept; hottest first."""
    if case.positive is None or not case.positive.any():
        return
    shapely = _shapely()
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
        "classification": _POSITIVE,
        "isLocked": True,
        "measurements": measured,
        "metadata": case.facts,
    }
    shape = {"type": "Polygon", "coordinates": rings}
    return {"type": "Feature", "id": _identifier(key, f"region {number}"), "geometry": shape, "properties": properties}


def _coordinate(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 4)


def _identifier(key: str, what: object) -> str:
    """A valid random-style UUID (version 4) that is the same for the same case, scores and instance."""
    data = bytearray(hashlib.sha256(f"{key} {what}".encode()).digest()[:16])
    data[6], data[8] = data[6] & 0x0F | 0x40, data[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(data)))


def _write_csv(case: ExportCase, path: Path) -> None:
    """Write the table as CSV (UTF-8), provenance in every row; texts a spreadsheet would compute begin with '."""
    table = _instance_table(case)
    for key, value in {"bag": case.id, **case.facts}.items():
        table[key] = escape_formula(value)
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n", encoding="utf-8")


register_export(ExportFormat(
    "csv", _write_csv, (".csv",), "one row per instance; with a threshold the column `positive`",
    "pandas, R, spreadsheets", slide="optional", scan="optional", unplaced=True, threshold="optional",
))  # fmt: skip


def _write_parquet(case: ExportCase, path: Path) -> None:
    """Write the table as Parquet; provenance is JSON under the key `smmil` of the file's metadata."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pandas(_instance_table(case), preserve_index=False)
    about = {**case.facts, "case": case.id, "threshold": case.threshold}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"smmil": json.dumps(about).encode()})
    with replacing(path) as temporary:
        parquet.write_table(table, temporary)


register_export(ExportFormat(
    "parquet", _write_parquet, (".parquet",), "the same rows, typed, provenance in the metadata", "pandas, R, DuckDB",
    slide="optional", scan="optional", unplaced=True, threshold="optional",
))  # fmt: skip


def _instance_table(case: ExportCase) -> "DataFrame":
    """bag, x, y(, z), width, height, score, probability, label; then percentile, physical places and bounds.

    x, y and z are the prediction's own coordinates: level-0 pixels of a slide, slices of a scan counted from the foot.
    What is not known is empty: the label of an unlabelled instance, the probability behind an attention score, the
    places of a case without coordinates. With a calibration `probability` is the calibrated one, and two columns are
    about the case: its calibrated probability, and the classes that cannot be excluded. Uncertainty and strangeness are
    columns where they are known.
    """
    from pandas import DataFrame

    prediction = case.prediction
    labels = np.full(prediction.n, -1) if prediction.y_inst is None else prediction.y_inst
    columns: dict[str, Any] = {
        "bag": case.id,
        **_positions(case),
        "score": case.score,
        "probability": case.probability,
        "label": DataFrame({"y": labels})["y"].astype("Int64").mask(labels < 0),
        "percentile": case.percentile,
        **_case_columns(prediction),
    }
    if (said := case.calibrated_case) is not None:
        possible = "" if said.classes is None else said.named(said.classes).replace(" and ", " or ") or "none"
        columns |= {"case_probability_calibrated": said.probability, "case_classes_possible": possible}
    if prediction.scores.shape[1] > 1:
        columns |= {f"score_{k}": column for k, column in enumerate(prediction.scores.T)}
    columns |= {layer.name: getattr(prediction, layer.name) for layer in prediction.layers}
    if case.positive is not None:
        columns["positive"] = case.positive
    return DataFrame({**columns, **_physical(case, columns)}, index=range(prediction.n))


def _case_columns(prediction: Prediction) -> dict[str, Any]:
    """The case's probability; of a target that is no class its number and the probability of each label or time."""
    if prediction.target_kind != "class":
        return case_numbers(prediction)
    return {"case_probability": prediction.probs[-1] if len(prediction.probs) < 3 else np.nan}


def _positions(case: ExportCase) -> dict[str, Any]:
    """Slices have no x and y of their own; with the image at hand they are as wide and high as it is."""
    coords, frame = case.prediction.coords, case.prediction.frame
    if coords is None:
        case.notes.append("the prediction stores no coordinates: the places of its instances are empty")
        return dict.fromkeys(("x", "y", "width", "height"), np.nan)
    if case.axes == 1:
        known = case.image is not None
        corner, (height, width) = (0, case.volume("a table").shape[1:]) if known else (np.nan, (np.nan, np.nan))
        return {"x": corner, "y": corner, "z": coords[:, 0], "width": width, "height": height}
    sizes = (np.nan,) * case.axes if frame is None else (frame.patch * case.axes)[: case.axes]
    return {**dict(zip("xyz", coords.T, strict=False)), **dict(zip(_SIZES.values(), sizes, strict=False))}


def _physical(case: ExportCase, columns: dict[str, Any]) -> dict[str, Any]:
    """Places and sizes in µm or mm where the spacing is known (of pixels of a slide: their size), and its bounds."""
    if case.prediction.coords is None:
        return {}
    facts, frame = slide_facts(case) if case.axes == 2 else SlideFacts(), case.prediction.frame
    found: dict[str, Any] = {}
    if frame is not None and (frame.spacing is not None or facts.mpp is not None):
        spacing, unit = ((facts.mpp,), "um") if frame.spacing is None else (frame.spacing, frame.unit)
        names = {1: "z", 2: "xy", 3: "xyz"}[case.axes]
        for name, step in zip(names, spacing * len(names), strict=False):
            found[f"{name}_{unit}"] = columns[name] * step
            if case.axes > 1:
                found[f"{_SIZES[name]}_{unit}"] = columns[_SIZES[name]] * step
    return {**found, **dict(zip(("bounds_x", "bounds_y"), facts.bounds or (), strict=False))}
