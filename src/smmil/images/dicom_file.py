"""The checked header of a slice: of a DICOM file of a CT or MR series, or of a frame of a multi-frame (enhanced) file.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.files import need_file

LARGEST_SLICE = 4096 * 4096
LARGEST_FILE = 512 * 2**20
_LARGEST_SERIES = 2**33  # a file with many frames, of which one at a time is read
_HEADER = (
    *("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "Modality", "ImageType", "NumberOfFrames"),
    *("SeriesDescription", "FrameOfReferenceUID"),
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
# Enhanced and Legacy Converted Enhanced CT and MR.
_ENHANCED = tuple(f"1.2.840.10008.5.1.4.1.1.{number}" for number in ("2.1", "2.2", "4.1", "4.4"))
# What is read of the functional groups of a frame; of those that tell frames in one place apart, the word for them.
_FUNCTIONAL = {
    "PixelMeasuresSequence": ("PixelSpacing", "SliceThickness"),
    "PlanePositionSequence": ("ImagePositionPatient",),
    "PlaneOrientationSequence": ("ImageOrientationPatient",),
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept", "RescaleType"),
    "FrameContentSequence": ("StackID", "TemporalPositionIndex"),
    "MREchoSequence": ("EffectiveEchoTime",),
    "MRDiffusionSequence": ("DiffusionBValue",),
    "CardiacSynchronizationSequence": ("NominalCardiacTriggerDelayTime",),
    **dict.fromkeys(("CTImageFrameTypeSequence", "MRImageFrameTypeSequence"), ("FrameType",)),
    "ConversionSourceAttributesSequence": ("ReferencedSOPInstanceUID",),
    "SegmentIdentificationSequence": ("ReferencedSegmentNumber",),
}
_PARTS = {
    **{"stack": "StackID", "time": "TemporalPositionIndex", "echo": "EffectiveEchoTime", "type": "FrameType"},
    **{"diffusion": "DiffusionBValue", "phase": "NominalCardiacTriggerDelayTime"},
}
# Changing the warning filters is not safe between threads.
_QUIET = threading.RLock()


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
    series_uid: str = field(repr=False)
    reference_uid: str = field(repr=False)
    frame: int | None = None  # of a file with many, counted from 0
    segment: int | None = None  # that a frame of a mask belongs to

    @property
    def place(self) -> str:
        """File and frame, for messages."""
        return str(self.path) if self.frame is None else f"{self.path} (frame {self.frame + 1})"


@contextmanager
def dicom_errors(path: Path, what: str = "a DICOM slice") -> Iterator[None]:
    """Turn whatever pydicom or a decoder raises into a DataError that names the file."""
    from pydicom.errors import BytesLengthException, InvalidDicomError

    try:
        with _QUIET, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError as problem:
        raise DataError(str(problem) if str(problem).startswith(f"{path}: ") else f"{path}: {problem}") from None
    except (*DAMAGE, InvalidDicomError, BytesLengthException) as problem:
        kind = type(problem).__name__
        raise DataError(f"{path}: not readable as {what} ({kind}); copy or export the file again") from None


def read_tags(path: Path, more: Sequence[str] = ()) -> dict[str, Any]:
    """The few tags of a DICOM file that are needed here, and some more, by name."""
    try:
        from pydicom import dcmread
    except ImportError:
        raise MissingExtra("pydicom", "ct", "reading DICOM") from None
    with dicom_errors(path):
        _refuse_deflated(path, _LARGEST_SERIES)
        tags = dcmread(path, stop_before_pixels=True, specific_tags=[*_HEADER, *more])
        # pydicom turns bytes into values when they are first asked for; do it here, inside the boundary.
        return {name: tags[name].value for name in (*_HEADER, *more) if name in tags}


def _is_multi_frame(tags: dict[str, Any]) -> bool:
    """Whether the file holds its slices as frames, with a place for each."""
    return tags.get("SOPClassUID") in _ENHANCED or tags.get("NumberOfFrames") not in (None, "", 1)


def frame_headers(path: Path, tags: dict[str, Any]) -> list[_SliceHeader]:
    """The header of every frame of a multi-frame file with these tags."""
    return [_slice_header(path, each) for each in _frame_tags(path, tags)]


def _frame_tags(path: Path, tags: dict[str, Any]) -> list[dict[str, Any]]:
    """The tags of every frame of a multi-frame file, as those of a slice in a file of its own, and its number."""
    from pydicom import dcmread

    sequences = ["SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"]
    with dicom_errors(path, "a multi-frame DICOM file"):
        data, count = dcmread(path, stop_before_pixels=True, specific_tags=sequences), _frame_count(tags)
        shared, frames = (data.get(name) or () for name in sequences)
        if not len(frames):
            raise DataError("a multi-frame file that does not say where its frames lie; convert it to NIfTI")
        if len(frames) != count:
            raise DataError(f"NumberOfFrames is {count:,}, but {len(frames):,} are described; export the file again")
        common = {k: v for k, v in tags.items() if k != "NumberOfFrames"} | (_functional(shared[0]) if shared else {})
        return [{**common, **_functional(groups), "frame": number} for number, groups in enumerate(frames)]


def _functional(groups: Any) -> dict[str, Any]:
    """What is needed of the functional groups of a frame, or of those that all frames share."""
    found = {}
    for sequence, names in _FUNCTIONAL.items():
        for item in (groups.get(sequence) or ())[:1]:
            found |= {name: item[name].value for name in names if name in item}
    return found


def _frame_count(tags: Any) -> int:
    number = tags.get("NumberOfFrames")
    count = 1 if number in (None, "") else int(number)
    if not 0 < count <= 2**20:
        raise DataError(f"NumberOfFrames is {count:,}, expected a number from 1 on; export the file again")
    return count


def _refuse_deflated(path: Path, largest: int = LARGEST_FILE) -> None:
    """A deflated file is unpacked as a whole before any check, and may unpack to a thousand times its size."""
    from pydicom.filereader import read_file_meta_info

    if path.stat().st_size > largest:
        raise DataError(f"the file is larger than {largest >> 20} MB, too large for what it is read as")
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
            str(tags.get("RescaleType", "")) == "US" and kind_of(tags) == "CT",
            # Frames have no name of their own, unless they were slices with one.
            str(tags["SOPInstanceUID"] if "frame" not in tags else tags.get("ReferencedSOPInstanceUID", "")),
            str(tags["SeriesInstanceUID"]),
            str(tags.get("FrameOfReferenceUID") or ""),
            tags.get("frame"),
            None if (segment := tags.get("ReferencedSegmentNumber")) is None else int(segment),
        )


def _refuse_other_pictures(tags: dict[str, Any]) -> None:
    if _frame_count(tags) != 1:
        raise DataError("the file has several frames now; open the series again")
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
