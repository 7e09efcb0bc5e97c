"""Lesions as polygons: rings made sound, joined, and holes cut out."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smmil.annotations.classes import sorted_classes
from smmil.errors import DataError, MissingExtra

# No slide has a million pixels on a side; numbers far beyond are damage, and their squares lose all precision.
_FARTHEST = 1e8


@dataclass(frozen=True)
class Drawn:
    """One closed shape as the file has it: outer ring, inner rings (holes), name of its class."""

    outer: np.ndarray
    inner: tuple[np.ndarray, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Shapes:
    """Annotated area in pixels of the annotation, and what a careful user should know about it.

    area   one shapely geometry: the union of all lesions without the holes
    notes  shapes that were repaired, had no area, or were of other classes
    """

    area: Any = field(repr=False)
    notes: tuple[str, ...] = ()


def library() -> Any:
    try:
        import shapely
    except ImportError:
        raise MissingExtra("shapely", "slides", "reading polygons") from None
    return shapely


def ring(points: Any) -> np.ndarray:
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


def joined(drawn: Sequence[Drawn], positive: Collection[str] | None, notes: Iterable[str] = ()) -> Shapes:
    """The annotated area: union of the lesions minus union of the holes."""
    shapely = library()
    roles = sorted_classes((shape.name for shape in drawn), positive)
    parts: dict[str, list[Any]] = {"lesion": [], "hole": [], "other": []}
    repaired = flat = 0
    for shape in drawn:
        geometry, sound = _polygon(shapely, shape)
        repaired += not sound
        flat += geometry.is_empty
        parts[roles[shape.name]].append(geometry)
    try:
        area = shapely.union_all(parts["lesion"])
        if parts["hole"]:
            area = area.difference(shapely.union_all(parts["hole"]))
    except shapely.errors.ShapelyError as problem:
        raise DataError(f"polygons cannot be joined ({problem}); draw them again") from None
    told = _told(repaired, flat, len(parts["other"]))
    return Shapes(area, (*notes, *told))


def _told(repaired: int, flat: int, other: int) -> list[str]:
    counts = (
        (repaired, "crossed themselves; areas enclosed an odd number of times count"),
        (flat, "have no area and count for nothing"),
        (other, "are of other classes and were passed over"),
    )
    return [f"{count} shape(s) {what}" for count, what in counts if count]


def _polygon(shapely: Any, shape: Drawn) -> tuple[Any, bool]:
    """The shape as valid polygons, and whether it was valid as drawn; nothing when it has no area."""
    if len(shape.outer) < 3:
        return shapely.Polygon(), True
    try:
        polygon = shapely.Polygon(shape.outer, [inner for inner in shape.inner if len(inner) >= 3])
        if polygon.is_valid:
            return (polygon if polygon.area > 0 else shapely.Polygon()), True
        faces = [part for part in shapely.get_parts(shapely.make_valid(polygon)) if part.area > 0]
        return shapely.union_all(faces), not faces
    except (shapely.errors.ShapelyError, ValueError) as problem:
        raise DataError(f"a polygon of {len(shape.outer)} corners makes no sense ({problem})") from None
