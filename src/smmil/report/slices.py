"""Slices of a scan as one small picture, so that the strip of a case can show the slice under the hand."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from smmil.images import Volume, open_volume
from smmil.images.windows import Window, parse_window, window
from smmil.report.cases import Case
from smmil.report.jpeg import as_jpeg
from smmil.report.matching import slice_numbers
from smmil.report.originals import Original

_SIDES = (384, 320, 256, 192, 128, 96, 64, 48)
_WIDEST = 6000  # pixels of a picture's side; browsers refuse much larger ones


@dataclass(frozen=True)
class ScanPicture:
    """A JPEG (base64) with all slices from foot to head, row by row, `across` to a row, each of that width and height.

    area    None: unlike the picture of a slide it covers nothing
    damage  None: a scan with a slice that cannot be read is not shown at all
    """

    jpeg: str
    across: int
    width: int
    height: int
    count: int
    area: None = None
    damage: None = None

    @property
    def layout(self) -> list[int]:
        return [self.across, self.width, self.height, self.count]


def scan_picture(original: Original, case: Case, most_bytes: int, shades: Window = "brain") -> ScanPicture:
    """All slices through a window, as the largest JPEG that fits into `most_bytes` (the smallest, when none does)."""
    volume = open_volume(original.path)
    slice_numbers(case, volume)
    grey = _grey(volume, parse_window(shades))
    for side in _sides(len(grey)):
        sheet, across, (height, width) = _sheet(grey, side)
        jpeg = as_jpeg(sheet)
        if len(jpeg) <= most_bytes:
            break
    return ScanPicture(jpeg, across, width, height, len(grey))


def _sides(count: int) -> list[int]:
    """Widths of a slice that keep the whole picture small enough to be shown."""
    fitting = [side for side in _SIDES if side * ceil(count**0.5) <= _WIDEST]
    return fitting or [max(8, _WIDEST // ceil(count**0.5))]


def _grey(volume: Volume, shades: tuple[float, float]) -> np.ndarray:
    """(slices, rows, columns) uint8, pixels made square, at most as fine as the largest picture needs."""
    from PIL import Image

    x, y, _ = volume.spacing_mm
    rows, columns = volume.shape[1] * y, volume.shape[2] * x
    unit = min(_SIDES[0], max(volume.shape[1:])) / max(rows, columns)
    size = max(1, round(columns * unit)), max(1, round(rows * unit))
    pictures = (window(volume.slice_hu(i), *shades) * 255 for i in range(len(volume)))
    return np.stack([
        np.asarray(Image.fromarray(np.rint(p).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR))
        for p in pictures
    ])  # fmt: skip


def _sheet(grey: np.ndarray, side: int) -> tuple[np.ndarray, int, tuple[int, int]]:
    """All slices row by row, at most `side` pixels wide and high each; their number per row and their size."""
    from PIL import Image

    factor = min(1.0, side / max(grey.shape[1:]))
    height, width = (max(1, round(length * factor)) for length in grey.shape[1:])
    across = ceil(len(grey) ** 0.5)
    sheet = np.zeros((height * ceil(len(grey) / across), width * across), np.uint8)
    for index, picture in enumerate(grey):
        top, left = index // across * height, index % across * width
        small = Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR)
        sheet[top : top + height, left : left + width] = np.asarray(small)
    return sheet, across, (height, width)
