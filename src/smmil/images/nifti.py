"""A CT volume from a NIfTI file, checksum verified, shown the same way as the DICOM series it was made from."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.files import check_once, need_file
from smmil.images.dicom_file import DAMAGE
from smmil.images.volume import ASSUMED, LPS_TO_RAS, Turn, Volume, _plane_spacing, _slice_normal, _turned

LARGEST_VOLUME = 2**30
# Deflate cannot pack better than about 1 : 1032, so a file that promises more is no volume.
_LARGEST_PACKING = 1100
_BEHIND = 64 * 2**20
_PIECE = 2**20
_MM_PER = {"meter": 1000.0, "mm": 1.0, "micron": 0.001}


@contextmanager
def _nifti_errors(path: Path) -> Iterator[None]:
    """Turn whatever nibabel raises into a DataError that names the file."""
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError
    from nibabel.wrapstruct import WrapStructError

    try:
        yield
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from None
    except (*DAMAGE, ImageFileError, HeaderDataError, WrapStructError) as problem:
        kind = type(problem).__name__
        raise DataError(f"{path}: not readable as a NIfTI volume ({kind}); copy or convert the file again") from None


@dataclass(frozen=True)
class _NiftiSlices:
    """Reads axial slices; a packed file is unpacked once, when the first slice is asked for."""

    path: Path
    stored: Any = field(repr=False)
    axis: int
    turn: Turn

    @cached_property
    def values(self) -> np.ndarray:
        values = self.stored.get_unscaled()
        return values.reshape(values.shape[:3])

    def __call__(self, index: int) -> np.ndarray:
        with _nifti_errors(self.path):
            count = self.values.shape[self.axis]
            values = self.values.take(count - 1 - index if self.turn.flip_slices else index, axis=self.axis)
            hu = values.astype(np.float64) * self.stored.slope + self.stored.inter
            if not np.isfinite(hu).all():
                raise DataError(f"slice {index} holds values that are no numbers; write the volume again")
            # NIfTI's first axis are columns, so a slice as stored is (columns, rows).
            return np.ascontiguousarray(self.turn.show(hu.astype(np.float32).T))


def _open_nifti(path: Path, *, strict: bool = False) -> Volume:
    """The volume of a .nii or .nii.gz file in Hounsfield units, axial slices from foot to head."""
    try:
        import nibabel
    except ImportError:
        raise MissingExtra("nibabel", "ct", "reading NIfTI") from None
    with _nifti_errors(path):
        image: Any = nibabel.load(need_file(path))
        shape = _shape(path, image)
        if path.name.lower().endswith(".gz"):
            most = image.dataobj.offset + image.get_data_dtype().itemsize * int(np.prod(shape)) + _BEHIND
            check_once(path, _check_gzip, most)
        affine, notes = _placed(image)
        if strict and notes:
            raise DataError(f"{'; '.join(notes)}; write the file again with its geometry, or allow it")
        axis, moved, sizes = _axial(affine, shape)
        turn = _turned(moved, sizes)
        columns, rows = sizes[:2][:: -1 if turn.swap else 1]
        distance, normal = _plane_spacing(turn.affine)[2], _slice_normal(turn.affine)
        return Volume(
            name=path.name,
            shape=(sizes[2], rows, columns),
            affine=turn.affine,
            positions_mm=(LPS_TO_RAS @ turn.affine)[:3, 3] @ normal + distance * np.arange(sizes[2]),
            distance_mm=distance,
            source=_NiftiSlices(path, image.dataobj, axis, turn),
            notes=notes,
        )


def _check_gzip(path: Path, most: int) -> None:
    """Verify the checksum of a `.nii.gz`: unpack to the end; nibabel stops at the last voxel, before it."""
    with gzip.open(path) as file:
        while file.read(_PIECE):
            if file.tell() > most:
                raise DataError(f"goes on for more than {_BEHIND >> 20} MB behind the volume; write the file again")


def _shape(path: Path, image: Any) -> tuple[int, int, int]:
    """Three sizes; an error if they exceed the limit."""
    shape = tuple(int(n) for n in image.shape)
    if len(shape) < 3 or any(n != 1 for n in shape[3:]) or min(shape) < 1:
        raise DataError(f"an array of shape {shape}; expected one volume with three axes")
    voxels = int(np.prod(shape, dtype=object))
    packed = path.stat().st_size
    if voxels > LARGEST_VOLUME:
        raise DataError(f"{voxels:,} voxels; a CT volume has at most {LARGEST_VOLUME:,}")
    if voxels * image.get_data_dtype().itemsize > packed * _LARGEST_PACKING:
        raise DataError(f"{voxels:,} voxels cannot be in {packed:,} bytes; the file is damaged, copy it again")
    if image.get_data_dtype().kind not in "iuf":
        raise DataError(f"voxels of type {image.get_data_dtype()}; expected one number per voxel")
    return shape[0], shape[1], shape[2]


def _placed(image: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """The affine in mm, and what had to be assumed about it."""
    affine = np.array(image.affine, dtype=np.float64)
    header = image.header
    unit = header.get_xyzt_units()[0] if "xyzt_units" in header else "unknown"
    affine[:3] *= _MM_PER.get(unit, 1.0)
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise DataError("the affine does not describe a volume; write the file again with its geometry")
    notes = []
    if "sform_code" in header and int(header["sform_code"]) == 0 and int(header["qform_code"]) == 0:
        notes.append(f"the file states no orientation (sform and qform codes are 0); {ASSUMED}")
    if unit not in _MM_PER:
        notes.append("the file states no unit of length; taken as mm")
    return affine, tuple(notes)


def _axial(affine: np.ndarray, shape: tuple[int, int, int]) -> tuple[int, np.ndarray, tuple[int, int, int]]:
    """The stored axis that runs along the body; affine and sizes with that axis moved to the end."""
    from nibabel.orientations import io_orientation

    axis = int(np.flatnonzero(io_orientation(affine)[:, 0] == 2)[0])
    order = [a for a in range(3) if a != axis] + [axis]
    moved = affine[:, [*order, 3]]
    return axis, moved, (shape[order[0]], shape[order[1]], shape[order[2]])
