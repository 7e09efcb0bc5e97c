"""The pixels of one slide, read lazily in level-0 coordinates, resampled by exact area means."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np

from smmil.errors import ConfigError, DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def _resample(region: np.ndarray, left: float, top: float, step: float, width: int, height: int) -> np.ndarray:
    """`height` × `width` pixels out of `region` (uint8, rows × columns × 3), beginning at (left, top), `step` apart.

    All in pixels of `region`. Shrinking (step >= 1) is the exact mean over each output pixel's square, fractions
    of source pixels included; an edge in the source therefore touches one output pixel, never two. Enlarging is linear
    interpolation between pixel centres.
    """
    whole = float(step).is_integer() and float(left).is_integer() and float(top).is_integer()
    if whole and step == 1:
        return np.ascontiguousarray(region[int(top) : int(top) + height, int(left) : int(left) + width])
    if step < 1 or (whole and step % 2 == 0):  # for odd steps Pillow's rounding is slightly off
        from PIL import Image

        box = (left, top, min(left + width * step, region.shape[1]), min(top + height * step, region.shape[0]))
        image = Image.fromarray(region)
        if step < 1:
            return np.array(image.resize((width, height), Image.Resampling.BILINEAR, box=box))
        return np.array(image.reduce(int(step), box=(int(left), int(top), int(box[2]), int(box[3]))))
    rows = _averaging(top, step, height, len(region)) @ region.reshape(len(region), -1).astype(np.float32)
    columns = _turned(rows.reshape(height, -1, 3))
    averaged = _averaging(left, step, width, len(columns)) @ columns.reshape(len(columns), -1)
    return _turned(np.rint(averaged).astype(np.uint8).reshape(width, height, 3))


def _turned(image: np.ndarray) -> np.ndarray:
    """Rows become columns, in memory too: averaging runs along whole rows, which is fast."""
    return np.ascontiguousarray(image.transpose(1, 0, 2))


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


# Objectives from 1x to 100x lie well inside; a resolution tag of 72 or 300 dpi (a printer's) lies well outside.
_BELIEVABLE = (0.02, 20.0)


def choose_mpp(stated: tuple[float | None, float | None], given: float | None) -> tuple[float | None, tuple[str, ...]]:
    """The pixel size to use and the notes about it, from (x, y) in the file and the user's own value, which wins."""
    if given is not None and not (isfinite(given) and given > 0):
        raise ConfigError(f"--mpp: must be a positive number of micrometres per pixel, got {given}")
    values, notes = [v for v in stated if v is not None], []
    if not all(_BELIEVABLE[0] <= v <= _BELIEVABLE[1] for v in values):
        notes.append(f"mpp: the file says {values[0]:g} µm, which no microscope gives; treated as unknown")
        values = []
    found = sum(values) / len(values) if values else None
    if found is not None and max(values) - min(values) > 0.01 * found:
        notes.append(f"mpp: pixels are not square, {values[0]:g} × {values[-1]:g} µm; the mean {found:g} is used")
    if found is not None and given is not None and abs(given - found) > 0.01 * found:
        notes.append(f"mpp: the file says {found:g}, the user {given:g}; the user's is used")
    return (found if given is None else float(given)), tuple(notes)


# A level is good enough for a scale that is up to 1 % finer: scanners round their downsamples.
_LEVEL_TOLERANCE = 1.01
# Largest square that is decoded in one go; larger requests are put together from such blocks.
_BLOCK = 4096
# Positions closer to a whole pixel than this are whole: the rest is the rounding of a division.
_WHOLE = 1e-6


class DamagedTile(DataError):  # noqa: N818
    """This part of the slide cannot be decoded; the rest of the slide still can."""

    def __init__(self, path: str, x: float, y: float, reason: str):
        super().__init__(path, x, y, reason)
        self.path, self.x, self.y, self.reason = self.args  # without line breaks

    def __str__(self) -> str:
        place = f"x={self.x:.10g}, y={self.y:.10g}"
        return f"{self.path}: the region at {place} (level 0) is damaged ({self.reason}); skip this tile"


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of the whole slide.

    image    uint8 (height, width, 3)
    scale    level-0 pixels per thumbnail pixel, exact: column j covers x from j · scale to (j + 1) · scale, rows alike
    damaged  level-0 squares (x, y, width, height) that could not be decoded and were left white
    """

    image: np.ndarray
    scale: float
    damaged: tuple[tuple[float, float, float, float], ...] = ()


class Slide(ABC):
    """A slide that is open for reading; use one per process and pass paths, not slides, to others.

    path         the file or folder it came from
    size         (width, height) of level 0
    mpp          micrometres per level-0 pixel; None when the file does not say
    downsamples  level-0 pixels per pixel of each level
    level_sizes  (width, height) of each level
    bounds       (x, y, width, height) of the scanned area in level-0 pixels
    reader       the library that decodes the pixels: part of a recipe, since decoders may differ
    notes        what a careful user should know about this file
    """

    path: Path
    size: tuple[int, int]
    mpp: float | None
    downsamples: tuple[float, ...]
    level_sizes: tuple[tuple[int, int], ...]
    bounds: tuple[int, int, int, int]
    reader: str
    notes: tuple[str, ...]

    @abstractmethod
    def _pixels(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        """Pixels of a level as uint8 (height, width, 3); the rectangle lies inside the level."""

    @abstractmethod
    def close(self) -> None:
        """Give the file back; reading afterwards is an error."""

    def read(self, x: float, y: float, footprint: float, pixels: int) -> np.ndarray:
        """The square with its top-left corner at level-0 pixel (x, y), `footprint` level-0 pixels wide, as RGB.

        Gives uint8 (pixels, pixels, 3), from the coarsest level that is still fine enough; outside the slide is white.
        """
        if not (pixels >= 1 and 0 < footprint < float("inf") and isfinite(x) and isfinite(y)):
            raise ConfigError(f"read: x={x}, y={y}, footprint={footprint}, pixels={pixels} is not a square of pixels")
        try:
            return self._sampled(x, y, footprint / pixels, pixels, pixels)
        except DamagedTile as damage:
            raise DamagedTile(str(self.path), x, y, damage.reason) from None

    def read_um(self, x: float, y: float, size_um: float, pixels: int) -> np.ndarray:
        """The same square, its width given in micrometres."""
        return self.read(x, y, size_um / need_mpp(self), pixels)

    def thumbnail(self, max_side: int) -> Thumbnail:
        """The whole slide in at most max_side × max_side pixels, with its exact scale; never enlarged."""
        if max_side < 1:
            raise ConfigError(f"thumbnail: max_side must be at least 1, got {max_side}")
        scale = max(1.0, max(self.size) / max_side)
        width, height = (min(max_side, ceil(side / scale - _WHOLE)) for side in self.size)
        image = np.empty((height, width, 3), np.uint8)
        return Thumbnail(image, scale, damaged=tuple(self._fill(image, 0, 0, scale)))

    def best_level(self, scale: float) -> int:
        """The level to read from for `scale` level-0 pixels per output pixel: the coarsest that loses nothing."""
        fine = [level for level, d in enumerate(self.downsamples) if d <= scale * _LEVEL_TOLERANCE]
        return max(fine, key=self.downsamples.__getitem__, default=0)

    def _fill(self, image: np.ndarray, x: float, y: float, scale: float) -> Iterator[tuple[float, float, float, float]]:
        """Paint `image` from (x, y) on; around damage in smaller and smaller parts, so that only those stay white."""
        height, width = image.shape[:2]
        try:
            image[:] = self._sampled(x, y, scale, width, height)
        except DamagedTile:
            longest = max(width, height)
            if longest == 1 or longest * scale <= 256 * self.downsamples[self.best_level(scale)]:
                image[:] = 255
                yield (x, y, width * scale, height * scale)
                return
            right, down = (width // 2, 0) if width >= height else (0, height // 2)
            yield from self._fill(image[: down or None, : right or None], x, y, scale)
            yield from self._fill(image[down:, right:], x + right * scale, y + down * scale, scale)

    def _sampled(self, x: float, y: float, scale: float, width: int, height: int) -> np.ndarray:
        """`height` × `width` pixels, `scale` level-0 pixels apart, in blocks that fit into memory."""
        level = self.best_level(scale)
        downsample = self.downsamples[level]
        left, top, step = (_whole(value / downsample) for value in (x, y, scale))
        if step > _BLOCK:
            raise ConfigError(
                f"{self.path}: one pixel out of {step:.0f} × {step:.0f} is too coarse; ask for more pixels"
            )
        side = max(1, int(_BLOCK / step))
        if max(width, height) <= side:
            return self._block(level, left, top, step, width, height)
        image = np.empty((height, width, 3), np.uint8)
        for i in range(0, height, side):
            for j in range(0, width, side):
                part = image[i : i + side, j : j + side]
                part[:] = self._block(level, left + j * step, top + i * step, step, part.shape[1], part.shape[0])
        return image

    def _block(self, level: int, left: float, top: float, step: float, width: int, height: int) -> np.ndarray:
        columns, rows = self.level_sizes[level]
        x, right = _span(left, width, step, columns)
        y, bottom = _span(top, height, step, rows)
        return _resample(self._over_white(level, x, y, right - x, bottom - y), left - x, top - y, step, width, height)

    def _over_white(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        """Any rectangle of a level: white where the level has no pixels."""
        full_width, full_height = self.level_sizes[level]
        x, y, right, bottom = max(left, 0), max(top, 0), min(left + width, full_width), min(top + height, full_height)
        if (x, y, right, bottom) == (left, top, left + width, top + height):
            return self._pixels(level, left, top, width, height)
        canvas = np.full((height, width, 3), 255, np.uint8)
        if x < right and y < bottom:
            canvas[y - top : bottom - top, x - left : right - left] = self._pixels(level, x, y, right - x, bottom - y)
        return canvas

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.path}: an open slide cannot be sent to another process; send its path and open it there"
        )


def need_mpp(slide: Slide) -> float:
    """Micrometres per level-0 pixel; an error that asks for it when the file does not say."""
    if slide.mpp is None:
        raise DataError(
            f"{slide.path}: the pixel size is not in the file; "
            "give it with --mpp (micrometres per pixel at full resolution, for example 0.25 for most 40x scans)"
        )
    return slide.mpp


def _span(start: float, count: int, step: float, size: int) -> tuple[int, int]:
    """First and last + 1 source pixel of `count` output pixels.

    Enlarging looks one pixel further, but not across the edge of the slide, where white begins.
    """
    low, high = floor(start), ceil(_whole(start + count * step))
    if step >= 1:
        return low, high
    return (low if low in (0, size) else low - 1), (high if high in (0, size) else high + 1)


def _whole(value: float) -> float:
    nearest = round(value)
    return float(nearest) if abs(value - nearest) < _WHOLE else value
