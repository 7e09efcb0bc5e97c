"""The pixels of a DICOM slice, or of one frame of a file with many, as stored and in Hounsfield units."""

import os
import struct
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.images.dicom_file import (
    _HEADER,
    _LARGEST_SERIES,
    _frame_count,
    _refuse_deflated,
    _refuse_other_pictures,
    _size,
    _SliceHeader,
    dicom_errors,
)

_JPEG_2000 = b"\xff\x4f\xff\x51"
_NO_LENGTH = {0x01, *range(0xD0, 0xD9)}
# Start-of-frame markers of JPEG (C4, C8 and CC mean other things) and of JPEG-LS (F7).
_START_OF_FRAME = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_OFFSETS = ("ExtendedOffsetTable", "ExtendedOffsetTableLengths")
_RLE = "1.2.840.10008.1.2.5"
_JPEG_LOSSLESS = ("1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70")
_JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
# What undoes a compression, by the beginning of its identifier.
_PACKAGES = {
    **dict.fromkeys((*_JPEG_LOSSLESS, _JPEG_EXTENDED), "imagecodecs"),
    "1.2.840.10008.1.2.4.50": "pillow",
    **dict.fromkeys(("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81"), "pyjpegls"),
    **dict.fromkeys(("1.2.840.10008.1.2.4.9", "1.2.840.10008.1.2.4.20"), "pylibjpeg-openjpeg"),
}


def _read_hu(header: _SliceHeader) -> np.ndarray:
    """The slice in Hounsfield units, float32, as it lies in the file."""
    stored = stored_pixels(header).astype(np.float64)
    if header.wraps_at_12_bits:
        stored[stored + 1000 >= 4096] -= 4096
    return (header.slope * stored + header.intercept).astype(np.float32)


def stored_pixels(header: _SliceHeader) -> np.ndarray:
    """The pixels of a slice or frame as the file has them."""
    with dicom_errors(header.path):
        dataset = _one_frame(header)
        tags = {name: dataset[name].value for name in _HEADER if name in dataset}
        _refuse_other_pictures(tags)
        if _size(tags) != (header.rows, header.columns):
            raise DataError("the file has changed since it was opened; open the series again")
        _check_compressed(dataset, (header.rows, header.columns))
        _check_length(dataset, header)
        return _pixels(dataset)


def _one_frame(header: _SliceHeader) -> Any:
    """The file of a slice, or a frame as if it were the only one: the others are not read."""
    from pydicom import Dataset, dcmread

    if header.frame is None:
        _refuse_deflated(header.path)
        return dcmread(header.path, specific_tags=[*_HEADER, "PixelData"])
    whole, place = _before_pixels(header.path, header.path.stat().st_mtime_ns)
    one: Any = Dataset()
    for name in (name for name in _HEADER if name in whole and name != "NumberOfFrames"):
        one.add(whole[name])
    one.file_meta, one.NumberOfFrames = whole.file_meta, 1
    with header.path.open("rb") as file:
        file.seek(place)
        one.PixelData = _frame_bytes(file, whole, header)
    return one


@lru_cache(maxsize=4)
def _before_pixels(path: Path, changed: int) -> tuple[Any, int]:
    """What stands before the pixels of a file with many frames, and where they begin; read once, not for each."""
    from pydicom import dcmread

    _refuse_deflated(path, _LARGEST_SERIES)
    with path.open("rb") as file:
        return dcmread(file, stop_before_pixels=True, specific_tags=[*_HEADER, *_OFFSETS]), file.tell()


def _frame_bytes(file: Any, dataset: Any, header: _SliceHeader) -> bytes:
    """The pixels of a frame as they are stored; the file stands where PixelData begins."""
    from pydicom.encaps import encapsulate, get_frame

    syntax, count, number = dataset.file_meta.TransferSyntaxUID, _frame_count(dataset), header.frame or 0
    order = "<" if syntax.is_little_endian else ">"
    begin = file.read(8 if syntax.is_implicit_VR else 12)
    if struct.unpack(f"{order}HH", begin[:4]) != (0x7FE0, 0x0010):
        raise DataError("PixelData is missing; copy or export the file again")
    if syntax.is_encapsulated:
        table = tuple(dataset[name].value for name in _OFFSETS) if _OFFSETS[0] in dataset else None
        return encapsulate([get_frame(file, number, number_of_frames=count, extended_offsets=table)])
    (length,) = struct.unpack(f"{order}I", begin[-4:])
    bits = header.rows * header.columns * int(dataset.BitsAllocated)  # of a frame, which need not fill its last byte
    needed = -(-bits * count // 8)
    if length not in (needed, needed + 1):
        raise DataError(f"PixelData has {length:,} bytes, {count:,} frames need {needed:,}; copy the file again")
    first, last = bits * number // 8, -(-bits * (number + 1) // 8)
    file.seek(first, os.SEEK_CUR)
    data = file.read(last - first)
    if not bits * number % 8 and not bits % 8:
        return data
    start = bits * number - 8 * first
    return np.packbits(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[start : start + bits],
                       bitorder="little").tobytes()  # fmt: skip


def _pixels(dataset: Any) -> np.ndarray:
    """The only frame of a dataset; JPEG beyond 8 bits by libjpeg-turbo, which pydicom does not use."""
    if dataset.file_meta.TransferSyntaxUID not in (*_JPEG_LOSSLESS, _JPEG_EXTENDED):
        return dataset.pixel_array
    import imagecodecs
    from pydicom.encaps import get_frame

    picture = get_frame(dataset.PixelData, 0, number_of_frames=1)
    if not picture.rstrip(b"\0").endswith(b"\xff\xd9"):
        raise DataError("the compressed picture has lost its end; copy or export the file again")
    decoded, bits = imagecodecs.jpeg8_decode(picture), int(dataset.BitsStored)
    if decoded.shape != (dataset.Rows, dataset.Columns) or not 0 < bits <= 16:
        raise DataError("the compressed picture does not fit its header; copy or export the file again")
    # Numbers with a sign were packed without: their highest bit is that of BitsStored.
    values = decoded.astype(np.uint16) << np.uint16(16 - bits)
    return values.view(np.int16 if dataset.PixelRepresentation else np.uint16) >> (16 - bits)


def _check_length(dataset: Any, header: _SliceHeader) -> None:
    """Refuse a whole row of pixels or more that the header does not know of: pydicom would only cut them off."""
    row, found = header.columns * int(dataset.BitsAllocated) // 8, len(dataset.PixelData)
    native = header.frame is None and not dataset.file_meta.TransferSyntaxUID.is_compressed  # frames are cut to length
    if native and found >= row * (header.rows + 1):
        raise DataError(
            f"PixelData has {found:,} bytes, {header.rows} x {header.columns} pixels need {row * header.rows:,}; "
            "copy or export the file again"
        )


def _has_decoder(syntax: Any) -> bool:
    from pydicom.pixels import get_decoder

    if _PACKAGES.get(syntax) == "imagecodecs":
        return find_spec("imagecodecs") is not None
    try:
        return get_decoder(syntax).is_available
    except NotImplementedError:  # films, and references to other places
        return False


def _check_compressed(dataset: Any, size: tuple[int, int]) -> None:
    """Refuse a compression that cannot be undone here, or a compressed picture of another size than the header says."""
    from pydicom.encaps import get_frame

    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_compressed:
        return
    if not syntax.is_transfer_syntax or not _has_decoder(syntax):
        package = next((name for begin, name in _PACKAGES.items() if syntax.startswith(begin)), None)
        needed = f"which needs the package {package}: install it" if package else "which is not read here"
        raise DataError(f"compressed as {syntax.name} ({syntax}), {needed}; or convert it with gdcmconv --raw")
    if syntax == _RLE:
        # pydicom's own decoder: on damaged data the one in Rust panics with something that is not even an Exception.
        dataset.pixel_array_options(decoding_plugin="pydicom")
        return
    declared = _declared_size(get_frame(dataset.PixelData, 0, number_of_frames=1))
    if declared != size:
        raise DataError(
            f"the compressed picture is {declared[0]:,} x {declared[1]:,}, the header says {size[0]} x {size[1]}"
        )


def _declared_size(codestream: bytes) -> tuple[int, int]:
    """(rows, columns) in the header of a JPEG, JPEG-LS or JPEG 2000 picture; ValueError when there is none."""
    start, place = codestream[:4096].find(_JPEG_2000), 2
    if start >= 0 and len(codestream) >= start + 24:
        # The extent of the reference grid minus its offset (ISO 15444-1, marker SIZ).
        right, bottom, left, top = struct.unpack_from(">4I", codestream, start + 8)
        return bottom - top, right - left
    is_jpeg = start < 0 and codestream[:2] == b"\xff\xd8"
    while is_jpeg and place + 9 <= len(codestream) and codestream[place] == 0xFF:
        marker, length, rows, columns = struct.unpack_from(">BHxHH", codestream, place + 1)
        if marker in _START_OF_FRAME:
            return rows, columns
        place += 2 if marker in _NO_LENGTH else 2 + length
    raise ValueError("the compressed picture does not tell its size")
