"""Write a volume as a DICOM CT series: for synthetic scans, and for tests of everything that reads CT."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.files import digest, replacing

_CT_IMAGE = "1.2.840.10008.5.1.4.1.1.2"
_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_EMPTY = "PatientBirthDate PatientSex StudyDate StudyTime ReferringPhysicianName StudyID AccessionNumber Manufacturer"
_EMPTY += " PositionReferenceIndicator"


def write_ct_series(
    folder: str | Path,
    hu: np.ndarray,
    spacing_mm: tuple[float, float, float],
    *,
    origin_mm: Sequence[float] = (0.0, 0.0, 0.0),
    orientation: Sequence[float] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
    slope: float = 1.0,
    intercept: float = -1024.0,
    patient: str = "synthetic",
    seed: int = 0,
) -> list[Path]:
    """One DICOM file per slice of `hu` (slices, rows, columns); gives the paths in the order of the slices.

    spacing_mm   distance of columns, rows, slices             origin_mm  first pixel of the first slice, LPS
    orientation  direction along a row, then along a column, LPS; slices follow their cross product
    Identifiers are derived from the seed, the patient and the voxels: the same input gives the same bytes. As on many
    scanners, names and numbers count from the last slice to the first: whoever sorts by them reverses the scan.
    """
    hu, folder = np.asarray(hu), Path(folder)
    stored = _stored(hu, slope, intercept)
    paths = [folder / f"IM{number:04d}.dcm" for number in range(len(stored), 0, -1)]
    _refuse_strangers(folder, paths)
    root = digest(str(seed), patient, np.ascontiguousarray(hu).data)
    shared = _dataset(_header(root, patient, stored.shape[1:], spacing_mm, orientation, slope, intercept))
    positions = _positions(len(stored), spacing_mm[2], origin_mm, orientation)
    for index, path in enumerate(paths):
        _write_slice(path, shared, root, len(stored) - index, positions[index], stored[index])
    return paths


def _stored(hu: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    if hu.ndim != 3 or not hu.size:
        raise DataError(f"write_ct_series: expected voxels (slices, rows, columns), got shape {hu.shape}")
    if slope == 0:
        raise ConfigError("write_ct_series: slope must not be 0")
    values = np.rint((hu.astype(np.float64) - intercept) / slope)
    if not (np.abs(values) < 2**15).all():
        raise DataError(f"write_ct_series: voxels must fit 16 bits with slope {slope} and intercept {intercept}")
    return values.astype("<i2")


def _refuse_strangers(folder: Path, paths: list[Path]) -> None:
    strangers = sorted(set(folder.glob("*.dcm")) - set(paths))
    if strangers:
        raise DataError(f"{strangers[0]}: belongs to another series; write into an empty folder")


def _positions(n: int, distance: float, origin: Sequence[float], orientation: Sequence[float]) -> np.ndarray:
    normal = np.cross(orientation[:3], orientation[3:])
    return np.asarray(origin, dtype=np.float64) + np.arange(n)[:, None] * distance * normal


def _uid(*parts: str) -> str:
    """A valid identifier of the form 2.25.<128 bit number>."""
    return f"2.25.{int(digest(*parts)[:32], 16)}"


def _header(
    root: str,
    patient: str,
    size: tuple[int, ...],
    spacing: tuple[float, float, float],
    orientation: Sequence[float],
    slope: float,
    intercept: float,
) -> dict[str, Any]:
    """Everything the slices of a series share, by DICOM keyword."""
    return {
        **dict.fromkeys(_EMPTY.split(), ""),
        "SOPClassUID": _CT_IMAGE,
        "ImageType": ["DERIVED", "SECONDARY", "AXIAL"],
        "Modality": "CT",
        "SeriesDescription": "synthetic phantom, no patient",
        "PatientName": patient,
        "PatientID": patient,
        "PatientPosition": "HFS",
        "StudyInstanceUID": _uid("study", root),
        "SeriesInstanceUID": _uid("series", root),
        "FrameOfReferenceUID": _uid("frame", root),
        "SeriesNumber": 1,
        "AcquisitionNumber": 1,
        "KVP": 120,
        "SliceThickness": _decimal(spacing[2]),
        "PixelSpacing": [_decimal(spacing[1]), _decimal(spacing[0])],
        "ImageOrientationPatient": [_decimal(v) for v in orientation],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "Rows": size[0],
        "Columns": size[1],
        "BitsAllocated": 16,
        "BitsStored": 16,
        "HighBit": 15,
        "PixelRepresentation": 1,
        "RescaleIntercept": _decimal(intercept),
        "RescaleSlope": _decimal(slope),
        "RescaleType": "HU",
    }


def _decimal(value: float) -> str:
    """DICOM's decimal string: at most 16 characters."""
    text = f"{float(value):.10g}"
    return text if len(text) <= 16 else f"{float(value):.8g}"


def _dataset(header: dict[str, Any]) -> Any:
    try:
        from pydicom.dataset import Dataset, FileMetaDataset
    except ImportError:
        raise MissingExtra("pydicom", "ct", "writing DICOM") from None
    dataset: Any = Dataset()
    meta: Any = FileMetaDataset()
    for keyword, value in header.items():
        setattr(dataset, keyword, value)
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = _CT_IMAGE, _EXPLICIT_LITTLE_ENDIAN
    meta.ImplementationClassUID, meta.ImplementationVersionName = _uid("smmil"), "SMMIL"
    dataset.file_meta = meta
    return dataset


def _write_slice(path: Path, shared: Any, root: str, number: int, position: np.ndarray, pixels: np.ndarray) -> None:
    """Fill in what differs from slice to slice, and write."""
    shared.SOPInstanceUID = shared.file_meta.MediaStorageSOPInstanceUID = _uid("slice", root, str(number))
    shared.InstanceNumber = number
    shared.ImagePositionPatient = [_decimal(v) for v in position]
    shared.PixelData = pixels.tobytes()
    shared["PixelData"].VR = "OW"
    with replacing(path) as temporary:
        shared.save_as(temporary, enforce_file_format=True)
