"""Lesion polygons from ASAP XML, QuPath GeoJSON and box tables, merged.

Self-crossing (self-intersecting) polygons are repaired; those with too many crossings are refused.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

import numpy as np
import pandas as pd

from smmil.annotations.labels import _read_bytes, annotation_errors
from smmil.errors import DataError, MissingExtra
from smmil.files import check_csv_width

_LESIONS = ("_0", "_1", "tumor", "tumour", "lesion", "cancer", "metastasis", "metastases", "positive", "", "none")
_HOLES = ("_2", "exclusion")


def _sorted_classes(found: Iterable[str], positive: Collection[str] | None) -> dict[str, str]:
    """lesion, hole or other for every class name that occurs; case does not matter.

    Without `positive` the names above are known, shapes without a name are lesions, and any other name is refused,
    since it could be necrosis as well as tumour. With `positive` these names are the lesions; holes stay holes.
    """
    plain = {name: name.strip().lower() for name in sorted(set(found))}
    wanted = {*_LESIONS} if positive is None else {str(name).strip().lower() for name in positive}
    roles = {name: "lesion" if p in wanted else "hole" if p in _HOLES else "other" for name, p in plain.items()}
    strange = next((name for name, role in roles.items() if role == "other"), None)
    if positive is None and strange is not None:
        which = f"say which of {_listed(list(plain))} are lesions (--positive)"
        raise DataError(f"class {strange!r} is not known as lesion or hole; {which}")
    if plain and positive is not None and "lesion" not in roles.values():
        raise DataError(f"no shape of class {_listed(sorted(wanted))}; the file has {_listed(list(plain))}")
    return roles


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(repr(name) for name in names[:8]) + more


# No slide has a million pixels on a side; numbers far beyond are damage, and their squares lose all precision.
_FARTHEST = 1e8


@dataclass(frozen=True)
class _RawPolygon:
    """One closed shape as the file has it: outer ring, inner rings (holes), name of its class."""

    outer: np.ndarray
    inner: tuple[np.ndarray, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class _Shapes:
    """Annotated area in pixels of the annotation, and warnings about it."""

    area: Any = field(repr=False)  # shapely geometry: union of all lesions without the holes
    notes: tuple[str, ...] = ()  # shapes that were repaired, had no area, or were of other classes


def _shapely() -> Any:
    try:
        import shapely
    except ImportError:
        raise MissingExtra("shapely", "slides", "reading polygons") from None
    return shapely


def _ring(points: Any) -> np.ndarray:
    """Points of a ring as (n, 2) finite numbers."""
    corners = np.asarray(points, dtype=np.float64)
    if corners.size == 0:
        return np.zeros((0, 2))
    if corners.ndim != 2 or corners.shape[1] < 2:
        raise DataError(f"a ring must be a list of x, y, got numbers of shape {corners.shape}")
    corners = corners[:, :2]
    if not (np.abs(corners) <= _FARTHEST).all():
        raise DataError("a corner lies beyond any slide, or is no number; export the annotation again")
    return corners


def _joined(drawn: Sequence[_RawPolygon], positive: Collection[str] | None, notes: Iterable[str] = ()) -> _Shapes:
    """The annotated area: union of the lesions minus union of the holes."""
    shapely = _shapely()
    roles = _sorted_classes((shape.name for shape in drawn), positive)
    parts: dict[str, list[Any]] = {"lesion": [], "hole": [], "other": []}
    repaired = flat = 0
    for number, shape in enumerate(drawn, 1):
        try:
            geometry, sound = _polygon(shapely, shape)
        except DataError as problem:
            raise DataError(f"annotation {number} (class {shape.name[:80]!r}): {problem}") from None
        repaired += not sound
        flat += geometry.is_empty
        parts[roles[shape.name]].append(geometry)
    try:
        area = _union(shapely, parts["lesion"])
        if parts["hole"]:
            holes = _union(shapely, parts["hole"])
            if _has_too_many_crossings(shapely, [area, holes]):
                raise DataError(f"lesions and holes are {_TOO_MANY_CROSSINGS}")
            area = area.difference(holes)
    except shapely.errors.ShapelyError as problem:
        raise DataError(f"polygons cannot be joined ({problem}); draw them again") from None
    counts = (
        (repaired, "crossed themselves; areas enclosed an odd number of times count"),
        (flat, "have no area and count for nothing"),
        (len(parts["other"]), "are of other classes and were passed over"),
    )
    return _Shapes(area, (*notes, *(f"{count} shape(s) {what}" for count, what in counts if count)))


def _polygon(shapely: Any, shape: _RawPolygon) -> tuple[Any, bool]:
    """The shape as valid polygons, and whether it was valid as drawn; nothing when it has no area."""
    if len(shape.outer) < 3:
        return shapely.Polygon(), True
    try:
        polygon = shapely.Polygon(shape.outer, [inner for inner in shape.inner if len(inner) >= 3])
        large = shapely.get_num_coordinates(polygon) > _QUICK  # where is_valid alone may take long
        if (large or not polygon.is_valid) and _has_too_many_crossings(shapely, [polygon], _MOST_CROSSINGS):
            raise DataError(f"a polygon of {len(shape.outer):,} corners is {_TOO_MANY_CROSSINGS}")
        if polygon.is_valid:
            return (polygon if polygon.area > 0 else shapely.Polygon()), True
        if _has_too_many_crossings(shapely, [polygon], _FEW_CROSSINGS):
            return _even_odd_fill(shapely, polygon), False
        faces = [part for part in shapely.get_parts(shapely.make_valid(polygon)) if part.area > 0]
        return shapely.union_all(faces), not faces
    except (shapely.errors.ShapelyError, ValueError) as problem:
        raise DataError(f"a polygon of {len(shape.outer)} corners makes no sense ({problem})") from None


# GEOS repairs rings in steps, each as long as all crossings together, and joins shapes crossing by crossing: beyond the
# first number a faster way is taken, beyond the second the drawing is refused. No hand draws so many.
_FEW_CROSSINGS, _MOST_CROSSINGS, _MOST_NEIGHBOURS = 1000, 10_000, 4_000_000
_QUICK, _SAMPLE, _PAIRS_AT_ONCE = 4000, 50_000, 1_000_000
_TOO_MANY_CROSSINGS = (
    f"too tangled: sides cross more than {_MOST_CROSSINGS:,} times or lie close in great number; draw it again"
)


def _has_too_many_crossings(shapely: Any, shapes: Sequence[Any], meetings: int | None = None) -> bool:
    """Whether sides meet more often than this, apart from neighbours in a ring, or are too many to compare.

    Several shapes may cross once per side, and some more: what they take to join grows with their sides anyway. Of
    more than 50,000 sides, so many are looked at.
    """
    corners, ring = shapely.get_coordinates(shapely.get_rings(shapely.get_parts(shapes)), return_index=True)
    sides = np.flatnonzero((ring[1:] == ring[:-1]) & (corners[1:] != corners[:-1]).any(1))
    most = _MOST_CROSSINGS + len(sides) if meetings is None else meetings
    close, share = _MOST_NEIGHBOURS + 20 * len(sides), min(1.0, _SAMPLE / max(1, len(sides))) ** 2
    if share < 1:
        sides = np.sort(np.random.default_rng(0).choice(sides, _SAMPLE, replace=False))
    start, end = corners[sides], corners[sides + 1]
    low, high = np.minimum(start, end), np.maximum(start, end)
    boxes = shapely.box(*low.T, *high.T)
    # No side has more neighbours than overlap it along one axis: parts of at most so many pairs fit into memory.
    rows, columns = (
        np.sort(a).searchsorted(b, "right") - np.sort(b).searchsorted(a) for a, b in zip(low.T, high.T, strict=True)
    )
    parts = np.minimum(rows, columns).cumsum() // _PAIRS_AT_ONCE
    tree, near, found = shapely.STRtree(boxes), 0, 0
    for part in np.split(np.arange(len(boxes)), np.flatnonzero(np.diff(parts)) + 1):
        one, other = tree.query(boxes[part])
        one = part[one]
        pair = (other > one) & (sides[other] != sides[one] + 1) & (end[other] != start[one]).any(1)
        one, other = one[pair], other[pair]
        near += len(one)
        found += int((_on_both_sides(start, end, one, other) & _on_both_sides(start, end, other, one)).sum())
        if near > close * share or found > most * share:
            return True
    return False


def _on_both_sides(start: np.ndarray, end: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether the line through side `one` has the ends of side `other` on different sides of it, or on itself."""
    (x, y), (u, v), (s, t) = (end[one] - start[one]).T, (start[other] - start[one]).T, (end[other] - start[one]).T
    return (x * v - y * u) * (x * t - y * s) <= 0


def _even_odd_fill(shapely: Any, polygon: Any) -> Any:
    """The faces between crossing rings that these enclose an odd number of times: make_valid in one step."""
    faces = shapely.get_parts(shapely.polygonize([shapely.node(polygon.boundary)]))
    inside = shapely.point_on_surface(faces)
    shapely.prepare(polygon)
    return shapely.coverage_union_all(faces[shapely.contains_xy(polygon, *shapely.get_coordinates(inside).T)])


def _union(shapely: Any, shapes: Sequence[Any]) -> Any:
    """Their union; where they cross too often for one step, halves are joined first, which dissolves what overlaps."""
    if len(shapes) > 1 and _has_too_many_crossings(shapely, shapes):
        shapes = [_union(shapely, shapes[: len(shapes) // 2]), _union(shapely, shapes[len(shapes) // 2 :])]
        if _has_too_many_crossings(shapely, shapes):
            raise DataError(f"the shapes together are {_TOO_MANY_CROSSINGS}")
    return shapely.union_all(shapes)


_WITH_AREA = ("polygon", "rectangle", "spline")


def read_asap(path: str | Path, positive: Collection[str] | None = None) -> _Shapes:
    """The lesions of an ASAP file: groups _0, _1 and Tumor without _2 and Exclusion, or the groups in `positive`."""
    path = Path(path)
    with annotation_errors(path, "ASAP annotations"):
        collector = _Collector()
        collector.feed(_read_bytes(path))
        return _joined(collector.drawn, positive, collector.notes())


class _Collector:
    """Collects annotations while parsing; document types (expansion of XML entities, an attack) are refused."""

    def __init__(self) -> None:
        self.drawn: list[_RawPolygon] = []
        self.splines = 0
        self._roots: list[str] = []
        self._open: tuple[str, str] | None = None
        self._corners: list[tuple[float, float, float]] = []
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, content: bytes) -> None:
        self._parser.Parse(content, True)
        if self._roots[0] != "ASAP_Annotations":
            raise DataError(f"the document is <{self._roots[0]}>, expected <ASAP_Annotations>")

    def notes(self) -> tuple[str, ...]:
        return (f"{self.splines} spline(s) are taken as polygons through their points",) if self.splines else ()

    def _refuse_doctype(self, *_: object) -> NoReturn:
        raise DataError("the XML declares a document type, which annotations never need; refused for safety")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._roots.append(tag) if not self._roots else None
        if tag == "Annotation":
            self._begin(attributes)
        elif tag == "Coordinate" and self._open is not None:
            number, x, y = (float(attributes[name]) for name in ("Order", "X", "Y"))
            self._corners.append((number, x, y))

    def _begin(self, attributes: dict[str, str]) -> None:
        kind = attributes.get("Type", "Polygon")
        if kind.lower() not in _WITH_AREA:
            raise DataError(f"annotation {attributes.get('Name', '')!r} is a {kind}, which has no area; draw a polygon")
        self.splines += kind.lower() == "spline"
        self._open, self._corners = (attributes.get("Name", ""), attributes.get("PartOfGroup", "")), []

    def _end(self, tag: str) -> None:
        if tag == "Annotation" and self._open is not None:
            corners = np.array(sorted(self._corners, key=lambda corner: corner[0])).reshape(-1, 3)
            self.drawn.append(_RawPolygon(_ring(corners[:, 1:]), name=self._open[1]))
            self._open = None


def read_geojson(path: str | Path, positive: Collection[str] | None = None) -> _Shapes:
    """The lesions of a GeoJSON file: a FeatureCollection, a list of features, one feature or one geometry."""
    path = Path(path)
    with annotation_errors(path, "GeoJSON"):
        drawn, flat = [], 0
        for name, geometry in _geometries(json.loads(_read_bytes(path))):
            found = list(_polygons(geometry, name))
            flat += not found
            drawn += found
        notes = (f"{flat} feature(s) without area (points, lines) were passed over",) if flat else ()
        return _joined(drawn, positive, notes)


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


def _polygons(geometry: dict[str, Any], name: str) -> Iterator[_RawPolygon]:
    kind = geometry["type"]
    if kind == "GeometryCollection":
        for part in geometry["geometries"]:
            yield from _polygons(part, name)
    elif kind in ("Polygon", "MultiPolygon"):
        for rings in [geometry["coordinates"]] if kind == "Polygon" else geometry["coordinates"]:
            if rings:
                yield _RawPolygon(_ring(rings[0]), tuple(_ring(inner) for inner in rings[1:]), name)
    elif kind not in ("Point", "MultiPoint", "LineString", "MultiLineString"):
        raise DataError(f"unknown geometry {str(kind)[:40]!r}; expected Polygon or MultiPolygon")


_CORNER_AND_SIZE = (("x", "y", "width", "height"), ("minx", "miny", "width", "height"))
_TWO_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x0", "y0", "x1", "y1"))
_CLASS = ("class", "label", "name")


def read_table(path: Path) -> pd.DataFrame:
    """A CSV file as text, with column names in small letters."""
    content = BytesIO(_read_bytes(check_csv_width(path)))
    table = pd.read_csv(content, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    return table.rename(columns=lambda name: str(name).strip().lower())


def is_boxes(columns: Collection[str]) -> bool:
    return any(set(names) <= set(columns) for names in (*_CORNER_AND_SIZE, *_TWO_CORNERS))


def read_boxes(path: str | Path, positive: Collection[str] | None = None) -> _Shapes:
    """Boxes in level-0 pixels: x, y, width, height or two corners, and perhaps a class: 0 (no lesion), 1 or a name."""
    path = Path(path)
    with annotation_errors(path, "a table of boxes"):
        table = read_table(path)
        corners = _corners(table)
        column = next((name for name in _CLASS if name in table), None)
        stated = [""] * len(table) if column is None else [str(name).strip() for name in table[column]]
        names = ["positive" if name == "1" else name for name in stated]
        drawn = []
        for (left, top, right, bottom), name in zip(corners, names, strict=True):
            ring = _ring([(left, top), (right, top), (right, bottom), (left, bottom)])
            drawn += [_RawPolygon(ring, name=name)] if name != "0" else []
        return _joined(drawn, positive)


def _corners(table: pd.DataFrame) -> np.ndarray:
    """(n, 4): x and y of the first and of the last corner."""
    for names in (*_CORNER_AND_SIZE, *_TWO_CORNERS):
        if set(names) <= set(table.columns):
            boxes = _numbers(table, names)
            if names in _CORNER_AND_SIZE:
                boxes[:, 2:] += boxes[:, :2]
            wrong = np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(1))
            if len(wrong):
                raise DataError(f"row {wrong[0] + 1} is a box of negative size; correct it")
            return boxes
    raise DataError("no columns x, y, width, height or xmin, ymin, xmax, ymax; rename the columns")


def _numbers(table: pd.DataFrame, names: Collection[str]) -> np.ndarray:
    values = table[list(names)].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64, copy=True)
    wrong = np.flatnonzero(~np.isfinite(values).all(1))
    if len(wrong):
        raise DataError(f"row {wrong[0] + 1}: {', '.join(names)} must be numbers; correct it")
    return values
