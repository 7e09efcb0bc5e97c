"""Corrections: places that an expert marked as lesion or not, and which instances of a case these are.

A folder of corrections holds <id>.geojson (drawn in QuPath) and tables (*.csv) with the columns id, label and instance
and / or x, y (z): written by the viewer, or `marks.csv` of smmil suggest with the column label filled in.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smmil.annotations.labels import _read_bytes, annotation_errors
from smmil.annotations.masks import polygon_share
from smmil.annotations.polygons import _geometries, _joined, _polygons, _RawPolygon, _ring, read_table
from smmil.errors import DataError
from smmil.files import escape_formula, file_name

WANTED = "to be marked"  # class of the regions that smmil suggest proposes; no mark until the expert changes it
_CLASSES = {
    **dict.fromkeys(("1", "lesion", "tumor", "tumour", "cancer", "metastasis", "positive"), 1),
    **dict.fromkeys(("0", "not lesion", "no lesion", "normal", "healthy", "benign", "negative"), 0),
    **dict.fromkeys((WANTED, "ignore*", "region*"), -1),
}
_AXES = {1: ("z",), 2: ("x", "y"), 3: ("x", "y", "z")}
_COVERAGE = 0.5  # an instance is marked when more than this share of it is, as in annotations


class _Mark(NamedTuple):
    """One marked place: an instance by its number, by a place in it, or by both, which then have to agree."""

    label: int
    instance: int | None
    place: dict[str, float]
    of: int | None  # how many instances the case had; None: not stated
    where: str  # file and row, for messages


@dataclass(frozen=True)
class CaseMarks:
    """What was marked in one case; `labels` finds the instances."""

    id: str
    marks: list[_Mark] = field(default_factory=list)
    drawings: list[Path] = field(default_factory=list)

    def labels(
        self,
        n: int,
        coords: np.ndarray | None = None,
        patch: Sequence[float] | None = None,
        corner: Sequence[float] = (0, 0),
    ) -> np.ndarray:
        """(n,) int64: 1 lesion, 0 not, -1 not marked; a mark that fits no instance, or two that contradict, is refused.

        patch   size of an instance along each axis
        corner  level-0 pixel from which drawings of QuPath count: the corner of the scanned area
        """
        found = _Instances(self.id, n, coords, patch)
        for mark in self.marks:
            found.add(found.of(mark), mark.label, mark.where)
        for path in self.drawings:
            with annotation_errors(path, "GeoJSON"):
                for label, rows in _drawn(path, found, np.asarray(corner, dtype=np.float64)):
                    found.add(rows, label, path.name)
        return found.labels


def find_marks(where: str | Path, ids: Iterable[str]) -> tuple[dict[str, CaseMarks], list[str]]:
    """Marks by case in a folder, or in one file, and the names of drawings that belong to none of these ids.

    Rows without a label, as smmil suggest writes them, are no marks. Cases of tables need not be among the ids.
    """
    where = Path(where)
    if not where.exists():
        raise DataError(f"{where}: no such file or folder; give the folder of the corrections")
    files = sorted(p for p in where.iterdir() if not p.name.startswith(".")) if where.is_dir() else [where]
    by_name = {file_name(id_): id_ for id_ in ids}
    found: dict[str, CaseMarks] = {}
    strays: list[str] = []
    for path in files:
        if path.suffix.lower() == ".csv":
            for id_, mark in _rows(path):
                found.setdefault(id_, CaseMarks(id_)).marks.append(mark)
        elif path.suffix.lower() in (".geojson", ".json"):
            if path.stem not in by_name:
                strays.append(path.name)
                continue
            case = by_name[path.stem]
            found.setdefault(case, CaseMarks(case)).drawings.append(path)
    if not any(path.suffix.lower() in (".csv", ".geojson", ".json") for path in files):
        raise DataError(
            f"{where}: holds no marks; expected <id>.geojson of QuPath, or a table id,instance,label (.csv)"
        )
    return found, strays


def _label(text: str, where: str) -> int:
    """1, 0, or -1 for a class that is no mark; any other class is refused, since it could mean both."""
    plain = text.strip().lower()
    if plain not in _CLASSES:
        yes, no = ([name for name, label in _CLASSES.items() if label == wanted] for wanted in (1, 0))
        raise DataError(
            f"{where}: class {text[:80]!r} says neither lesion ({', '.join(yes)}) nor not lesion ({', '.join(no)})"
        )
    return _CLASSES[plain]


def _rows(path: Path) -> list[tuple[str, _Mark]]:
    """Id and mark of every row of a table that has a label."""
    with annotation_errors(path, "a table of marks"):
        table = read_table(path)
        if missing := {"id", "label"} - set(table.columns):
            raise DataError(f"column {sorted(missing)[0]!r} is missing; expected id, label and instance or x, y")
        if "instance" not in table and not {"x", "y"} <= set(table.columns) and "z" not in table:
            raise DataError("says not where the marks are; expected the column instance, or x and y (z of a slice)")
        found = []
        for number, row in enumerate(table.to_dict("records"), 2):
            line = f"{path.name}, line {number}"
            if not row["label"].strip() or (label := _label(row["label"], line)) < 0:
                continue
            instance = _whole(row.get("instance", ""), line)
            place = {axis: _decimal(row[axis], line) for axis in "xyz" if row.get(axis, "").strip()}
            if instance is None and not place:
                raise DataError(f"{line}: has a label but neither instance nor place")
            found.append((_plain_id(row["id"]), _Mark(label, instance, place, _whole(row.get("of", ""), line), line)))
        return found


def _plain_id(text: str) -> str:
    """The id without the ' that keeps spreadsheets from computing it."""
    return text[1:] if text.startswith("'") and escape_formula(text[1:]) == text else text


def _whole(text: str, line: str) -> int | None:
    number = _decimal(text, line) if text.strip() else None
    if number is None:
        return None
    if number != int(number) or number < 0:
        raise DataError(f"{line}: instance is {text[:40]!r}; expected its number, counted from 0")
    return int(number)


def _decimal(text: str, line: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) <= 1e9:
        raise DataError(f"{line}: {text[:40]!r} is no place; expected a number")
    return number


@dataclass
class _Instances:
    """Places of the instances of a case, and what has been marked of them so far."""

    id: str
    n: int
    coords: np.ndarray | None
    patch: Sequence[float] | None

    def __post_init__(self) -> None:
        self.labels = np.full(self.n, -1, dtype=np.int64)

    def add(self, rows: np.ndarray, label: int, where: str) -> None:
        """Mark these instances."""
        if (other := rows[self.labels[rows] == 1 - label]).size:
            raise DataError(
                f"{where}: instance {other[0]} of {self.id!r} is marked both as lesion and as not; decide which it is"
            )
        self.labels[rows] = label

    def of(self, mark: _Mark) -> np.ndarray:
        """The instance that a row of a table means."""
        if mark.of is not None and mark.of != self.n:
            raise DataError(
                f"{mark.where}: marks of another tiling ({mark.of:,} instances, {self.id!r} has {self.n:,}); mark again"
            )
        if mark.instance is not None and mark.instance >= self.n:
            raise DataError(f"{mark.where}: instance {mark.instance}, but {self.id!r} has only {self.n:,}")
        if not mark.place or (self.coords is None and mark.instance is not None):
            return np.array([mark.instance])
        if self.coords is None:
            raise DataError(f"{mark.where}: gives a place, but the instances of {self.id!r} have none; give instance")
        names = _AXES[self.coords.shape[1]]
        if missing := [axis for axis in names if axis not in mark.place]:
            raise DataError(
                f"{mark.where}: {missing[0]} is missing for {self.id!r}, whose places are {', '.join(names)}"
            )
        place = np.array([mark.place[axis] for axis in names])
        if mark.instance is None:
            return self.around(place, mark.where)
        if (np.abs(self.coords[mark.instance] - place) > 0.51).any():  # rounded to whole pixels at most
            at = ", ".join(f"{v:g}" for v in self.coords[mark.instance])
            raise DataError(
                f"{mark.where}: instance {mark.instance} of {self.id!r} lies at {at}: the marks are of another tiling; "
                "remove the column instance to go by the places alone"
            )
        return np.array([mark.instance])

    def around(self, place: np.ndarray, where: str) -> np.ndarray:
        """The instance at a place; of several that overlap there the one whose middle is nearest."""
        assert self.coords is not None
        size = np.broadcast_to(1.0 if self.patch is None else np.asarray(self.patch[: len(place)]), place.shape)
        inside = ((self.coords <= place) & (place < self.coords + size)).all(1)
        if not inside.any():
            raise DataError(f"{where}: no instance of {self.id!r} lies at {', '.join(f'{v:g}' for v in place)}")
        far = np.square(self.coords + size / 2 - place).sum(1)
        return np.array([np.where(inside, far, np.inf).argmin()])

    def boxes(self) -> np.ndarray:
        """(n, 4) first and last corner of every instance, for drawings."""
        if self.coords is None or self.patch is None or self.coords.shape[1] != 2:
            raise DataError(f"drawings need patches with known places on a slide; mark {self.id!r} in the viewer")
        return np.hstack([self.coords, self.coords + np.asarray((*self.patch, *self.patch)[:2])])


def _drawn(path: Path, found: _Instances, corner: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Instances under the shapes of each class, and those in which a point was set."""
    shapes: dict[int, list[_RawPolygon]] = {0: [], 1: []}
    result: list[tuple[int, np.ndarray]] = []
    boxes = found.boxes()
    for name, geometry in _geometries(json.loads(_read_bytes(path))):
        if (label := _label(name, path.name)) >= 0:
            shapes[label] += _polygons(geometry, "lesion")
            result += [(label, found.around(point + corner, path.name)) for point in _points(geometry)]
    for label, drawn in shapes.items():
        area = _joined(drawn, None).area if drawn else None
        share = np.zeros(len(boxes)) if area is None else polygon_share(boxes - np.tile(corner, 2), area)
        if drawn and not (share > _COVERAGE).any():
            raise DataError(f"its {'lesions' if label else 'shapes without lesion'} cover no patch by more than half")
        result.append((label, np.flatnonzero(share > _COVERAGE)))
    return result


def _points(geometry: dict[str, Any]) -> Collection[np.ndarray]:
    """Places of a geometry of points; none of any other."""
    if geometry["type"] not in ("Point", "MultiPoint"):
        return ()
    return _ring([geometry["coordinates"]] if geometry["type"] == "Point" else geometry["coordinates"])
