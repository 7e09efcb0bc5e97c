"""Direct decoder of tiled TIFF slides, faster than OpenSlide: read the compressed tile, decode it, copy it.

Checks of pictures that Pillow shows although they are damaged are here too.

It uses the same JPEG library as OpenSlide with the same settings, so the pixels are the same to the bit;
`openslide_slide` checks that on every slide before it relies on it.
"""

import logging
import os
import re
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from smmil.errors import DataError
from smmil.files import check_once

_MAX_TILE_PIXELS = 2**26
_CACHE_BYTES = 32 * 2**20
_NO_COMPRESSION, _JPEG = 1, 7
_RGB, _YCBCR = 2, 6
_MARKER = re.compile(rb"\xff([^\x00\xff])")

Decode = Callable[[bytes], np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class _TiledLevel:
    """Where the tiles of one level are in the file, and how to decode one."""

    width: int
    height: int
    tile: tuple[int, int]  # height, width
    offsets: np.ndarray
    counts: np.ndarray
    decode: Decode
    jpeg: bool

    @property
    def across(self) -> int:
        return -(-self.width // self.tile[1])


class _TiffTiles:
    """Decoded tiles of the levels that this way can read; the others are None."""

    def __init__(self, path: Path, level_sizes: tuple[tuple[int, int], ...]):
        self.levels = _levels(path, level_sizes)
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._length = os.fstat(self._file).st_size
        self._cache: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._cache.clear()

    def region(self, depth: int, left: int, top: int, width: int, height: int) -> np.ndarray | None:
        """A rectangle inside a level; None when a tile of it is absent, not decoded or of an unknown kind.

        A JPEG tile without its end is a ValueError: OpenSlide, and every other decoder, would paint the rest grey.
        """
        level = self.levels[depth]
        if level is None:
            return None
        rows, columns = level.tile
        image = np.empty((height, width, 3), np.uint8)
        for row in range(top // rows, -(-(top + height) // rows)):
            for column in range(left // columns, -(-(left + width) // columns)):
                tile = self._tile(depth, level, row * level.across + column)
                if tile is None:
                    return None
                x, y = column * columns - left, row * rows - top
                part = image[max(y, 0) : y + rows, max(x, 0) : x + columns]
                part[:] = tile[max(-y, 0) :, max(-x, 0) :][: part.shape[0], : part.shape[1]]
        return image

    def richest(self, depth: int, count: int = 3) -> list[tuple[int, int, int, int]]:
        """Rectangles (left, top, width, height) of the tiles with most data: the best places to compare decoders."""
        level = self.levels[depth]
        if level is None:
            return []
        rows, columns = level.tile
        places = [divmod(int(i), level.across) for i in np.argsort(level.counts, kind="stable")[::-1][:count]]
        corners = [(c * columns, r * rows) for r, c in places]
        return [(x, y, min(columns, level.width - x), min(rows, level.height - y)) for x, y in corners]

    def _tile(self, depth: int, level: _TiledLevel, index: int) -> np.ndarray | None:
        key = (depth, index)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        offset, count = int(level.offsets[index]), int(level.counts[index])
        if count == 0 or offset + count > self._length:
            return None
        data = _read_at(self._file, count, offset)
        if level.jpeg:
            _check_jpeg(data)
        try:
            tile = level.decode(data)
        except (ValueError, RuntimeError, OSError):  # imagecodecs' own errors are RuntimeErrors; OpenSlide decides
            return None
        self._cache[key] = tile
        while len(self._cache) * tile.nbytes > _CACHE_BYTES and len(self._cache) > 1:
            self._cache.popitem(last=False)
        return tile


def _check_tile_table(path: Path) -> None:
    """Refuse a file that promises tiles larger than itself, or than any: OpenSlide would ask for memory and abort."""
    length = path.stat().st_size
    for largest, width, height in _of_pages(
        path, lambda page: (max(page.databytecounts, default=0), *_tile_sides(page))
    ):
        _check_tile_size(path, width, height)
        if largest > length:
            raise DataError(
                f"{path}: a tile claims to have {largest:,} bytes, the file has {length:,}; copy the slide again"
            )


_QPTIFF, _QPTIFF_TAGS = "<PerkinElmer-QPI-ImageDescription>", ("ImageType", "Name")


def _check_qptiff(path: Path) -> None:
    """Refuse a QPTIFF of Akoya or PerkinElmer that is no RGB picture, or whose label would be taken for a level."""
    pages = [page for page in _of_pages(path, _qptiff_page) if page is not None]
    full = [(name, rgb) for kind, name, rgb, _ in pages if kind == "FullResolution"]
    if len(full) > 1 or not all(rgb for _, rgb in full):
        names = ", ".join(dict.fromkeys(name for name, _ in full if name.isprintable()))[:200]
        raise DataError(
            f"{path}: {len(full)} fluorescence channel(s) ({names or 'without names'}) and no RGB picture; export the "
            "channels you want as an RGB image with levels, for example from QuPath"
        )
    aside = [kind for kind, _, _, level in pages if level and kind not in ("FullResolution", "ReducedResolution")]
    if aside:
        raise DataError(f"{path}: its {aside[0]} image is marked as a level of the slide; export the slide again")


def _qptiff_page(page: Any) -> tuple[str, str, bool, bool] | None:
    """Kind, channel, whether it is RGB in 8 bits, and whether it counts as a level; None for a page of another kind."""
    text = page.description
    if _QPTIFF not in text:
        return None
    kind, name = (found[1] if (found := re.search(rf"<{tag}>([^<]*)</{tag}>", text)) else "" for tag in _QPTIFF_TAGS)
    level = bool(page.is_tiled and int(page.subfiletype) & 1)
    return kind, name, page.samplesperpixel == 3 and page.dtype == np.uint8, level


def _tile_sides(page: Any) -> tuple[float, float]:
    return float(np.max(page.tilewidth)), float(np.max(page.tilelength))  # in a damaged file there may be several


def _check_tile_size(path: Path, width: float, height: float) -> None:
    if width * height > _MAX_TILE_PIXELS:
        raise DataError(
            f"{path}: tiles of {width:.0f} × {height:.0f} pixels, at most {_MAX_TILE_PIXELS} pixels are decoded at "
            "once; convert it to a pyramid with smaller tiles"
        )


# Tags of a TIFF that say how many tiles or strips a page has.
_WIDTH, _LENGTH, _SAMPLES, _STRIP_ROWS, _PLANAR, _TILE_WIDTH, _TILE_LENGTH = 256, 257, 277, 278, 284, 322, 323
_DEPTH, _TILE_DEPTH = 32997, 32998
_LISTS = (273, 279, 324, 325)  # where tiles and strips begin, and how many bytes they have
_BYTES = {3: 2, 4: 4, 16: 8}  # of the kinds of number in such a list


def check_tiff_directory(path: Path) -> None:
    """Refuse a TIFF with more tiles or strips than it can list: tifffile would make a list of all that it promises.

    And one whose lists do not lie in it: tifffile passes over them, and OpenSlide takes other bytes for sizes, asks for
    so much memory and aborts.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        order = {b"II": "<", b"MM": ">"}.get(file.read(2))
        if order is None:
            return
        big = file.read(2) == struct.pack(f"{order}H", 43)
        offset = order + ("Q" if big else "I")
        file.seek(8 if big else 4)
        page, seen = _unpacked(file, offset), set[int]()
        while page and page not in seen and page < size:
            seen.add(page)
            file.seek(page)
            entries = _entries(file, order, big, size)
            if any(_outside(entry, size, 8 if big else 4, offset) for entry in entries if entry.tag in _LISTS):
                raise DataError(f"{path}: the list of its tiles does not lie in the file, it is damaged; copy it again")
            tags = _whole_numbers(entries, order, big)
            # Each tile or strip has an entry of two bytes or more.
            if tags.keys() >= {_WIDTH, _LENGTH} and 2 * _promised_segments(tags) > size:
                raise DataError(f"{path}: promises more tiles or strips than it can list, it is damaged; copy it again")
            page = _unpacked(file, offset)


class _Entry(NamedTuple):
    """A tag of a directory: its code, kind and number of values, and the bytes of the values or of their place."""

    tag: int
    kind: int
    number: int
    value: bytes


def _entries(file: IO[bytes], order: str, big: bool, size: int) -> list[_Entry]:
    """The directory at this place."""
    form = f"{order}HHQ8s" if big else f"{order}HHI4s"
    count = _unpacked(file, f"{order}Q" if big else f"{order}H")
    length = struct.calcsize(form)
    data = file.read(count * length) if count * length < size else b""
    return [_Entry(*entry) for entry in struct.iter_unpack(form, data[: len(data) // length * length])]


def _outside(entry: _Entry, size: int, inline: int, offset: str) -> bool:
    """Whether the numbers of an entry should lie elsewhere in the file, but do not."""
    length = entry.number * _BYTES.get(entry.kind, 0)
    if length <= inline:
        return False
    (place,) = struct.unpack(offset, entry.value)
    return bool(place < 8 or place + length > size)


def _whole_numbers(entries: list[_Entry], order: str, big: bool) -> dict[int, int]:
    """Tags of a directory that are whole numbers, by their codes."""
    forms = {1: "B", 3: "H", 4: "I", 16: "Q"} if big else {1: "B", 3: "H", 4: "I"}
    return {e.tag: struct.unpack_from(order + forms[e.kind], e.value)[0] for e in entries if e.kind in forms}


def _promised_segments(tags: Mapping[int, int]) -> int:
    planes = tags.get(_SAMPLES, 1) if tags.get(_PLANAR) == 2 else 1
    if _TILE_WIDTH in tags and _TILE_LENGTH in tags:
        sides = ((_WIDTH, _TILE_WIDTH), (_LENGTH, _TILE_LENGTH), (_DEPTH, _TILE_DEPTH))
        return planes * prod(-(-tags.get(side, 1) // max(1, tags.get(tile, 1))) for side, tile in sides)
    rows = tags.get(_LENGTH, 1)
    return planes * tags.get(_DEPTH, 1) * -(-rows // max(1, tags.get(_STRIP_ROWS, rows)))


def _unpacked(file: IO[bytes], form: str) -> int:
    """The number here; 0 at the end of the file."""
    data = file.read(struct.calcsize(form))
    return int(struct.unpack(form, data)[0]) if len(data) == struct.calcsize(form) else 0


def _of_pages(path: Path, look: Callable[[Any], T]) -> list[T]:
    """What `look` finds on each page of a TIFF; nothing when tifffile does not understand the file.

    Its complaints about odd tags are not shown: OpenSlide decides whether the file is good.
    """
    import tifffile

    check_once(path, check_tiff_directory)
    log = logging.getLogger("tifffile")
    before, log.disabled = log.disabled, True
    try:
        with tifffile.TiffFile(path) as file:
            return [look(page) for page in file.pages]
    except Exception:  # noqa: BLE001 (tifffile raises many kinds on odd files)
        return []
    finally:
        log.disabled = before


def _read_at(file: int, count: int, offset: int) -> bytes:
    """Without moving the file position where the system can, so that forked processes do not disturb each other."""
    if hasattr(os, "pread"):
        return os.pread(file, count, offset)
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, count)


def _levels(path: Path, level_sizes: tuple[tuple[int, int], ...]) -> list[_TiledLevel | None]:
    """The first tiled page of each level's size."""
    found: dict[tuple[int, int], _TiledLevel] = {}
    for level in _of_pages(path, lambda page: _tiled_level(page) if _is_simple(page) else None):
        if level is not None:
            found.setdefault((level.width, level.height), level)
    return [found.get(size) for size in level_sizes]


def _is_simple(page: Any) -> bool:
    """8-bit RGB in one plane, tiled, JPEG or not compressed: what the decoders below understand."""
    coded = (int(page.compression), int(page.photometric)) in ((_NO_COMPRESSION, _RGB), (_JPEG, _RGB), (_JPEG, _YCBCR))
    plain = page.dtype == np.uint8 and (page.samplesperpixel, int(page.planarconfig), page.imagedepth) == (3, 1, 1)
    tiles = -(-page.imagewidth // page.tilewidth) * -(-page.imagelength // page.tilelength) if page.is_tiled else 0
    listed = len(page.dataoffsets) == len(page.databytecounts) == tiles > 0
    return coded and plain and listed and int(page.fillorder) == 1


def _tiled_level(page: Any) -> _TiledLevel:
    tile = (int(page.tilelength), int(page.tilewidth))
    jpeg = int(page.compression) == _JPEG

    def raw(data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8).reshape(*tile, 3)

    return _TiledLevel(
        width=int(page.imagewidth),
        height=int(page.imagelength),
        tile=tile,
        offsets=np.asarray(page.dataoffsets, np.uint64),
        counts=np.asarray(page.databytecounts, np.uint64),
        decode=_jpeg_decoder(tile, page.jpegtables, int(page.photometric)) if jpeg else raw,
        jpeg=jpeg,
    )


def _check_jpeg(data: bytes) -> None:
    """Refuse a JPEG stream that is cut off, or has marks inside that cannot be there; decoders hide both."""
    place, scanning, restarts = 2, False, 0
    while (found := _MARKER.search(data, place)) is not None:
        mark, place = found[1][0], found.end()
        if mark == 0xD9:
            return
        if scanning and 0xD0 <= mark <= 0xD7:
            if mark != 0xD0 + restarts % 8:
                break
            restarts += 1
        elif mark < 0xC0:
            break
        else:
            scanning, restarts = mark == 0xDA, 0
            place += int.from_bytes(data[place : place + 2], "big")
    raise ValueError("the JPEG stream is cut off or damaged")


def _jpeg_decoder(tile: tuple[int, int], tables: bytes | None, photometric: int) -> Decode:
    from imagecodecs import jpeg8_decode

    space = "RGB" if photometric == _RGB else "YCBCR"

    def decode(data: bytes) -> np.ndarray:
        # The array is given: a JPEG header that claims another size is refused before anything is decoded.
        out = np.empty((*tile, 3), np.uint8)
        return jpeg8_decode(data, tables=tables, colorspace=space, outcolorspace="RGB", out=out)

    return decode


def check_picture(path: Path, kind: str | None, image: Any = None) -> None:
    """Refuse what Pillow shows nevertheless: a PNG with wrong checksums, a JPEG without its end, a TIFF without parts.

    kind   what Pillow calls the format
    image  opened by Pillow: what its parts do not cover would be black
    """
    covered = {part[1][2:] for part in getattr(image, "tile", ())}
    if covered and (max(x for x, _ in covered), max(y for _, y in covered)) != image.size:
        raise DataError(f"its parts do not cover its {image.width} × {image.height} pixels; copy or export it again")
    if kind == "PNG":
        check_once(path, _check_png)
    elif kind in ("JPEG", "MPO"):
        check_once(path, _check_jpeg_file)


def _check_jpeg_file(path: Path) -> None:
    _check_jpeg(path.read_bytes())


def _check_png(path: Path) -> None:
    """Compare the checksum of every part up to the mark of the end."""
    with path.open("rb") as file:
        file.seek(8)
        kind = b""
        while kind != b"IEND":
            head = file.read(8)
            left, kind = int.from_bytes(head[:4], "big"), head[4:]
            found = zlib.crc32(kind)
            while left and (piece := file.read(min(left, 2**20))):
                found, left = zlib.crc32(piece, found), left - len(piece)
            if left or found.to_bytes(4, "big") != file.read(4):
                raise DataError("a part does not match its checksum or is cut off; copy or export it again")


@contextmanager
def _image_errors(path: Path) -> Iterator[None]:
    """Turn whatever Pillow raises into a DataError that names the file."""
    try:
        yield
    except DataError as problem:
        raise DataError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except Exception as problem:  # noqa: BLE001 (Pillow raises many kinds on damaged files)
        reason = f"{type(problem).__name__}: {problem}"
        raise DataError(f"{path}: not readable as an image ({reason}); copy or export it again") from None
