"""Label images read block by block, and the annotated share of every instance: exact areas of polygons and pixels.

Boxes are cut into the cells of a common grid, so that overlapping instances cost nothing extra. The area of a polygon
in every cell at once comes from its border alone (Green's theorem): a piece of border that rises by dy adds dy times
the width of the cell that lies to its right, in its own cell and in all further ones of the row.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.annotations.labels import annotation_errors
from smmil.annotations.polygons import _shapely
from smmil.errors import DataError, MissingExtra
from smmil.files import check_once, need_file
from smmil.images.opening import MAX_PIXELS
from smmil.images.tiff_slide import check_picture, check_tiff_directory

SUFFIXES = (".png", ".bmp", ".tif", ".tiff", ".gif", ".pgm")
# Codes of PANDA's masks: all that occur, and those that are cancer.
PANDA = {"panda-radboud": (range(6), (3, 4, 5)), "panda-karolinska": (range(3), (2,))}
# Blocks are summed as whole numbers of 8 bytes per pixel, so they are cut to this side.
_SIDE = 2048

Block = tuple[int, int, np.ndarray]


@dataclass(frozen=True)
class _LabelImage:
    """A label image that was opened, not decoded."""

    path: Path
    width: int
    height: int
    positive: tuple[int, ...] | None  # codes that mean lesion; None: the only one but 0; (): all but 0
    codes: tuple[int, ...] | None = None  # those that may occur; None: any besides 0
    first_channel: bool = False  # codes are in the red channel, as in PANDA

    def lesions(self, boxes: np.ndarray) -> Iterator[Block]:
        """left, top and a yes/no array for every block that touches a box (x0, y0, x1, y1 in pixels of the image)."""
        seen: set[int] = set()
        with annotation_errors(self.path, "a label image"):
            tiff = _is_tiff(self.path)
            for left, top, block in _tiff_blocks(self.path, boxes) if tiff else [(0, 0, _decoded(self.path))]:
                codes = self._plain(block)
                seen |= set(np.unique(codes).tolist())
                self._refuse_strange(seen)
                lesion = codes != 0 if not self.positive else np.isin(codes, self.positive)
                for y in range(0, lesion.shape[0], _SIDE):
                    for x in range(0, lesion.shape[1], _SIDE):
                        yield left + x, top + y, lesion[y : y + _SIDE, x : x + _SIDE]

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
            raise DataError(f"holds the codes {listed}; say which of them are lesions (--positive, or --positive any)")


def open_mask(path: str | Path, kind: str = "label-image", positive: Collection[int] | None = None) -> _LabelImage:
    """Open a label image; `kind` is label-image or a provider of PANDA, `positive` the codes of lesions ([]: any)."""
    path = Path(path)
    chosen = None if positive is None else tuple(int(code) for code in positive)
    with annotation_errors(path, "a label image"):
        with _opened_tiff(path) if _is_tiff(path) else _opened(path) as image:
            size = (image.pages[0].imagewidth, image.pages[0].imagelength) if _is_tiff(path) else image.size
            width, height = map(int, size)  # in a damaged TIFF they may be anything
        if kind in PANDA:
            codes, cancer = PANDA[kind]
            return _LabelImage(
                path, width, height, cancer if chosen is None else chosen, tuple(codes), first_channel=True
            )
        return _LabelImage(path, width, height, chosen)


def _opened(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Pillow", "slides", "reading images") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(need_file(path))
            check_picture(path, image.format, image)
    except Image.DecompressionBombError as problem:
        raise DataError(str(problem)) from None
    if image.width * image.height > MAX_PIXELS:
        raise DataError(f"{image.width} x {image.height} pixels, at most {MAX_PIXELS:,}; write it as a tiled TIFF")
    return image


def _decoded(path: Path) -> np.ndarray:
    with _opened(path) as image:
        # Of grey with transparency only the grey counts; palettes are read as their indices.
        pixels = np.asarray(image)
        return pixels[..., 0] if image.mode == "LA" else pixels


def _is_tiff(path: Path) -> bool:
    return path.suffix.lower() in (".tif", ".tiff")


def _opened_tiff(path: Path) -> Any:
    try:
        import tifffile
    except ImportError:
        raise MissingExtra("tifffile", "slides", "reading TIFF masks") from None
    check_once(path, check_tiff_directory)
    return tifffile.TiffFile(path)


def _tiff_blocks(path: Path, boxes: np.ndarray) -> Iterator[Block]:
    """The tiles or strips of the full-resolution page that touch a box; absent ones hold 0."""
    with _opened_tiff(path) as file:
        page = file.pages[0]
        rows, columns = _segment(page)
        wanted = _touched(boxes, page.imagewidth, page.imagelength, columns, rows)
        if len(page.dataoffsets) != wanted.size:
            raise DataError(f"{len(page.dataoffsets)} segments, expected {wanted.size} (one plane, one depth)")
        for index in np.flatnonzero(wanted.ravel()).tolist():
            if not page.databytecounts[index]:
                if page.dataoffsets[index]:  # of an absent one both are 0
                    raise DataError(f"segment {index} has a place and no size, the file is damaged; copy it again")
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


# Rounding of areas must not tip the scales at exactly one half.
_DIGITS = 8
# Instances on a lattice share the lines of the grid; scattered ones do not and are taken in portions.
_CELLS, _PORTION = 2**24, 1000


def polygon_share(boxes: np.ndarray, area: Any) -> np.ndarray:
    """Share of each box (x0, y0, x1, y1) that lies inside `area`, a shapely geometry of polygons."""
    start, end = _border(area)
    covered, everything = np.zeros(len(boxes)), np.arange(len(boxes))
    crossings = len(np.unique(boxes[:, 0::2])) * len(np.unique(boxes[:, 1::2]))
    for part in [everything] if crossings <= _CELLS else np.split(everything, everything[_PORTION::_PORTION]):
        covered[part] = _area_inside(boxes[part], start, end)
    return _share(covered, boxes)


def _border(area: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where every straight piece of the border begins and ends, with the inside always on the same side."""
    shapely = _shapely()
    polygons = [part for part in shapely.get_parts(area) if part.geom_type == "Polygon" and not part.is_empty]
    starts, ends = [np.zeros((0, 2))], [np.zeros((0, 2))]
    for polygon in polygons:
        for number, ring in enumerate(shapely.get_rings(polygon)):
            points = shapely.get_coordinates(ring)
            if shapely.is_ccw(ring) == (number == 0):
                points = points[::-1]
            starts.append(points[:-1])
            ends.append(points[1:])
    return np.concatenate(starts), np.concatenate(ends)


def _area_inside(boxes: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Covered area of each box: sums over the cells of the grid that the sides of all boxes make."""
    x, y = np.unique(boxes[:, 0::2]), np.unique(boxes[:, 1::2])
    sums = np.zeros((len(y), len(x)))
    np.cumsum(np.cumsum(_cells(x, y, start, end), axis=0), axis=1, out=sums[1:, 1:])
    left, right = np.searchsorted(x, boxes[:, 0]), np.searchsorted(x, boxes[:, 2])
    top, bottom = np.searchsorted(y, boxes[:, 1]), np.searchsorted(y, boxes[:, 3])
    return sums[bottom, right] - sums[bottom, left] - sums[top, right] + sums[top, left]


def _cells(x: np.ndarray, y: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Covered area of each cell between the lines `x` and `y`, (rows, columns)."""
    low, high = np.minimum(start, end), np.maximum(start, end)
    near = (high[:, 1] > y[0]) & (low[:, 1] < y[-1]) & (low[:, 0] < x[-1]) & (low[:, 1] < high[:, 1])
    middle, rise = _pieces(x, y, start[near], end[near])
    column, row = np.searchsorted(x, middle[:, 0], "right") - 1, np.searchsorted(y, middle[:, 1], "right") - 1
    kept = (row >= 0) & (row < len(y) - 1) & (column < len(x) - 1)
    column, row, across, rise = column[kept], row[kept], middle[kept, 0], rise[kept]
    own, further = np.zeros((len(y) - 1, len(x) - 1)), np.zeros((len(y) - 1, len(x)))
    inside = column >= 0
    np.add.at(own, (row[inside], column[inside]), (rise * (x[column + 1] - across))[inside])
    np.add.at(further, (row, column + 1), rise)
    return own + np.cumsum(further, axis=1)[:, :-1] * np.diff(x)


def _pieces(x: np.ndarray, y: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The border cut at every line it crosses: the middle of each piece, and by how much it rises."""
    edges = np.arange(len(start))
    crossings = [_crossings(lines, start[:, axis], end[:, axis]) for axis, lines in enumerate((x, y))]
    edge = np.concatenate([edges, edges, *(which for which, _ in crossings)])
    at = np.concatenate([np.zeros(len(start)), np.ones(len(start)), *(where for _, where in crossings)])
    order = np.lexsort((at, edge))
    edge, at = edge[order], np.clip(at[order], 0, 1)
    first = np.flatnonzero(edge[:-1] == edge[1:])
    which, middle, length = edge[first], (at[first] + at[first + 1]) / 2, at[first + 1] - at[first]
    way = end[which] - start[which]
    return start[which] + middle[:, None] * way, length * way[:, 1]


def _crossings(lines: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which pieces of border cross which lines, and after what share of their way."""
    first = np.searchsorted(lines, np.minimum(start, end), "right")
    count = np.maximum(np.searchsorted(lines, np.maximum(start, end), "left") - first, 0)
    which = np.repeat(np.arange(len(start)), count)
    number = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    crossed = lines[first[which] + number]
    return which, (crossed - start[which]) / (end[which] - start[which])


def pixel_share(boxes: np.ndarray, blocks: Iterable[Block]) -> np.ndarray:
    """Share of each box that lies on lesion pixels; boxes may begin and end inside a pixel."""
    covered = np.zeros(len(boxes))
    for left, top, lesion in blocks:
        if not lesion.any():
            continue
        height, width = lesion.shape
        local = np.clip(boxes - (left, top, left, top), 0, (width, height, width, height))
        near = np.flatnonzero((local[:, :2] < local[:, 2:]).all(1))
        covered[near] += _pixels_inside(lesion, local[near])
    return _share(covered, boxes)


def _pixels_inside(lesion: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Lesion area in each box from an integral image: exact, since the integral is bilinear inside a pixel."""
    sums = np.zeros((lesion.shape[0] + 1, lesion.shape[1] + 1), dtype=np.int64)
    np.cumsum(np.cumsum(lesion, axis=0, dtype=np.int64), axis=1, out=sums[1:, 1:])
    x0, y0, x1, y1 = boxes.T
    return _at(sums, x1, y1) - _at(sums, x0, y1) - _at(sums, x1, y0) + _at(sums, x0, y0)


def _at(sums: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    left = np.minimum(np.floor(x).astype(np.int64), sums.shape[1] - 2)
    top = np.minimum(np.floor(y).astype(np.int64), sums.shape[0] - 2)
    right, down = x - left, y - top
    upper = sums[top, left] * (1 - right) + sums[top, left + 1] * right
    lower = sums[top + 1, left] * (1 - right) + sums[top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


def _share(covered: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    size = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return np.clip(np.round(covered / size, _DIGITS), 0.0, 1.0) + 0.0
