"""Instances as an image: lattices as pixels, scattered points as dots."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.prediction import Prediction

_MOST_CELLS = 50_000_000
_WIDEST_PATCH = 16

Extent = tuple[float, ...]  # left, right, bottom, top; of scans cut into patches also first and last along the slices
# Pieces of tissue with lattices of their own may share a few cells where they meet.
_MERGED = 0.02
# A piece of tissue with a lattice of its own holds at least this share of the instances; points share none.
_PIECE = 0.005
# Without a frame the step is the smallest gap; instances whose neighbours are farther than this lie on no lattice.
_FAR = 2.0
_SMALLEST, _LARGEST = 3.0, 14.0  # diameter of a dot in points of 1/72 inch


def rasterize(prediction: Prediction, values: np.ndarray | None = None) -> tuple[np.ndarray, Extent]:
    """A picture of the scores, or of `values` (n,): one cell per step, nan where there is no tissue.

    Returns (rows by columns image with the first row on top, extent): extent is left, right, bottom, top in coordinate
    units, as matplotlib's imshow wants it. Patches wider than the step overlap; a cell is the mean of all patches that
    cover it. Pieces of tissue with lattices of their own are moved to the nearest cell (half a step at most), and
    instances that share a cell are averaged (instances on no lattice: see `smmil.maps.raster`). Values that are nan do
    not count. One coordinate gives a single row. Three, of a scan cut into patches, give (layers, rows, columns), and
    the extent goes on with the first slice and the end of the last.
    """
    points = _positions(prediction)
    values = np.asarray(instance_score(prediction) if values is None else values, dtype=np.float64).reshape(-1)
    if len(values) != len(points):
        raise DataError(f"{prediction.id}: {len(values):,} values for {len(points):,} instances; give one each")
    step, reach = _lattice_of(prediction, points)
    origin = points.min(0)
    cells = np.floor((points - origin) / step + 0.5 + 1e-6).astype(np.int64)
    shape = tuple(int(v) for v in (cells.max(0) + reach)[::-1])
    if prod(shape) > _MOST_CELLS:
        raise DataError(
            f"{prediction.id}: a map with a step of {step.tolist()} would have {' x '.join(f'{n:,}' for n in shape)} "
            "cells; give the right frame (patch, stride) to the prediction"
        )
    (left, top, *first), (right, bottom, *last) = origin.tolist(), (origin + step * shape[::-1]).tolist()
    return _mean_per_cell(cells, values, reach, shape), (left, right, bottom, top, *first, *last)


def _positions(prediction: Prediction) -> np.ndarray:
    """Coordinates as (n, 2) x and y, or (n, 3) with the slice; a scan with one coordinate lies along x."""
    coords = prediction.coords
    if coords is None or coords.shape[1] != 3:
        return _plane_coords(prediction)
    return coords.astype(np.float64)


def between_cells(image: np.ndarray, extent: Extent, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Interpolated values (len(y), len(x)) of a picture of `rasterize` at these coordinates, for display only.

    Bilinear between the middles of the cells, over those that hold tissue; nan where the cell itself holds none. It
    equals the cell at its middle and never leaves the values of the (up to four) cells around it.
    """
    left, right, bottom, top = extent
    rows, columns = image.shape
    across, down = (x - left) / (right - left) * columns, (y - top) / (bottom - top) * rows
    padded, known = np.pad(np.nan_to_num(image), 1), np.pad(~np.isnan(image), 1)
    total, weight = np.zeros((len(y), len(x))), np.zeros((len(y), len(x)))
    first_row, first_column = np.floor(down - 0.5), np.floor(across - 0.5)
    for row in (first_row, first_row + 1):
        for column in (first_column, first_column + 1):
            near = np.outer(1 - np.abs(down - 0.5 - row), 1 - np.abs(across - 0.5 - column))
            at = np.ix_(np.clip(row + 1, 0, rows + 1).astype(int), np.clip(column + 1, 0, columns + 1).astype(int))
            total, weight = total + near * padded[at], weight + near * known[at]
    own = np.ix_(*(np.clip(np.floor(v) + 1, 0, n + 1).astype(int) for v, n in ((down, rows), (across, columns))))
    return np.where(known[own] & (weight > 0), total / np.where(weight > 0, weight, 1), np.nan)


def finer(image: np.ndarray, extent: Extent, fineness: int = 8) -> np.ndarray:
    """`between_cells` at `fineness` x `fineness` places of every cell."""
    left, right, bottom, top = extent
    rows, columns = (side * fineness for side in image.shape)
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    return between_cells(image, extent, x, top + (np.arange(rows) + 0.5) * (bottom - top) / rows)


def interpolated_words(step: float, spacing: float | None, unit: str) -> str:
    """What to write beside the colours of an interpolated map."""
    size = f"{step:.3g} px" if spacing is None else f"{step * spacing:.3g} {unit.replace('um', 'µm')}"
    return f"interpolated between patches of {size}"


def _plane_coords(prediction: Prediction) -> np.ndarray:
    """Coordinates as (n, 2) x and y; a scan with one coordinate lies along x."""
    if prediction.coords is None:
        raise DataError(f"{prediction.id}: a map needs coords, which this prediction does not store; predict it again")
    points = prediction.coords.astype(np.float64)
    if points.shape[1] > 2:
        raise DataError(
            f"{prediction.id}: this picture shows one or two coordinates, got {points.shape[1]}; smmil report and "
            "smmil view show scans slice by slice"
        )
    return points if points.shape[1] == 2 else np.column_stack([points, np.zeros(len(points))])


def truth_values(prediction: Prediction) -> np.ndarray | None:
    """1 for positive instances, 0 for negative, nan for unknown; None when no label is known."""
    if prediction.y_inst is None or not (prediction.y_inst >= 0).any():
        return None
    return np.where(prediction.y_inst < 0, np.nan, prediction.y_inst > 0)


def _lattice_of(prediction: Prediction, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cell size along each axis, and how many cells a patch covers."""
    axes = points.shape[1]
    if prediction.frame is None:
        return np.array([_smallest_gap(values) for values in points.T]), np.ones(axes, np.int64)
    step, patch = _sizes(prediction.frame.step, axes), _sizes(prediction.frame.patch, axes)
    return step, np.clip(np.rint(patch / step), 1, _WIDEST_PATCH).astype(np.int64)


def _sizes(sizes: tuple[float, ...], axes: int) -> np.ndarray:
    return np.array((*sizes, *sizes[-1:] * axes)[:axes])


def _smallest_gap(values: np.ndarray) -> float:
    gaps = np.diff(np.unique(values))
    return float(gaps.min()) if gaps.size else 1.0


def _mean_per_cell(cells: np.ndarray, values: np.ndarray, reach: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    known = ~np.isnan(values)
    cells, values = cells[known], values[known]
    total, count = np.zeros(prod(shape)), np.zeros(prod(shape))
    for further in np.ndindex(*reach.tolist()):
        place = np.ravel_multi_index(tuple((cells + further).T[::-1]), shape)
        total += np.bincount(place, values, total.size)
        count += np.bincount(place, minlength=count.size)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection


def scattered(prediction: Prediction) -> bool:
    """Whether a lattice would move or merge the instances of a slide, so that they have to be drawn as dots."""
    if prediction.coords is None or prediction.coords.shape[1] != 2 or prediction.n < 2:
        return False
    points = np.unique(_plane_coords(prediction), axis=0)
    step, _ = _lattice_of(prediction, points)
    place = (points - points.min(0)) / step
    if prediction.frame is None:  # whether most instances have no neighbour within two steps
        from scipy.spatial import KDTree

        return len(place) > 1 and bool(np.median(KDTree(place).query(place, k=2, p=np.inf)[0][:, 1]) > _FAR)
    cells = np.floor(place + 0.5 + 1e-6)
    merged = 1 - len(np.unique(_one_number(cells))) / len(points)
    return merged > _MERGED or _on_pieces(place) < 0.5


def dot_positions(prediction: Prediction) -> tuple[np.ndarray, float | None]:
    """(n, 2) middle of every instance, and the width of one, both in coordinate units; None: width unknown."""
    points = _plane_coords(prediction)
    if prediction.frame is None:
        return points, None
    patch = np.array((prediction.frame.patch * 2)[:2])
    return points + patch / 2, float(patch.max())


def dots_extent(prediction: Prediction) -> Extent:
    """Left, right, bottom, top of all instances with their width; never empty."""
    places, width = dot_positions(prediction)
    low, high = places.min(0), places.max(0)
    margin = max((width or 0.0) / 2, 0.01 * float((high - low).max()), 1e-9)
    (left, top), (right, bottom) = (low - margin).tolist(), (high + margin).tolist()
    return left, right, bottom, top


def _draw_dots(axes: "Axes", prediction: Prediction, values: np.ndarray, **how: Any) -> "PathCollection":
    """A dot per instance with a value, highest on top; as wide as the instance where that can be seen."""
    places, _ = dot_positions(prediction)
    left, right, bottom, top = dots_extent(prediction)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_aspect("equal")
    order = np.argsort(values, kind="stable")
    order = order[~np.isnan(values[order])]
    size = _dot_diameter(axes, prediction) ** 2
    return axes.scatter(places[order, 0], places[order, 1], s=size, c=values[order], linewidths=0, **how)


def _draw_rings(axes: "Axes", prediction: Prediction, inside: np.ndarray) -> None:
    """A border around the chosen instances, white on dark to show on every colour: larger discs below the dots."""
    places, _ = dot_positions(prediction)
    x, y = places[inside].T
    for colour, more in (("#101010", 3.0), ("white", 1.8)):
        size = (_dot_diameter(axes, prediction) + more) ** 2
        axes.scatter(x, y, s=size, color=colour, linewidths=0, zorder=0.9)


def _dot_diameter(axes: "Axes", prediction: Prediction) -> float:
    """Width of an instance on paper in 1/72 inch, but neither too small to see nor larger than a label."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # every panel belongs to a figure
    box = axes.get_position()
    wide, high = figure.get_size_inches() * (box.width, box.height)
    left, right, bottom, top = dots_extent(prediction)
    per_unit = 72 * min(wide / (right - left), high / (bottom - top))
    return float(np.clip((dot_positions(prediction)[1] or 0.0) * per_unit, _SMALLEST, _LARGEST))


def _on_pieces(place: np.ndarray) -> float:
    """Share of the instances on lattices: their place between two steps is that of many others."""
    between = np.mod(np.rint(np.mod(place, 1) * 1000), 1000)
    _, which, count = np.unique(_one_number(between), return_inverse=True, return_counts=True)
    return float((count[which] >= max(2, _PIECE * len(place))).mean())


def _one_number(pairs: np.ndarray) -> np.ndarray:
    return pairs[:, 0] + 1j * pairs[:, 1]
