"""Label images: one code per pixel, read block by block, and only where there are instances."""

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.annotations.labels import annotation_errors
from smmil.errors import DataError, MissingExtra
from smmil.images.opening import MAX_PIXELS

SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif", ".pgm")
# Codes of PANDA's masks: all that occur, and those that are cancer.
PANDA = {"panda-radboud": (range(6), (3, 4, 5)), "panda-karolinska": (range(3), (2,))}
# Blocks are summed as whole numbers of 8 bytes per pixel, so they are cut to this side.
_SIDE = 2048

Block = tuple[int, int, np.ndarray]


@dataclass(frozen=True)
class LabelImage:
    """A label image that was opened, not decoded: its size, and the codes that mean lesion (None: all but 0).

    codes  those that may occur (None: any besides 0)       first_channel  codes are in the red channel, as in PANDA
    """

    path: Path
    width: int
    height: int
    positive: tuple[int, ...] | None
    codes: tuple[int, ...] | None = None
    first_channel: bool = False

    def lesions(self, boxes: np.ndarray) -> Iterator[Block]:
        """left, top and a yes/no array for every block that touches a box (x0, y0, x1, y1 in pixels of the image)."""
        seen: set[int] = set()
        with annotation_errors(self.path, "a label image"):
            for left, top, block in self._blocks(boxes):
                codes = self._plain(block)
                seen |= set(np.unique(codes).tolist())
                self._refuse_strange(seen)
                lesion = codes != 0 if self.positive is None else np.isin(codes, self.positive)
                for y in range(0, lesion.shape[0], _SIDE):
                    for x in range(0, lesion.shape[1], _SIDE):
                        yield left + x, top + y, lesion[y : y + _SIDE, x : x + _SIDE]

    def _blocks(self, boxes: np.ndarray) -> Iterator[Block]:
        if self.path.suffix.lower() in (".tif", ".tiff"):
            yield from _tiff_blocks(self.path, boxes)
        else:
            yield 0, 0, _decoded(self.path)

    def _plain(self, block: np.ndarray) -> np.ndarray:
        """One code per pixel; colours are refused unless all channels say the same."""
        if block.ndim == 3:
            if not self.first_channel and (block != block[..., :1]).any():
                raise DataError(
                    "the image has colours, expected one code per pixel; for a mask of PANDA give the kind "
                    "panda-radboud or panda-karolinska (the table says which)"
                )
            block = block[..., 0]
        if block.dtype.kind not in "iub":
            raise DataError(f"pixels of type {block.dtype}, expected whole numbers as codes")
        return block

    def _refuse_strange(self, seen: set[int]) -> None:
        if self.codes is not None and (strange := sorted(seen - set(self.codes))):
            raise DataError(
                f"code {strange[0]} cannot occur, expected {min(self.codes)} to {max(self.codes)}; wrong kind?"
            )
        if self.positive is None and len(seen - {0}) > 1:
            listed = ", ".join(map(str, sorted(seen)[:10]))
            raise DataError(f"holds the codes {listed}; say which of them are lesions (--positive)")


def open_mask(path: str | Path, kind: str = "label-image", positive: Collection[int] | None = None) -> LabelImage:
    """Open a label image; `kind` is one of PANDA's providers or label-image, `positive` the codes of lesions."""
    path = Path(path)
    chosen = None if positive is None else tuple(int(code) for code in positive)
    with annotation_errors(path, "a label image"):
        width, height = _tiff_size(path) if path.suffix.lower() in (".tif", ".tiff") else _plain_size(path)
        if kind in PANDA:
            codes, cancer = PANDA[kind]
            return LabelImage(path, width, height, chosen or cancer, tuple(codes), first_channel=True)
        return LabelImage(path, width, height, chosen)


def _opened(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow", "slides", "reading images") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(path)
    except Image.DecompressionBombError as problem:
        raise DataError(str(problem)) from None
    if image.width * image.height > MAX_PIXELS:
        raise DataError(f"{image.width} x {image.height} pixels, at most {MAX_PIXELS:,}; write it as a tiled TIFF")
    return image


def _plain_size(path: Path) -> tuple[int, int]:
    with _opened(path) as image:
        return image.size


def _decoded(path: Path) -> np.ndarray:
    with _opened(path) as image:
        # Of grey with transparency only the grey counts; palettes are read as their indices.
        pixels = np.asarray(image)
        return pixels[..., 0] if image.mode == "LA" else pixels


def _tifffile() -> Any:
    try:
        import tifffile
    except ImportError:
        raise MissingExtra("tifffile", "slides", "reading TIFF masks") from None
    return tifffile


def _tiff_size(path: Path) -> tuple[int, int]:
    with _tifffile().TiffFile(path) as file:
        page = file.pages[0]
        return int(page.imagewidth), int(page.imagelength)


def _tiff_blocks(path: Path, boxes: np.ndarray) -> Iterator[Block]:
    """The tiles or strips of the full-resolution page that touch a box; absent ones hold 0."""
    with _tifffile().TiffFile(path) as file:
        page = file.pages[0]
        rows, columns = _segment(page)
        wanted = _touched(boxes, page.imagewidth, page.imagelength, columns, rows)
        if len(page.dataoffsets) != wanted.size:
            raise DataError(f"{len(page.dataoffsets)} segments, expected {wanted.size} (one plane, one depth)")
        for index in np.flatnonzero(wanted.ravel()).tolist():
            if not page.databytecounts[index]:
                continue
            top, left = (
                int(at) * size for at, size in zip(divmod(index, wanted.shape[1]), (rows, columns), strict=True)
            )
            yield left, top, _segment_pixels(file, page, index)[: page.imagelength - top, : page.imagewidth - left]


def _segment(page: Any) -> tuple[int, int]:
    """Height and width of a tile or strip, refused when it is too large to be decoded."""
    rows, columns = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
    rows = min(int(rows), int(page.imagelength)) if not page.is_tiled else int(rows)
    if not (0 < rows * int(columns) <= MAX_PIXELS):
        raise DataError(f"a tile of {columns} x {rows} pixels, at most {MAX_PIXELS:,}; write the mask in smaller tiles")
    return rows, int(columns)


def _segment_pixels(file: Any, page: Any, index: int) -> np.ndarray:
    file.filehandle.seek(page.dataoffsets[index])
    data = file.filehandle.read(page.databytecounts[index])
    decoded = page.decode(data, index, jpegtables=page.jpegtables)[0]
    if decoded is None:
        raise DataError(f"segment {index} cannot be decoded")
    return decoded[0, ..., 0] if decoded.shape[-1] == 1 else decoded[0]


def _touched(boxes: np.ndarray, width: int, height: int, columns: int, rows: int) -> np.ndarray:
    """Which segments, (down, across), a box lies over: +1 and -1 at the corners, summed up."""
    down, across = -(-height // rows), -(-width // columns)
    first = np.clip(np.floor(boxes[:, :2] / (columns, rows)).astype(np.int64), 0, (across, down))
    last = np.clip(np.ceil(boxes[:, 2:] / (columns, rows)).astype(np.int64), 0, (across, down))
    count = np.zeros((down + 1, across + 1), dtype=np.int64)
    for x, y, sign in ((first, first, 1), (last, last, 1), (first, last, -1), (last, first, -1)):
        np.add.at(count, (y[:, 1], x[:, 0]), sign)
    return count.cumsum(0).cumsum(1)[:down, :across] > 0
