"""Whether a scan is the one that a prediction was made from."""

from typing import Any, NamedTuple

import numpy as np

from smmil.images import Volume
from smmil.prediction import Prediction

_SAME = 0.01  # share by which voxel sizes may differ: written with fewer digits by other programs
_SAME_PLACE_MM = 0.5


class Difference(NamedTuple):
    """What the prediction remembers and what the scan has instead, in words."""

    told: str
    found: str


def other_scan(prediction: Prediction, volume: Volume) -> Difference | None:
    """The first thing that tells this scan from the one behind the prediction; None: nothing known does."""
    told = prediction.meta.get("scan")
    if isinstance(told, dict):
        return _other_counts(told, volume) or _other_voxels(told, volume) or _other_place(told, volume)
    implied = _implied_slices(prediction)
    if implied is None or len(volume) <= implied:
        return None
    return Difference(f"{implied} slices", f"{len(volume)}")


def _other_counts(told: dict[str, Any], volume: Volume) -> Difference | None:
    for what, found in zip(("slices", "rows", "columns"), volume.shape, strict=True):
        if isinstance(told.get(what), int) and told[what] != found:
            return Difference(f"{told[what]} {what}", f"{found}")
    return None


def _other_voxels(told: dict[str, Any], volume: Volume) -> Difference | None:
    sizes = _numbers(told.get("spacing_mm"), 3)
    if sizes is None or np.allclose(sizes, volume.spacing_mm, rtol=_SAME, atol=0):
        return None
    words = [" × ".join(f"{size:.4g}" for size in found) for found in (sizes, volume.spacing_mm)]
    return Difference(f"voxels of {words[0]} mm", f"{words[1]} mm")


def _other_place(told: dict[str, Any], volume: Volume) -> Difference | None:
    ends = _numbers(told.get("ends_mm"), 2)
    found = volume.positions_mm[[0, -1]]
    if ends is None or np.allclose(ends, found, rtol=0, atol=_SAME_PLACE_MM):
        return None
    words = [f"{first:.1f} to {last:.1f} mm" for first, last in (ends, found)]
    return Difference(f"slices from {words[0]}", f"them from {words[1]}")


def _implied_slices(prediction: Prediction) -> int | None:
    """Slices of the scan behind a prediction that does not remember it, where that is certain.

    `smmil prepare` makes every slice an instance and leaves none out, so 0, 1, … n - 1 of a recipe are all there were.
    """
    features, coords = prediction.meta.get("features"), prediction.coords
    made_here = isinstance(features, dict) and features.get("recipe") is not None
    if not made_here or coords is None or coords.shape[1] != 1:
        return None
    return prediction.n if np.array_equal(np.sort(coords[:, 0]), np.arange(prediction.n)) else None


def _numbers(values: Any, count: int) -> np.ndarray | None:
    good = isinstance(values, list | tuple) and len(values) == count and all(isinstance(v, int | float) for v in values)
    return np.array(values, np.float64) if good else None
