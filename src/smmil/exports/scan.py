"""Scores painted into the geometry of a CT scan."""

import numpy as np

from smmil.errors import DataError
from smmil.exports.case import Case
from smmil.exports.painting import paint
from smmil.images.volume import Volume

_MOST_VOXELS = 2**30


def scan_heat(case: Case, volume: Volume, rows: np.ndarray | None = None) -> np.ndarray:
    """float32 (slices, rows, columns) as `open_volume` shows them, nan where no instance lies.

    With one coordinate an instance is a whole slice, counted from the foot; with three it is a box of voxels
    (column, row, slice). `rows` picks instances; None: all of them.
    """
    chosen = np.arange(case.prediction.n) if rows is None else rows
    if int(np.prod(volume.shape)) > _MOST_VOXELS:
        raise DataError(f"{volume.name}: {volume.shape} voxels are too many for one map; export a table instead")
    if case.axes == 3:
        return paint(_voxel_boxes(case, volume)[chosen], case.score[chosen], volume.shape)
    heat = np.full(volume.shape, np.nan, np.float32)
    values = slice_scores(case, len(volume), chosen)
    heat[:] = values[:, None, None]
    return heat


def slice_scores(case: Case, n_slices: int, rows: np.ndarray | None = None) -> np.ndarray:
    """float32 (slices,): the score of each slice, nan for slices that are no instance, the mean where several are."""
    chosen = np.arange(case.prediction.n) if rows is None else rows
    if case.axes != 1:
        raise DataError(f"{case.id}: instances are not slices but have {case.axes} coordinates")
    places = _slices(case, n_slices)[chosen]
    total = np.bincount(places, case.score[chosen].astype(np.float64), n_slices)
    count = np.bincount(places, minlength=n_slices)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _slices(case: Case, n_slices: int) -> np.ndarray:
    """Number of the slice of each instance, checked against the scan that was given."""
    assert case.prediction.coords is not None  # Case.axes saw to it
    stated = case.prediction.coords[:, 0].astype(np.float64)
    places = np.rint(stated).astype(np.int64)
    if np.abs(stated - places).max() > 1e-6 or places.min() < 0:
        raise DataError(f"{case.id}: coordinates of a scan count slices 0, 1, 2, …, got {stated.min():g}")
    if places.max() >= n_slices:
        raise DataError(
            f"{case.id}: an instance is slice {places.max()}, but the scan given with --image has only {n_slices}; "
            "give the scan this case was made from"
        )
    return places


def _voxel_boxes(case: Case, volume: Volume) -> np.ndarray:
    frame, coords = case.prediction.frame, case.prediction.coords
    if frame is None or coords is None:
        raise DataError(f"{case.id}: the prediction does not say how large its instances are (no frame); predict again")
    first = coords.astype(np.float64)
    boxes = np.hstack([first, first + np.array((frame.patch * 3)[:3])])
    limits = np.array(volume.shape[::-1])
    if boxes[:, :3].min() < 0 or (boxes[:, :3] >= limits).any():
        raise DataError(
            f"{case.id}: instances lie outside the scan given with --image, which has {limits.tolist()} columns, rows "
            "and slices; give the scan this case was made from"
        )
    return boxes
