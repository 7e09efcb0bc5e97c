"""Instances on a lattice: from scattered coordinates to an image."""

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.prediction import Prediction

_MOST_CELLS = 50_000_000
_WIDEST_PATCH = 16

Extent = tuple[float, float, float, float]


def rasterize(prediction: Prediction, values: np.ndarray | None = None) -> tuple[np.ndarray, Extent]:
    """A picture of the scores, or of `values` (n,): one cell per step, nan where there is no tissue.

    Returns (rows by columns image with the first row on top, extent): extent is left, right, bottom, top in coordinate
    units, as matplotlib's imshow wants it. Patches wider than the step overlap; a cell is the mean of all patches that
    cover it. Pieces of tissue with lattices of their own are moved to the nearest cell (half a step at most), and
    instances that share a cell are averaged (instances on no lattice: see `smmil.maps.points`). Values that are nan do
    not count. One coordinate gives a single row.
    """
    points = plane_coords(prediction)
    shown = np.asarray(instance_score(prediction) if values is None else values, dtype=np.float64).reshape(-1)
    if len(shown) != len(points):
        raise DataError(f"{prediction.id}: {len(shown):,} values for {len(points):,} instances; give one each")
    step, reach = lattice_of(prediction, points)
    origin = points.min(0)
    cells = np.floor((points - origin) / step + 0.5 + 1e-6).astype(np.int64)
    columns, rows = (int(v) for v in cells.max(0) + reach)
    if rows * columns > _MOST_CELLS:
        raise DataError(
            f"{prediction.id}: a map with a step of {step.tolist()} would have {rows:,} x {columns:,} cells; "
            "give the right frame (patch, stride) to the prediction"
        )
    right, bottom = origin + step * (columns, rows)
    extent = (float(origin[0]), float(right), float(bottom), float(origin[1]))
    return _mean_per_cell(cells, shown, reach, (rows, columns)), extent


def plane_coords(prediction: Prediction) -> np.ndarray:
    """Coordinates as (n, 2) x and y; a scan with one coordinate lies along x."""
    if prediction.coords is None:
        raise DataError(f"{prediction.id}: a map needs coords, which this prediction does not store; predict it again")
    points = prediction.coords.astype(np.float64)
    if points.shape[1] > 2:
        raise DataError(f"{prediction.id}: maps show one or two coordinates, got {points.shape[1]}; choose a plane")
    return points if points.shape[1] == 2 else np.column_stack([points, np.zeros(len(points))])


def truth_values(prediction: Prediction) -> np.ndarray | None:
    """1 for positive instances, 0 for negative, nan for unknown; None when no label is known."""
    if prediction.y_inst is None or not (prediction.y_inst >= 0).any():
        return None
    return np.where(prediction.y_inst < 0, np.nan, prediction.y_inst > 0)


def lattice_of(prediction: Prediction, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cell size along x and y, and how many cells a patch covers."""
    if prediction.frame is None:
        return np.array([_smallest_gap(points[:, axis]) for axis in (0, 1)]), np.array([1, 1])
    step, patch = _two(prediction.frame.step), _two(prediction.frame.patch)
    return step, np.clip(np.rint(patch / step), 1, _WIDEST_PATCH).astype(np.int64)


def _two(sizes: tuple[float, ...]) -> np.ndarray:
    return np.array([sizes[0], sizes[-1] if len(sizes) < 3 else sizes[1]])


def _smallest_gap(values: np.ndarray) -> float:
    gaps = np.diff(np.unique(values))
    return float(gaps.min()) if gaps.size else 1.0


def _mean_per_cell(cells: np.ndarray, values: np.ndarray, reach: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    known = ~np.isnan(values)
    cells, values = cells[known], values[known]
    total, count = np.zeros(shape[0] * shape[1]), np.zeros(shape[0] * shape[1])
    for right in range(reach[0]):
        for down in range(reach[1]):
            place = (cells[:, 1] + down) * shape[1] + cells[:, 0] + right
            total += np.bincount(place, values, total.size)
            count += np.bincount(place, minlength=count.size)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(shape)
