"""Hounsfield units to what an encoder can see: windows, and windows or neighbouring slices as channels."""

from collections.abc import Iterator, Sequence

import numpy as np

from smmil.errors import ConfigError, suggest
from smmil.images.volume import Volume

# centre, width
PRESETS: dict[str, tuple[float, float]] = {
    "brain": (40, 80),
    "subdural": (80, 200),
    "stroke": (30, 30),
    "soft_tissue": (40, 400),
    "bone": (600, 2800),
    "lung": (-600, 1500),
    "mediastinum": (50, 350),
    "abdomen": (60, 400),
    "liver": (60, 160),
}
RSNA = ("brain", "subdural", "stroke")
"""The three windows of the RSNA haemorrhage recipe: 40/80, 80/200, 30/30."""

Window = str | tuple[float, float]


def window(hu: np.ndarray, centre: float, width: float) -> np.ndarray:
    """Shades from 0 (at centre - width/2 and below) to 1 (at centre + width/2 and above), linear between; float32."""
    _check(centre, width, f"window {centre}/{width}")
    low = centre - width / 2
    return np.clip((np.asarray(hu, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1)


def parse_window(value: Window) -> tuple[float, float]:
    """Centre and width from a name ("brain"), from text ("40/80") or from a pair."""
    if not isinstance(value, str):
        centre, width = value
        return _check(centre, width, f"window {value}")
    if value in PRESETS:
        return PRESETS[value]
    parts = value.split("/")
    try:
        centre, width = (float(part) for part in parts)
    except ValueError:
        hint = suggest(value, PRESETS)
        raise ConfigError(f"window {value!r}: neither a known name nor centre/width such as 40/80; {hint}") from None
    return _check(centre, width, f"window {value!r}")


def _check(centre: float, width: float, what: str) -> tuple[float, float]:
    if not (np.isfinite(centre) and np.isfinite(width) and width > 0):
        raise ConfigError(f"{what}: the centre must be a number and the width a positive one")
    return float(centre), float(width)


def window_channels(hu: np.ndarray, windows: Sequence[Window] = RSNA) -> np.ndarray:
    """The same picture through several windows, as channels (windows, ...) of float32 in 0..1."""
    if isinstance(windows, str) or not len(windows):
        raise ConfigError(f"windows: expected a list such as {list(RSNA)}, got {windows!r}")
    return np.stack([window(hu, *parse_window(w)) for w in windows])


def triplet(volume: Volume, index: int) -> np.ndarray:
    """Slices index - 1, index and index + 1 as channels (3, rows, columns) of HU; the outermost slice is repeated."""
    last = len(volume) - 1
    return np.stack([volume.slice_hu(i) for i in (max(index - 1, 0), index, min(index + 1, last))])


def triplets(volume: Volume) -> Iterator[np.ndarray]:
    """`triplet` for every slice in turn, reading each slice once."""
    below = here = volume.slice_hu(0)
    for index in range(len(volume)):
        above = volume.slice_hu(index + 1) if index + 1 < len(volume) else here
        yield np.stack([below, here, above])
        below, here = here, above
