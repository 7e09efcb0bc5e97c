"""Synthetic head CT scans with and without haemorrhage, written as real DICOM series.

The phantom, in HU: air -1000 around an egg-shaped head; scalp 20; skull 800 to 1000; brain 35, with a smooth texture of
3 HU, a shift of the whole scan of 2 HU and noise of 5 HU; two ventricles of 8. A haemorrhage is 60 to 80 HU in two or
three overlapping lobes, over three to eight neighbouring slices. Every scan, healthy or not, has a few bright dots
(calcium, 60 to 120 HU) that are as bright as blood but small and in one slice only; their slices are labelled 0.

Size of the head, thickness of the skull and the shift move the mean of a scan far more than a haemorrhage does, so the
mean carries no information; positions do. What is found here says how a method works, nothing about patients.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.ndimage import gaussian_filter

from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.files import digest, replacing
from smmil.synthetic.slide_files import _derived_uid, _dicom_file
from smmil.synthetic.slides import _between, _is_positive, _rng, _save_labels

_CT_IMAGE = "1.2.840.10008.5.1.4.1.1.2"
_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_EMPTY = "PatientBirthDate PatientSex StudyDate StudyTime ReferringPhysicianName StudyID AccessionNumber Manufacturer"
_EMPTY += " PositionReferenceIndicator"
_WIDTH_MM, _SLICE_MM = 230.0, 5.0
_DOTS = 3


def _write_ct_series(
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
    if others := sorted(set(folder.glob("*.dcm")) - set(paths)):
        raise DataError(f"{others[0]}: belongs to another series; write into an empty folder")
    root = digest(str(seed), patient, np.ascontiguousarray(hu).data)
    try:
        dataset = _dicom_file(**_header(root, patient, stored.shape[1:], spacing_mm, orientation, slope, intercept))
    except ImportError:
        raise MissingExtra("pydicom", "ct", "writing DICOM") from None
    dataset.file_meta.TransferSyntaxUID = _EXPLICIT_LITTLE_ENDIAN
    step = spacing_mm[2] * np.cross(orientation[:3], orientation[3:])
    for index, path in enumerate(paths):
        number = len(stored) - index
        uid = _derived_uid("slice", root, str(number))
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid
        dataset.InstanceNumber = number
        dataset.ImagePositionPatient = [_decimal(v) for v in np.asarray(origin_mm, dtype=np.float64) + index * step]
        dataset.PixelData = stored[index].tobytes()
        dataset["PixelData"].VR = "OW"
        with replacing(path) as temporary:
            dataset.save_as(temporary, enforce_file_format=True)
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
        "SOPInstanceUID": "",  # of the slice
        "ImageType": ["DERIVED", "SECONDARY", "AXIAL"],
        "Modality": "CT",
        "SeriesDescription": "synthetic phantom, no patient",
        **dict.fromkeys(("PatientName", "PatientID"), patient),
        "PatientPosition": "HFS",
        "StudyInstanceUID": _derived_uid("study", root),
        "SeriesInstanceUID": _derived_uid("series", root),
        "FrameOfReferenceUID": _derived_uid("frame", root),
        **dict.fromkeys(("SeriesNumber", "AcquisitionNumber", "SamplesPerPixel", "PixelRepresentation"), 1),
        "KVP": 120,
        "SliceThickness": _decimal(spacing[2]),
        "PixelSpacing": [_decimal(spacing[1]), _decimal(spacing[0])],
        "ImageOrientationPatient": [_decimal(v) for v in orientation],
        "PhotometricInterpretation": "MONOCHROME2",
        "Rows": size[0],
        "Columns": size[1],
        **dict.fromkeys(("BitsAllocated", "BitsStored"), 16),
        "HighBit": 15,
        "RescaleIntercept": _decimal(intercept),
        "RescaleSlope": _decimal(slope),
        "RescaleType": "HU",
    }


def _decimal(value: float) -> str:
    """DICOM's decimal string: at most 16 characters."""
    text = f"{float(value):.10g}"
    return text if len(text) <= 16 else f"{float(value):.8g}"


def synthetic_ct_scans(
    folder: str | Path,
    n: int,
    *,
    seed: int = 0,
    slices: tuple[int, int] = (24, 40),
    size: int = 128,
    positive: float = 0.5,
    contrast: float = 1.0,
) -> pd.DataFrame:
    """Write `n` head scans into `folder`; gives their table: id, path, label, patient, instance_labels.

    scans/<id>/*.dcm   one DICOM series per scan
    labels/<id>.npy    one label per slice, from foot to head, as `open_volume` orders them
    labels.csv         the table, paths relative to `folder`

    slices    least and largest number of slices        size      rows and columns of a slice
    positive  share of scans with a haemorrhage         contrast  1: blood at 60 to 80 HU; 0: like brain
    Scan i depends on the seed and i only. Every fourth scan is of the same patient as the one before.
    """
    _check(n, slices, size, positive)
    folder = Path(folder)
    rows = [_write_scan(folder, index, seed, slices, size, positive, contrast) for index in range(n)]
    table = pd.DataFrame(rows)
    with replacing(folder / "labels.csv") as temporary:
        table.to_csv(temporary, index=False)
    return table


def _check(n: int, slices: tuple[int, int], size: int, positive: float) -> None:
    if n < 1:
        raise ConfigError(f"synthetic CT: n must be at least 1, got {n}")
    if not 12 <= slices[0] <= slices[1]:
        raise ConfigError(f"synthetic CT: slices must satisfy 12 <= least <= largest, got {tuple(slices)}")
    if not 48 <= size <= 1024:
        raise ConfigError(f"synthetic CT: size must be from 48 to 1024 pixels, got {size}")
    if not 0 <= positive <= 1:
        raise ConfigError(f"synthetic CT: positive must be in 0..1, got {positive}")


def _write_scan(
    folder: Path, index: int, seed: int, slices: tuple[int, int], size: int, positive: float, contrast: float
) -> dict[str, str | int]:
    rng, label = _rng(seed, index), _is_positive(index, positive)
    hu, sick = _head_phantom(rng, _between(rng, slices), size, contrast if label else None)
    name, patient = f"ct_{index:04d}", f"patient_{index - (index % 4 == 3):04d}"
    path, sidecar = f"scans/{name}", f"labels/{name}.npy"
    pixel = _WIDTH_MM / size
    corner = (-_WIDTH_MM / 2 + pixel / 2, -_WIDTH_MM / 2 + pixel / 2, -_SLICE_MM * len(hu) / 2)
    _write_ct_series(folder / path, hu, (pixel, pixel, _SLICE_MM), origin_mm=corner, patient=patient, seed=seed)
    _save_labels(folder / sidecar, sick)
    return {"id": name, "path": path, "label": label, "patient": patient, "instance_labels": sidecar}


def _head_phantom(
    rng: np.random.Generator, n_slices: int, size: int, blood: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """HU of a head (slices, rows, columns) as int16, and which slices hold blood; `blood` None means a healthy scan."""
    # millimetres from the middle of the volume: x to the left, y to the back, z to the head
    across = (np.arange(size) + 0.5) * _WIDTH_MM / size - _WIDTH_MM / 2
    along = (np.arange(n_slices) + 0.5 - n_slices / 2) * _SLICE_MM
    x, y, z = across[None, None, :], across[None, :, None], along[:, None, None]
    half = np.array([rng.uniform(60, 78), rng.uniform(76, 96), _SLICE_MM * n_slices / 2 * rng.uniform(1.03, 1.15)])
    skull, brain = _shell(x, y, z, half - 4), _shell(x, y, z, half - 4 - rng.uniform(4, 8))
    tissue = 35 + rng.normal(0, 2)
    texture = gaussian_filter(rng.standard_normal(brain.shape), (1, 3, 3))
    tissue = tissue + 3.0 * texture / texture.std()
    hu = np.where(_shell(x, y, z, half), 20.0, -1000.0)
    hu = np.where(skull, rng.uniform(800, 1000), hu)
    hu = np.where(brain, tissue, hu)
    hu = np.where(brain & _ventricles(rng, x, y, z), 8.0, hu)
    for _ in range(_DOTS):
        hu = np.where(brain & _dot(rng, x, y, z, half), rng.uniform(60, 120), hu)
    sick = np.zeros(n_slices, dtype=bool)
    if blood is not None:
        lesion = brain & _lobes(rng, x, y, z, half)
        hu = np.where(lesion, tissue + blood * (rng.uniform(60, 80) - 35), hu)
        sick = lesion.any((1, 2))
    hu = gaussian_filter(hu, (0, 0.6, 0.6)) + rng.normal(0, 5, hu.shape)
    return np.rint(np.clip(hu, -1024, 3000)).astype(np.int16), sick


def _shell(x: np.ndarray, y: np.ndarray, z: np.ndarray, half: np.ndarray) -> np.ndarray:
    return (x / half[0]) ** 2 + (y / half[1]) ** 2 + (z / half[2]) ** 2 < 1


def _ventricles(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    half = np.array([rng.uniform(4, 8), rng.uniform(18, 28), rng.uniform(15, 25)])
    apart = half[0] + rng.uniform(2, 5)
    return _shell(x - apart, y, z, half) | _shell(x + apart, y, z, half)


def _inside(rng: np.random.Generator, half: np.ndarray) -> np.ndarray:
    """A random place well within the head, away from its ends."""
    direction = rng.standard_normal(3)
    return half * 0.55 * rng.uniform(0, 1) ** (1 / 3) * direction / np.linalg.norm(direction)


def _dot(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, z: np.ndarray, half: np.ndarray) -> np.ndarray:
    place = _inside(rng, half)
    flat = (x - place[0]) ** 2 + (y - place[1]) ** 2 < rng.uniform(2, 4) ** 2
    return flat & (np.abs(z - z.flat[np.abs(z - place[2]).argmin()]) < 0.1)


def _lobes(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, z: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Two or three overlapping lobes that share three to eight neighbouring slices."""
    place, count = _inside(rng, half), int(rng.integers(3, 9))
    first = min(max(int(np.abs(z - place[2]).argmin()) - count // 2, 0), len(z) - count)
    rise = (np.arange(len(z)) - first - (count - 1) / 2) / ((count + 1) / 2)
    profile = np.sqrt(np.clip(1 - rise**2, 0, None))[:, None, None]
    found = np.zeros(np.broadcast_shapes(x.shape, y.shape, z.shape), dtype=bool)
    for _ in range(int(rng.integers(2, 4))):
        radius = rng.uniform(7, 14)
        centre = place[:2] + rng.uniform(-0.6, 0.6, 2) * radius
        found |= (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < (radius * profile) ** 2
    return found
