"""Scores painted onto pixels: every pixel is the mean of the instances that cover it, nan where there are none."""

import numpy as np

_MOST_PIXELS = 2**25
_REDUCTIONS = (32, 16, 8, 4, 2, 1)


def paint(boxes: np.ndarray, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """float32 picture of that shape: (rows, columns), or (slices, rows, columns).

    boxes  (n, 2 d) first x, y(, z), then their ends, in output pixels; edges go to the nearest pixel edge, and an
           instance smaller than a pixel still gets one
    """
    axes = len(shape)
    first = np.rint(boxes[:, :axes]).astype(np.int64)
    last = np.maximum(np.rint(boxes[:, axes:]).astype(np.int64), first + 1)
    total, count = np.zeros(shape, np.float32), np.zeros(shape, np.uint16)
    limits = np.array(shape[::-1])
    first, last = np.clip(first, 0, limits), np.clip(last, 0, limits)
    for low, high, value in zip(first[:, ::-1].tolist(), last[:, ::-1].tolist(), values.tolist(), strict=True):
        place = tuple(map(slice, low, high))
        total[place] += value
        count[place] += 1
    with np.errstate(invalid="ignore"):
        return np.divide(total, count, out=np.full(shape, np.nan, np.float32), where=count > 0)


def reduction(boxes: np.ndarray, size: tuple[int, int]) -> tuple[int, bool]:
    """Level-0 pixels per map pixel, a power of two, and whether every edge of an instance falls on a pixel edge.

    The coarsest of 32, 16, … 1 at which the map is exact; when none is, the finest one that stays below 34 million
    pixels. Very large slides may need more than 32.
    """
    small = [r for r in _REDUCTIONS if _pixels(size, r) <= _MOST_PIXELS]
    for r in small:
        if (boxes % r == 0).all():
            return r, True
    if small:
        return small[-1], False
    r = _REDUCTIONS[0]
    while _pixels(size, r) > _MOST_PIXELS:
        r *= 2
    return r, bool((boxes % r == 0).all())


def reduced_shape(size: tuple[int, int], r: int) -> tuple[int, int]:
    """Rows and columns of the map of a slide of (width, height) `size`."""
    return -(-size[1] // r), -(-size[0] // r)


def _pixels(size: tuple[int, int], r: int) -> int:
    rows, columns = reduced_shape(size, r)
    return rows * columns


def extent(boxes: np.ndarray, size: tuple[int, int] | None) -> tuple[int, int]:
    """(width, height) of the slide; when nobody knows it, just large enough for all instances."""
    if size is not None:
        return size
    right, bottom = np.ceil(boxes[:, 2:].max(0)).astype(int)
    return max(1, int(right)), max(1, int(bottom))
