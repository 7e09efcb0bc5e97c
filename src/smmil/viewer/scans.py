"""Slices of a CT scan as a browser wants them: whole Hounsfield units, two bytes each."""

from typing import Any

import numpy as np

from smmil.images import Volume
from smmil.images.windows import PRESETS


def scan_facts(volume: Volume) -> dict[str, Any]:
    """Sizes, distances in mm (slice, row, column) and the windows a radiologist asks for (centre, width)."""
    slices, rows, columns = volume.shape
    x, y, z = volume.spacing_mm
    return {
        "slices": slices,
        "rows": rows,
        "columns": columns,
        "spacing": [z, y, x],
        "windows": {name: list(window) for name, window in PRESETS.items()},
    }


def slice_bytes(volume: Volume, index: int) -> bytes:
    """Slice `index` row by row, little-endian int16, cut off at its limits."""
    hu = np.nan_to_num(volume.slice_hu(index), nan=-32768)
    return np.clip(np.rint(hu), -32768, 32767).astype("<i2").tobytes()
