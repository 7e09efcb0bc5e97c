"""Slides of scanners, through OpenSlide; tiled TIFF ones faster where that gives the same pixels."""

import os
from collections.abc import Mapping
from contextlib import suppress
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.files import check_once
from smmil.images.slide import DamagedTile, Slide, choose_mpp
from smmil.images.tiff_slide import _check_qptiff, _check_tile_size, _check_tile_table, _TiffTiles

# A single tile of more pixels is not a tile but a trap (or an untiled image): decoding it needs gigabytes.
_TIFF = ("aperio", "generic-tiff", "leica", "philips-tiff", "trestle", "ventana")
_TILED_TIFF = ("aperio", "generic-tiff")  # those with one grid of tiles per level and nothing in between


class OpenSlideSlide(Slide):
    """A slide opened by OpenSlide.

    reader="openslide"  the pixels are OpenSlide's. Tiles of TIFF files are decoded directly on levels where OpenSlide
                        copies pixels unchanged (whole downsample), after comparing both ways on the slide itself
    reader="tifffile"   tiles are decoded directly on all levels. Where a level's size was rounded, OpenSlide shifts
                        pixels by a fraction, which blurs them; this does not, so pixels may differ on such levels
    fast=False          never decode directly
    """

    def __init__(self, path: str | Path, mpp: float | None = None, reader: str = "openslide", fast: bool = True):
        self.path = self._file = Path(path)  # `path` may be set to the folder of a DICOM slide; the file stays
        self.reader, self._closed = reader, False
        self._handle, self._process = _opened(self._file), os.getpid()
        properties = self._handle.properties
        if properties.get("openslide.vendor") in _TIFF:
            _check_tile_table(self._file)
        if properties.get("openslide.vendor") == "generic-tiff":
            check_once(self._file, _check_qptiff)
        self._steps = self._handle.level_downsamples
        self.size, self.level_sizes = self._handle.dimensions, self._handle.level_dimensions
        _check_tiles(self.path, properties, len(self.level_sizes))
        self.downsamples = tuple(
            _true_downsample(self.size, *pair) for pair in zip(self.level_sizes, self._steps, strict=True)
        )
        self.bounds = _bounds(properties, self.size)
        stated = (_number(properties, "openslide.mpp-x"), _number(properties, "openslide.mpp-y"))
        self.mpp, self.notes = choose_mpp(stated, mpp)
        tiled = properties.get("openslide.vendor") in _TILED_TIFF
        self._tiles = _TiffTiles(self._file, self.level_sizes) if tiled and (fast or reader == "tifffile") else None
        self._trusted: dict[int, bool] = {}
        if reader == "tifffile" and not self._trusts(0):
            self.close()
            raise ConfigError(
                f"{self.path}: reader 'tifffile' needs a TIFF with JPEG or uncompressed 8-bit RGB tiles; "
                "use reader 'openslide'"
            )

    def _pixels(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        if self._closed:
            raise ValueError(f"{self.path}: read after close")
        if os.getpid() != self._process:  # a forked child must not share file positions with its parent
            self._handle, self._process = _opened(self._file), os.getpid()
        direct = None
        if self._tiles is not None and self._trusts(level):
            try:
                direct = self._tiles.region(level, left, top, width, height)
            except ValueError as problem:
                step = self._steps[level]
                raise DamagedTile(str(self.path), left * step, top * step, str(problem)) from None
        return self._composed(level, left, top, width, height) if direct is None else direct

    def _composed(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        """OpenSlide's own pixels over white. After an error a handle is unusable and is opened again."""
        import openslide

        step = self._steps[level]
        x, y = round(left * step), round(top * step)
        try:
            image = self._handle.read_region((x, y), level, (width, height))
        except openslide.OpenSlideError as problem:
            damaged, self._handle = self._handle, _opened(self._file)
            damaged.close()
            raise DamagedTile(str(self.path), x, y, str(problem)) from None
        return _over_white(image)

    def _trusts(self, level: int) -> bool:
        """Whether direct decoding gives what it should on this level; found out once, on its richest tiles."""
        if level not in self._trusted:
            self._trusted[level] = self._compared(level)
        return self._trusted[level]

    def _compared(self, level: int) -> bool:
        if self._tiles is None or self._tiles.levels[level] is None:
            return False
        if not float(self._steps[level]).is_integer():  # here OpenSlide blurs: nothing to compare with
            return self.reader == "tifffile"
        outcomes = []
        for place in self._tiles.richest(level):
            with suppress(DamagedTile, ValueError):  # damage says nothing about the decoder
                direct = self._tiles.region(level, *place)
                composed = self._composed(level, *place)
                outcomes += [] if direct is None else [np.array_equal(direct, composed)]
        return bool(outcomes) and all(outcomes)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._handle.close()
            if self._tiles is not None:
                self._tiles.close()


def _library() -> Any:
    """The openslide module, or an error that says how to get it."""
    try:
        import openslide
    except (ModuleNotFoundError, OSError):  # OSError: the Python part is there, the C _library is not
        raise MissingExtra("OpenSlide", "slides", "reading slides") from None
    return openslide


def _opened(path: Path) -> Any:
    openslide = _library()
    try:
        return openslide.OpenSlide(path)
    except (openslide.OpenSlideError, OSError, ValueError) as problem:
        raise DataError(
            f"{path}: OpenSlide cannot open it ({problem or 'damaged file'}); copy the slide again"
        ) from None


def _over_white(image: Any) -> np.ndarray:
    """RGB of an RGBA picture: white where it is transparent, as OpenSlide's is where nothing was scanned."""
    if image.getchannel("A").getextrema()[0] == 255:
        return np.asarray(image.convert("RGB"))
    from PIL import Image

    return np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB"))


def _true_downsample(size: tuple[int, int], level: tuple[int, int], stated: float) -> float:
    """The whole downsample whose rounded level size gave OpenSlide's fractional one (250 of 1003 pixels: 4, not 4.01).

    OpenSlide divides the sizes; a scanner that shrinks 1003 pixels by 4 and drops the rest has pixels of exactly 4.
    """
    for guess in (2 ** round(log2(max(stated, 1))), round(stated)):
        if all(full // guess <= part <= ceil(full / guess) for full, part in zip(size, level, strict=True)):
            return float(guess)
    return float(stated)


def _bounds(properties: Mapping[str, str], size: tuple[int, int]) -> tuple[int, int, int, int]:
    stated = [_number(properties, f"openslide.bounds-{side}") for side in ("x", "y", "width", "height")]
    x, y, width, height = (0, 0, *size) if None in stated else (int(side or 0) for side in stated)
    return x, y, width, height


def _number(properties: Mapping[str, str], name: str) -> float | None:
    try:
        return float(properties[name])
    except (KeyError, ValueError):
        return None


def _check_tiles(path: Path, properties: Mapping[str, str], levels: int) -> None:
    for level in range(levels):
        tile = f"openslide.level[{level}].tile"
        _check_tile_size(path, *(_number(properties, f"{tile}-{side}") or 0 for side in ("width", "height")))
