"""The step between neighbouring instances, told from coordinates where a format does not store it."""

import json

import numpy as np

from smmil.formats.neighbours import ALARM_FROM, nearest_distance
from smmil.frame import Frame

GRID = json.dumps({"kind": "grid", "neighbours": 8})
INFERRED = "inferred from the coordinates"
_JITTER = 1e-3


def spaced(
    patch: tuple[float, ...], coords: np.ndarray, spacing: tuple[float, ...] | None = None, unit: str = "px"
) -> Frame:
    """A frame of this footprint whose step fits the coordinates: smaller than the patch when they overlap.

    The step is the median distance to the nearest other instance. Few instances that lie apart say nothing about a
    step; then, and when both agree, patches are taken to touch. Coordinates that are not whole may jitter by 0.1 %.
    """
    apart, side = nearest_distance(coords), min(patch)
    jitter = _JITTER if coords.dtype.kind == "f" else 1e-6
    touching = not apart > 0 or abs(apart / side - 1) <= jitter or (apart > side and len(coords) < ALARM_FROM)
    return Frame(patch, spacing, unit, None if touching else (apart,) * len(patch))


def inferred(coords: np.ndarray, spacing: tuple[float, ...] | None = None, unit: str = "px") -> Frame | None:
    """A frame whose patches touch, from the coordinates alone; None when they cannot tell (a single instance)."""
    apart = nearest_distance(coords)
    return Frame((apart,) * coords.shape[1], spacing, unit) if apart > 0 else None


def as_text(frame: Frame | None) -> str:
    return json.dumps(None if frame is None else frame.to_dict(), sort_keys=True)


def no_edges() -> tuple[np.ndarray, np.ndarray]:
    """A stored neighbourhood without a single pair: what a bag has whose step nobody knows."""
    return np.zeros((2, 0), dtype=np.int64), np.zeros(0)
