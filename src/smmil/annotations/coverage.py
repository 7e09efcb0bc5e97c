"""The annotated share of every instance: exact areas of polygons and of label pixels.

Boxes are cut into the cells of a common grid, so that overlapping instances cost nothing extra. The area of a polygon
in every cell at once comes from its border alone (Green's theorem): a piece of border that rises by dy adds dy times
the width of the cell that lies to its right, in its own cell and in all further ones of the row.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from smmil.annotations.masks import Block
from smmil.annotations.polygons import library

# Rounding of areas must not tip the scales at exactly one half.
_DIGITS = 8
# Instances on a lattice share the lines of the grid; scattered ones do not and are taken in portions.
_CELLS, _PORTION = 2**24, 1000


def polygon_share(boxes: np.ndarray, area: Any) -> np.ndarray:
    """Share of each box (x0, y0, x1, y1) that lies inside `area`, a shapely geometry of polygons."""
    start, end = _border(area)
    covered = np.zeros(len(boxes))
    for part in _portions(boxes):
        covered[part] = _area_inside(boxes[part], start, end)
    return _share(covered, boxes)


def _border(area: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where every straight piece of the border begins and ends, with the inside always on the same side."""
    shapely = library()
    polygons = [part for part in shapely.get_parts(area) if part.geom_type == "Polygon" and not part.is_empty]
    starts, ends = [np.zeros((0, 2))], [np.zeros((0, 2))]
    for polygon in polygons:
        for number, ring in enumerate(shapely.get_rings(polygon)):
            points = shapely.get_coordinates(ring)
            if shapely.is_ccw(ring) == (number == 0):
                points = points[::-1]
            starts.append(points[:-1])
            ends.append(points[1:])
    return np.concatenate(starts), np.concatenate(ends)


def _portions(boxes: np.ndarray) -> Iterator[np.ndarray]:
    everything = np.arange(len(boxes))
    lines = [len(np.unique(boxes[:, axis::2])) for axis in (0, 1)]
    yield from [everything] if lines[0] * lines[1] <= _CELLS else np.split(everything, everything[_PORTION::_PORTION])


def _area_inside(boxes: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Covered area of each box: sums over the cells of the grid that the sides of all boxes make."""
    x, y = np.unique(boxes[:, 0::2]), np.unique(boxes[:, 1::2])
    sums = np.zeros((len(y), len(x)))
    np.cumsum(np.cumsum(_cells(x, y, start, end), axis=0), axis=1, out=sums[1:, 1:])
    left, right = np.searchsorted(x, boxes[:, 0]), np.searchsorted(x, boxes[:, 2])
    top, bottom = np.searchsorted(y, boxes[:, 1]), np.searchsorted(y, boxes[:, 3])
    return sums[bottom, right] - sums[bottom, left] - sums[top, right] + sums[top, left]


def _cells(x: np.ndarray, y: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Covered area of each cell between the lines `x` and `y`, (rows, columns)."""
    low, high = np.minimum(start, end), np.maximum(start, end)
    near = (high[:, 1] > y[0]) & (low[:, 1] < y[-1]) & (low[:, 0] < x[-1]) & (low[:, 1] < high[:, 1])
    middle, rise = _pieces(x, y, start[near], end[near])
    column, row = np.searchsorted(x, middle[:, 0], "right") - 1, np.searchsorted(y, middle[:, 1], "right") - 1
    kept = (row >= 0) & (row < len(y) - 1) & (column < len(x) - 1)
    column, row, across, rise = column[kept], row[kept], middle[kept, 0], rise[kept]
    own, further = np.zeros((len(y) - 1, len(x) - 1)), np.zeros((len(y) - 1, len(x)))
    inside = column >= 0
    np.add.at(own, (row[inside], column[inside]), (rise * (x[column + 1] - across))[inside])
    np.add.at(further, (row, column + 1), rise)
    return own + np.cumsum(further, axis=1)[:, :-1] * np.diff(x)


def _pieces(x: np.ndarray, y: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The border cut at every line it crosses: the middle of each piece, and by how much it rises."""
    edges = np.arange(len(start))
    crossings = [_crossings(lines, start[:, axis], end[:, axis]) for axis, lines in enumerate((x, y))]
    edge = np.concatenate([edges, edges, *(which for which, _ in crossings)])
    at = np.concatenate([np.zeros(len(start)), np.ones(len(start)), *(where for _, where in crossings)])
    order = np.lexsort((at, edge))
    edge, at = edge[order], np.clip(at[order], 0, 1)
    first = np.flatnonzero(edge[:-1] == edge[1:])
    which, middle, length = edge[first], (at[first] + at[first + 1]) / 2, at[first + 1] - at[first]
    way = end[which] - start[which]
    return start[which] + middle[:, None] * way, length * way[:, 1]


def _crossings(lines: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which pieces of border cross which lines, and after what share of their way."""
    first = np.searchsorted(lines, np.minimum(start, end), "right")
    count = np.maximum(np.searchsorted(lines, np.maximum(start, end), "left") - first, 0)
    which = np.repeat(np.arange(len(start)), count)
    number = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    crossed = lines[first[which] + number]
    return which, (crossed - start[which]) / (end[which] - start[which])


def pixel_share(boxes: np.ndarray, blocks: Iterable[Block]) -> np.ndarray:
    """Share of each box that lies on lesion pixels; boxes may begin and end inside a pixel."""
    covered = np.zeros(len(boxes))
    for left, top, lesion in blocks:
        if not lesion.any():
            continue
        height, width = lesion.shape
        local = np.clip(boxes - (left, top, left, top), 0, (width, height, width, height))
        near = np.flatnonzero((local[:, :2] < local[:, 2:]).all(1))
        covered[near] += _pixels_inside(lesion, local[near])
    return _share(covered, boxes)


def _pixels_inside(lesion: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Lesion area in each box from an integral image: exact, since the integral is bilinear inside a pixel."""
    sums = np.zeros((lesion.shape[0] + 1, lesion.shape[1] + 1), dtype=np.int64)
    np.cumsum(np.cumsum(lesion, axis=0, dtype=np.int64), axis=1, out=sums[1:, 1:])
    x0, y0, x1, y1 = boxes.T
    return _at(sums, x1, y1) - _at(sums, x0, y1) - _at(sums, x1, y0) + _at(sums, x0, y0)


def _at(sums: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    left = np.minimum(np.floor(x).astype(np.int64), sums.shape[1] - 2)
    top = np.minimum(np.floor(y).astype(np.int64), sums.shape[0] - 2)
    right, down = x - left, y - top
    upper = sums[top, left] * (1 - right) + sums[top, left + 1] * right
    lower = sums[top + 1, left] * (1 - right) + sums[top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


def _share(covered: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    size = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return np.clip(np.round(covered / size, _DIGITS), 0.0, 1.0) + 0.0
