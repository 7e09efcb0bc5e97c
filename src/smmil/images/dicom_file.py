"""One DICOM file of a CT or MR series: its header checked, its pixels as stored.

The tags read are listed here, and names, dates and numbers of patients are not among them, so they cannot reach a
message; the description of a series is read to be compared, never to be shown. For the same reason messages never
repeat what pydicom says, which may quote a value.
"""

import os
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.files import need_file

_JPEG_2000 = b"\xff\x4f\xff\x51"
_NO_LENGTH = {0x01, *range(0xD0, 0xD9)}
# Start-of-frame markers of JPEG (C4, C8 and CC mean other things) and of JPEG-LS (F7).
_START_OF_FRAME = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
LARGEST_SLICE = 4096 * 4096
LARGEST_FILE = 512 * 2**20
_HEADER = (
    *("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "Modality", "ImageType", "NumberOfFrames"),
    "SeriesDescription",
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness"),
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("RescaleSlope", "RescaleIntercept", "RescaleType"),
)
DAMAGE = (
    *(OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError),
    *(EOFError, AssertionError, ImportError, BufferError, struct.error, zlib.error),
)
_DEFLATED = "1.2.840.10008.1.2.1.99"
_DIRECTORY = "1.2.840.10008.1.3.10"
_RLE = "1.2.840.10008.1.2.5"
# Changing the warning filters is not safe between threads.
_QUIET = threading.Lock()


_ITEM = b"\xfe\xff\x00\xe0"  # begins a frame, or a part of one


@dataclass(frozen=True)
class _SliceHeader:
    """Header of one slice; positions and directions in mm, LPS."""

    path: Path
    rows: int
    columns: int
    position: np.ndarray
    orientation: np.ndarray
    pixel_mm: tuple[float, float]
    thickness_mm: float | None
    slope: float
    intercept: float
    wraps_at_12_bits: bool
    unit_unspecified: bool
    sop_uid: str = field(repr=False)


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


@contextmanager
def dicom_errors(path: Path) -> Iterator[None]:
    """Turn whatever pydicom or a decoder raises into a DataError that names the file."""
    from pydicom.errors import BytesLengthException, InvalidDicomError

    try:
        with _QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from None
    except (*DAMAGE, InvalidDicomError, BytesLengthException) as problem:
        kind = type(problem).__name__
        raise DataError(f"{path}: not readable as a DICOM slice ({kind}); copy or export the file again") from None


def read_tags(path: Path) -> dict[str, Any]:
    """The few tags of a DICOM file that are needed here, by name."""
    try:
        from pydicom import dcmread
    except ImportError:
        raise MissingExtra("pydicom", "ct", "reading DICOM") from None
    with dicom_errors(path):
        _refuse_deflated(path)
        tags = dcmread(path, stop_before_pixels=True, specific_tags=list(_HEADER))
        # pydicom turns bytes into values when they are first asked for; do it here, inside the boundary.
        return {name: tags[name].value for name in _HEADER if name in tags}


def _refuse_deflated(path: Path) -> None:
    """A deflated file is unpacked as a whole before any check, and may unpack to a thousand times its size."""
    from pydicom.filereader import read_file_meta_info

    if path.stat().st_size > LARGEST_FILE:
        raise DataError(f"the file is larger than {LARGEST_FILE >> 20} MB, too large for one CT slice")
    if read_file_meta_info(path).get("TransferSyntaxUID") == _DEFLATED:
        raise DataError("a deflated DICOM file is not read; convert it first, for example with dcmconv +te")


def is_dicom(path: Path) -> bool:
    """Whether the file carries the mark DICM where DICOM files do."""
    try:
        with need_file(path).open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror}); check the file and its permissions") from None


def _check_frame_table(path: Path) -> None:
    """Refuse a slide whose table of frames points beside them: OpenSlide follows it and may crash the process."""
    from pydicom.filereader import dcmread, read_file_meta_info

    with dicom_errors(path), path.open("rb", buffering=0) as file:
        if read_file_meta_info(path).get("TransferSyntaxUID") == _DEFLATED:
            return  # OpenSlide does not read it
        tags = dcmread(file, stop_before_pixels=True, specific_tags=["ExtendedOffsetTable"])
        head, item, end = file.read(12), file.read(8), path.stat().st_size
        if head[:4] != b"\xe0\x7f\x10\x00" or head[8:] != b"\xff" * 4 or item[:4] != _ITEM:
            return  # no pixels, or not in frames of their own
        offsets = np.frombuffer(file.read(int.from_bytes(item[4:], "little")), "<u4").astype(np.int64)
        begin = file.tell()
        if "ExtendedOffsetTable" in tags:
            offsets = np.frombuffer(tags.ExtendedOffsetTable, "<u8").astype(np.int64)
        for offset in offsets:
            start = os.pread(file.fileno(), 8, begin + max(0, int(offset)))
            if start[:4] != _ITEM or begin + offset + 8 + int.from_bytes(start[4:], "little") > end:
                raise DataError("its table of frames points beside them, it is damaged; copy the slide again")


def kind_of(tags: dict[str, Any]) -> str:
    """The modality in letters, DIRECTORY for the index of a disc, or unknown."""
    if tags.get("SOPClassUID") == _DIRECTORY or "SOPClassUID" not in tags:
        return "DIRECTORY"
    modality = str(tags.get("Modality", ""))
    return modality if re.fullmatch("[A-Z]{2,10}", modality) else "unknown"


def _slice_header(path: Path, tags: dict[str, Any]) -> _SliceHeader:
    """The tags of a CT or MR slice checked one by one; the error says which one is missing or senseless."""
    with dicom_errors(path):
        _refuse_other_pictures(tags)
        rows, columns = _size(tags)
        spacing = _numbers(tags, "PixelSpacing", 2)
        if not (spacing > 0).all():
            raise DataError(f"PixelSpacing is {spacing.tolist()}, expected two positive distances in mm")
        slope, intercept = _rescale(tags)
        thickness = float(tags.get("SliceThickness") or 0)
        # Without sign in 12 bits and hardly an offset: negative values wrapped, as in part of the RSNA haemorrhage set.
        stored = (int(tags.get("BitsStored") or 0), int(tags.get("PixelRepresentation") or 0))
        return _SliceHeader(
            path,
            rows,
            columns,
            _numbers(tags, "ImagePositionPatient", 3),
            _orientation(tags),
            (float(spacing[1]), float(spacing[0])),
            thickness if 0 < thickness < float("inf") else None,
            slope,
            intercept,
            stored == (12, 0) and intercept > -100 and kind_of(tags) == "CT",
            str(tags.get("RescaleType", "")) == "US",
            str(tags["SOPInstanceUID"]),
        )


def _refuse_other_pictures(tags: dict[str, Any]) -> None:
    if int(tags.get("NumberOfFrames") or 1) != 1:
        raise DataError("a multi-frame (enhanced) CT file is not read; convert it to NIfTI, for example with dcm2niix")
    if int(tags.get("SamplesPerPixel") or 1) != 1:
        raise DataError("the picture has colours; expected a CT slice with one value per pixel")


def _size(tags: dict[str, Any]) -> tuple[int, int]:
    rows, columns = (int(_numbers(tags, name, 1)[0]) for name in ("Rows", "Columns"))
    if not (rows > 0 and columns > 0 and rows * columns <= LARGEST_SLICE):
        raise DataError(f"{rows:,} x {columns:,} pixels; a CT slice has at most {LARGEST_SLICE:,}")
    return rows, columns


def _numbers(tags: dict[str, Any], name: str, count: int) -> np.ndarray:
    value = tags.get(name)
    if value is None or value == "":
        raise DataError(f"{name} is missing; a CT slice needs it, export the series again with full headers")
    numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if numbers.shape != (count,) or not np.isfinite(numbers).all():
        raise DataError(f"{name} is not {count} finite number(s); export the series again")
    return numbers


def _orientation(tags: dict[str, Any]) -> np.ndarray:
    directions = _numbers(tags, "ImageOrientationPatient", 6).reshape(2, 3)
    if np.abs(directions @ directions.T - np.eye(2)).max() > 0.01:
        raise DataError(
            f"ImageOrientationPatient is {directions.ravel().tolist()}, not two directions at a right angle"
        )
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


def _rescale(tags: dict[str, Any]) -> tuple[float, float]:
    is_ct = kind_of(tags) == "CT"
    usual = {} if is_ct else {"RescaleSlope": 1, "RescaleIntercept": 0}  # MR has no unit, and often no such tags
    tags = usual | {name: value for name, value in tags.items() if value is not None}
    slope, intercept = (float(_numbers(tags, name, 1)[0]) for name in ("RescaleSlope", "RescaleIntercept"))
    if slope == 0:
        raise DataError("RescaleSlope is 0, so every pixel would have the same value; export the series again")
    if is_ct and str(tags.get("RescaleType") or "HU") not in ("HU", "US"):
        raise DataError("RescaleType is not HU: the pixels are no Hounsfield units; choose the series that is in HU")
    return slope, intercept


def _read_hu(header: _SliceHeader) -> np.ndarray:
    """The slice in Hounsfield units, float32, as it lies in the file."""
    from pydicom import dcmread

    with dicom_errors(header.path):
        _refuse_deflated(header.path)
        dataset = dcmread(header.path, specific_tags=[*_HEADER, "PixelData"])
        tags = {name: dataset[name].value for name in _HEADER if name in dataset}
        _refuse_other_pictures(tags)
        if _size(tags) != (header.rows, header.columns):
            raise DataError("the file has changed since it was opened; open the series again")
        _check_compressed(dataset, (header.rows, header.columns))
        _check_length(dataset, header)
        stored = dataset.pixel_array.astype(np.float64)
    if header.wraps_at_12_bits:
        stored[stored + 1000 >= 4096] -= 4096
    return (header.slope * stored + header.intercept).astype(np.float32)


def _check_length(dataset: Any, header: _SliceHeader) -> None:
    """Refuse a whole row of pixels or more that the header does not know of: pydicom would only cut them off."""
    row, found = header.columns * int(dataset.BitsAllocated) // 8, len(dataset.PixelData)
    if not dataset.file_meta.TransferSyntaxUID.is_compressed and found >= row * (header.rows + 1):
        raise DataError(
            f"PixelData has {found:,} bytes, {header.rows} x {header.columns} pixels need {row * header.rows:,}; "
            "copy or export the file again"
        )


def _check_compressed(dataset: Any, size: tuple[int, int]) -> None:
    """Refuse a compression that cannot be undone here, or a compressed picture of another size than the header says."""
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder

    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_compressed:
        return
    if not syntax.is_transfer_syntax or not get_decoder(syntax).is_available:
        raise DataError(
            f"compressed as {syntax.name}, for which no decoder is installed; convert it with gdcmconv --raw"
        )
    if syntax == _RLE:
        # pydicom's own decoder: on damaged data the one in Rust panics with something that is not even an Exception.
        dataset.pixel_array_options(decoding_plugin="pydicom")
        return
    declared = _declared_size(get_frame(dataset.PixelData, 0, number_of_frames=1))
    if declared != size:
        raise DataError(
            f"the compressed picture is {declared[0]:,} x {declared[1]:,}, the header says {size[0]} x {size[1]}"
        )
