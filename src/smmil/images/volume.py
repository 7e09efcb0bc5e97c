"""A CT volume, read slice by slice, in Hounsfield units and always the same way up."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from smmil.errors import ConfigError, DataError
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
    strict  refuse gaps and uneven distances between slices, and a NIfTI file that does not tell its orientation;
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
