"""Shrinking pixels so that every output pixel is the mean of exactly the area it covers."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def resample(region: np.ndarray, left: float, top: float, step: float, width: int, height: int) -> np.ndarray:
    """`height` × `width` pixels out of `region` (uint8, rows × columns × 3), beginning at (left, top), `step` apart.

    All in pixels of `region`. Shrinking (step >= 1) is the exact mean over each output pixel's square, fractions
    of source pixels included; an edge in the source therefore touches one output pixel, never two. Enlarging is linear
    interpolation between pixel centres.
    """
    whole = float(step).is_integer() and float(left).is_integer() and float(top).is_integer()
    if whole and step == 1:
        return np.ascontiguousarray(region[int(top) : int(top) + height, int(left) : int(left) + width])
    if step < 1:
        return _enlarged(region, left, top, step, width, height)
    if whole and step % 2 == 0:  # for odd steps its rounding is slightly off
        return _binned(region, int(left), int(top), int(step), width, height)
    rows = _averaging(top, step, height, len(region)) @ region.reshape(len(region), -1).astype(np.float32)
    columns = _turned(rows.reshape(height, -1, 3))
    averaged = _averaging(left, step, width, len(columns)) @ columns.reshape(len(columns), -1)
    return _turned(np.rint(averaged).astype(np.uint8).reshape(width, height, 3))


def _turned(image: np.ndarray) -> np.ndarray:
    """Rows become columns, in memory too: averaging runs along whole rows, which is fast."""
    return np.ascontiguousarray(image.transpose(1, 0, 2))


def _binned(region: np.ndarray, left: int, top: int, step: int, width: int, height: int) -> np.ndarray:
    """The same mean for even steps, in one fast pass."""
    from PIL import Image

    box = (left, top, left + width * step, top + height * step)
    return np.array(Image.fromarray(region).reduce(step, box=box))


def _enlarged(region: np.ndarray, left: float, top: float, step: float, width: int, height: int) -> np.ndarray:
    from PIL import Image

    box = (left, top, min(left + width * step, region.shape[1]), min(top + height * step, region.shape[0]))
    return np.array(Image.fromarray(region).resize((width, height), Image.Resampling.BILINEAR, box=box))


def _averaging(start: float, step: float, count: int, size: int) -> "csr_array":
    """The matrix whose row i holds the share of each of `size` source pixels in output pixel i; rows add up to 1."""
    from scipy.sparse import csr_array

    edges = np.minimum(start + np.arange(count + 1) * step, size)
    low, high = edges[:-1, None], edges[1:, None]
    first = np.floor(low).astype(np.int64)
    sources = first + np.arange(int((np.ceil(high) - first).max()))
    shares = np.clip(np.minimum(high, sources + 1) - np.maximum(low, sources), 0, None)
    shares = (shares / shares.sum(1, keepdims=True)).astype(np.float32)
    pointers = np.arange(count + 1) * sources.shape[1]
    return csr_array((shares.ravel(), np.minimum(sources, size - 1).ravel(), pointers), shape=(count, size))
