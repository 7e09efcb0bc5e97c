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
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy.ndimage import gaussian_filter

from smmil.errors import ConfigError, DataError, MissingExtra
from smmil.files import digest, replacing
from smmil.synthetic.slide_files import derived_uid, dicom_dataset

_CT_IMAGE = "1.2.840.10008.5.1.4.1.1.2"
_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_EMPTY = "PatientBirthDate PatientSex StudyDate StudyTime ReferringPhysicianName StudyID AccessionNumber Manufacturer"
WIDTH_MM = 230.0
SLICE_MM = 5.0
_DOTS = 3
_EMPTY += " PositionReferenceIndicator"


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
    _refuse_other_files(folder, paths)
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


def _refuse_other_files(folder: Path, paths: list[Path]) -> None:
    others = sorted(set(folder.glob("*.dcm")) - set(paths))
    if others:
        raise DataError(f"{others[0]}: belongs to another series; write into an empty folder")


def _positions(n: int, distance: float, origin: Sequence[float], orientation: Sequence[float]) -> np.ndarray:
    normal = np.cross(orientation[:3], orientation[3:])
    return np.asarray(origin, dtype=np.float64) + np.arange(n)[:, None] * distance * normal


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
        "StudyInstanceUID": derived_uid("study", root),
        "SeriesInstanceUID": derived_uid("series", root),
        "FrameOfReferenceUID": derived_uid("frame", root),
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
        from pydicom.dataset import FileMetaDataset
    except ImportError:
        raise MissingExtra("pydicom", "ct", "writing DICOM") from None
    dataset, meta = dicom_dataset(**header), cast(Any, FileMetaDataset())
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = _CT_IMAGE, _EXPLICIT_LITTLE_ENDIAN
    meta.ImplementationClassUID, meta.ImplementationVersionName = derived_uid("smmil"), "SMMIL"
    dataset.file_meta = meta
    return dataset


def _write_slice(path: Path, shared: Any, root: str, number: int, position: np.ndarray, pixels: np.ndarray) -> None:
    """Fill in what differs from slice to slice, and write."""
    shared.SOPInstanceUID = shared.file_meta.MediaStorageSOPInstanceUID = derived_uid("slice", root, str(number))
    shared.InstanceNumber = number
    shared.ImagePositionPatient = [_decimal(v) for v in position]
    shared.PixelData = pixels.tobytes()
    shared["PixelData"].VR = "OW"
    with replacing(path) as temporary:
        shared.save_as(temporary, enforce_file_format=True)


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
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]))
    label = int(np.floor((index + 1) * positive + 1e-9) - np.floor(index * positive + 1e-9))
    hu, sick = _head_phantom(rng, int(rng.integers(slices[0], slices[1] + 1)), size, contrast if label else None)
    name, patient = f"ct_{index:04d}", f"patient_{index - (index % 4 == 3):04d}"
    path, sidecar = f"scans/{name}", f"labels/{name}.npy"
    pixel = WIDTH_MM / size
    corner = (-WIDTH_MM / 2 + pixel / 2, -WIDTH_MM / 2 + pixel / 2, -SLICE_MM * len(hu) / 2)
    _write_ct_series(folder / path, hu, (pixel, pixel, SLICE_MM), origin_mm=corner, patient=patient, seed=seed)
    with replacing(folder / sidecar) as temporary:
        np.save(temporary, sick.astype(np.int8), allow_pickle=False)
    return {"id": name, "path": path, "label": label, "patient": patient, "instance_labels": sidecar}


def _head_phantom(
    rng: np.random.Generator, n_slices: int, size: int, blood: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """HU of a head (slices, rows, columns) as int16, and which slices hold blood; `blood` None means a healthy scan."""
    x, y, z = _millimetres(n_slices, size)
    half = np.array([rng.uniform(60, 78), rng.uniform(76, 96), SLICE_MM * n_slices / 2 * rng.uniform(1.03, 1.15)])
    skull, brain = _shell(x, y, z, half - 4), _shell(x, y, z, half - 4 - rng.uniform(4, 8))
    tissue = 35 + rng.normal(0, 2) + _texture(rng, brain.shape)
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


def _millimetres(n_slices: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the voxels from the middle of the volume: x to the left, y to the back, z to the head."""
    across = (np.arange(size) + 0.5) * WIDTH_MM / size - WIDTH_MM / 2
    along = (np.arange(n_slices) + 0.5 - n_slices / 2) * SLICE_MM
    return across[None, None, :], across[None, :, None], along[:, None, None]


def _shell(x: np.ndarray, y: np.ndarray, z: np.ndarray, half: np.ndarray) -> np.ndarray:
    return (x / half[0]) ** 2 + (y / half[1]) ** 2 + (z / half[2]) ** 2 < 1


def _texture(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    field = gaussian_filter(rng.standard_normal(shape), (1, 3, 3))
    return 3.0 * field / field.std()


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
