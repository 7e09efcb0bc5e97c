"""A CT volume, read slice by slice in Hounsfield units, always the same way up; windows as channels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from smmil.errors import ConfigError, DataError, suggest
from smmil.frame import Frame
from smmil.images import geometry


class SliceSource(Protocol):
    """Where pixels come from: slice `index` of the volume as shown, in Hounsfield units, float32."""

    def __call__(self, index: int) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Volume:
    """One CT scan. Slices run from foot to head, rows from front to back, columns from the patient's right to left.

    (So an axial slice looks as radiologists hang it. Coronal and sagittal DICOM series keep their own slices; see
    `orientation`.)

    name          folder or file it came from                 shape         slices, rows, columns
    affine        (column, row, slice, 1) -> mm in RAS, as nibabel's for an array `hu.transpose(2, 1, 0)`
    positions_mm  place of every slice along the normal of the slices, rising
    distance_mm   median distance between slices
    notes         what a reader should know: gaps, tilt, repairs; never anything that identifies a person
    sop_uids      one per slice when it came from DICOM, to join labels given per slice; not for export
    """

    name: str
    shape: tuple[int, int, int]
    affine: np.ndarray = field(repr=False)
    positions_mm: np.ndarray = field(repr=False)
    distance_mm: float
    source: SliceSource = field(repr=False)
    notes: tuple[str, ...] = ()
    sop_uids: tuple[str, ...] = field(default=(), repr=False)

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Distance of columns, of rows, and of slices (median, at a right angle to them)."""
        x, y, _ = geometry.plane_spacing(self.affine)
        return x, y, self.distance_mm

    @property
    def orientation(self) -> str:
        """What columns, rows and slices run towards: LPS (left, back, head) for every axial volume."""
        return geometry.towards(self.affine)

    @property
    def plane(self) -> str:
        return geometry.plane(self.affine)

    @property
    def frame(self) -> Frame:
        """What coordinates mean when every slice is an instance."""
        return Frame(patch=(1,), spacing=(self.distance_mm,), unit="mm")

    @cached_property
    def hu(self) -> np.ndarray:
        """All slices, float32 (slices, rows, columns); read once and kept, so prefer `slice_hu` for one at a time."""
        return np.stack([self.slice_hu(index) for index in range(len(self))])

    def slice_hu(self, index: int) -> np.ndarray:
        """Slice `index`, float32 (rows, columns) in Hounsfield units, read from the file now."""
        if not 0 <= index < len(self):
            raise ConfigError(f"{self.name}: slice {index} asked for; there are slices 0 to {len(self) - 1}")
        return self.source(index)

    def __len__(self) -> int:
        return self.shape[0]


def open_volume(path: str | Path | Sequence[str | Path], *, series: str | None = None, strict: bool = False) -> Volume:
    """The CT volume of a folder with a DICOM series, of DICOM files, or of a NIfTI file; only headers are read now.

    path    a folder is searched through all its subfolders; a list of files is taken as it is, in any order
    series  which one, when there are several: the key that the error lists, or the SeriesInstanceUID
    strict  refuse gaps and uneven distances between slices, and a NIfTI file that does not state its orientation;
            else they are in `notes`
    """
    from smmil.images import dicom_series, nifti

    if isinstance(path, (str, Path)):
        path = Path(path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        if path.name.lower().endswith((".nii", ".nii.gz")):
            if series is not None:
                raise ConfigError(f"{path}: series={series!r} makes no sense for a NIfTI file; leave it out")
            return nifti.open_nifti(path, strict=strict)
    return dicom_series.open_series(path, series=series, strict=strict)


# centre, width
PRESETS: dict[str, tuple[float, float]] = {
    "brain": (40, 80),
    "subdural": (80, 200),
    "stroke": (30, 30),
    "soft_tissue": (40, 400),
    "bone": (600, 2800),
    "lung": (-600, 1500),
    "mediastinum": (50, 350),
    "abdomen": (60, 400),
    "liver": (60, 160),
}
RSNA = ("brain", "subdural", "stroke")
"""The three windows of the RSNA haemorrhage recipe: 40/80, 80/200, 30/30."""

Window = str | tuple[float, float]


def window(hu: np.ndarray, centre: float, width: float) -> np.ndarray:
    """Shades from 0 (at centre - width/2 and below) to 1 (at centre + width/2 and above), linear between; float32."""
    _check(centre, width, f"window {centre}/{width}")
    low = centre - width / 2
    return np.clip((np.asarray(hu, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1)


def parse_window(value: Window) -> tuple[float, float]:
    """Centre and width from a name ("brain"), from text ("40/80") or from a pair."""
    if not isinstance(value, str):
        centre, width = value
        return _check(centre, width, f"window {value}")
    if value in PRESETS:
        return PRESETS[value]
    parts = value.split("/")
    try:
        centre, width = (float(part) for part in parts)
    except ValueError:
        hint = suggest(value, PRESETS)
        raise ConfigError(f"window {value!r}: neither a known name nor centre/width such as 40/80; {hint}") from None
    return _check(centre, width, f"window {value!r}")


def _check(centre: float, width: float, what: str) -> tuple[float, float]:
    if not (np.isfinite(centre) and np.isfinite(width) and width > 0):
        raise ConfigError(f"{what}: the centre must be a number and the width a positive one")
    return float(centre), float(width)


def window_channels(hu: np.ndarray, windows: Sequence[Window] = RSNA) -> np.ndarray:
    """The same picture through several windows, as channels (windows, ...) of float32 in 0..1."""
    if isinstance(windows, str) or not len(windows):
        raise ConfigError(f"windows: expected a list such as {list(RSNA)}, got {windows!r}")
    return np.stack([window(hu, *parse_window(w)) for w in windows])


def triplet(volume: Volume, index: int) -> np.ndarray:
    """Slices index - 1, index and index + 1 as channels (3, rows, columns) of HU; the outermost slice is repeated."""
    last = len(volume) - 1
    return np.stack([volume.slice_hu(i) for i in (max(index - 1, 0), index, min(index + 1, last))])


def triplets(volume: Volume) -> Iterator[np.ndarray]:
    """`triplet` for every slice in turn, reading each slice once."""
    below = here = volume.slice_hu(0)
    for index in range(len(volume)):
        above = volume.slice_hu(index + 1) if index + 1 < len(volume) else here
        yield np.stack([below, here, above])
        below, here = here, above
