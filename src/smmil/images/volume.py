"""A CT or MR volume, read slice by slice, in a fixed orientation: geometry and windows.

Positions and directions are in millimetres. DICOM counts them towards the patient's left, back and head (LPS), nibabel
towards right, front and head (RAS); affines here are nibabel's and take (column, row, slice).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from smmil.errors import ConfigError, DataError, suggest
from smmil.frame import Frame

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
# What columns, rows and slices run towards when an axial, coronal or sagittal stack is shown as radiologists hang it.
# Each triple is right-handed, so slices follow the normal of the picture as shown; axial stacks run from foot to head.
SHOWN = {2: "LPS", 1: "LIP", 0: "PIR"}
PLANES = {2: "axial", 1: "coronal", 0: "sagittal"}
_GAP = 1.5
_UNEVEN = 0.05
_STRAIGHT_DEGREES = 0.5
_SAME_PLACE_MM = 0.01


@dataclass(frozen=True)
class Turn:
    """How stored pixels become a shown slice: exchange of axes, then flips; and which way the slices run."""

    affine: np.ndarray
    swap: bool
    flip_rows: bool
    flip_columns: bool
    flip_slices: bool

    def show(self, pixels: np.ndarray) -> np.ndarray:
        pixels = pixels.T if self.swap else pixels
        return pixels[:: -1 if self.flip_rows else 1, :: -1 if self.flip_columns else 1]


@dataclass(frozen=True)
class _Stack:
    """Slices in order along their normal: affine as stored, the order found, and what is odd about it."""

    affine: np.ndarray
    order: np.ndarray
    distance_mm: float
    uneven: tuple[str, ...]
    remarks: tuple[str, ...]


def _stack(positions: np.ndarray, orientation: np.ndarray, pixel_mm: tuple[float, float], thickness: float) -> _Stack:
    """Sort slices by position · (row × column) and find the affine of the pile.

    positions    (n, 3) first pixel of every slice, LPS       orientation  (2, 3) along a row, along a column, LPS
    pixel_mm     distance of columns, of rows                 thickness    distance to assume for a single slice
    With uneven distances the affine is right at the first and last slice, and `distance_mm` is the median.
    """
    normal = _unit(np.cross(orientation[0], orientation[1]))
    along = positions @ normal
    order = np.argsort(along, kind="stable")
    first, last = positions[order[0]], positions[order[-1]]
    step = (last - first) / (len(order) - 1) if len(order) > 1 else normal * thickness
    affine = np.eye(4)
    affine[:3] = np.column_stack([orientation[0] * pixel_mm[0], orientation[1] * pixel_mm[1], step, first])
    distances = np.diff(along[order])
    typical = float(np.median(distances)) if len(distances) else thickness
    remarks = tuple(_odd_directions(step, normal, positions[order], along[order]))
    return _Stack(LPS_TO_RAS @ affine, order, typical, tuple(_uneven_distances(along[order])), remarks)


def _doubles(positions: np.ndarray, orientation: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of slices that claim the same place."""
    along = positions @ _unit(np.cross(orientation[0], orientation[1]))
    order = np.argsort(along, kind="stable")
    close = np.flatnonzero(np.diff(along[order]) < _SAME_PLACE_MM)
    return [(int(order[i]), int(order[i + 1])) for i in close]


def _uneven_distances(along: np.ndarray) -> Iterator[str]:
    """What is wrong with the distances of sorted slices, in words: gaps with their positions, then other unevenness."""
    distances = np.diff(along)
    if not len(distances):
        return
    typical = float(np.median(distances))
    gaps = np.flatnonzero(distances > _GAP * typical)
    if len(gaps):
        places = ", ".join(f"{along[i]:.2f} to {along[i + 1]:.2f}" for i in gaps[:5])
        more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
        yield f"{len(gaps)} gap(s) between slices otherwise {typical:.2f} mm apart: from {places} mm{more}"
    others = np.delete(distances, gaps)
    if len(others) and np.abs(others - typical).max() > _UNEVEN * typical:
        yield f"distances between slices vary from {others.min():.2f} to {others.max():.2f} mm"


def _odd_directions(step: np.ndarray, normal: np.ndarray, positions: np.ndarray, along: np.ndarray) -> Iterator[str]:
    """Slices that are not stacked along their normal, lie oblique, or leave the line from the first to the last."""
    sheared = np.degrees(np.arccos(np.clip(_unit(step) @ normal, -1, 1)))
    oblique = np.degrees(np.arccos(np.clip(np.abs(normal).max(), -1, 1)))
    if sheared > _STRAIGHT_DEGREES:
        yield f"gantry tilt: each slice is shifted against the next by {sheared:.1f} degrees (kept in the affine)"
    if oblique > _STRAIGHT_DEGREES:
        yield f"slices lie {oblique:.1f} degrees oblique in the patient (kept in the affine)"
    share = ((along - along[0]) / (along[-1] - along[0] or 1))[:, None]
    off = np.linalg.norm(positions - (positions[0] + share * (positions[-1] - positions[0])), axis=1).max()
    if len(along) > 2 and off > 0.1:
        yield f"slices leave the straight line of the stack by up to {off:.2f} mm"


def _turned(affine: np.ndarray, sizes: tuple[int, int, int]) -> Turn:
    """Turn to the radiological orientation, for sizes (columns, rows, slices); the third axis stays the third."""
    from nibabel import orientations

    stored = orientations.io_orientation(affine)
    target = orientations.axcodes2ornt(SHOWN[int(stored[2, 0])])
    change = orientations.ornt_transform(stored, target)
    flips = {int(axis): bool(sign < 0) for axis, sign in change}
    shown = affine @ orientations.inv_ornt_aff(change, sizes)
    return Turn(shown, bool(change[0, 0] == 1), flip_rows=flips[1], flip_columns=flips[0], flip_slices=flips[2])


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def _slice_normal(affine: np.ndarray) -> np.ndarray:
    """Direction of rising slices, perpendicular to them, LPS."""
    axes = (LPS_TO_RAS @ affine)[:3]
    return _unit(np.cross(axes[:, 0], axes[:, 1]))


def _plane_spacing(affine: np.ndarray) -> tuple[float, float, float]:
    """Distance of columns, of rows, and of slices measured at a right angle to them."""
    axes = (LPS_TO_RAS @ affine)[:3]
    x, y = np.linalg.norm(axes[:, 0]), np.linalg.norm(axes[:, 1])
    return float(x), float(y), float(axes[:, 2] @ _slice_normal(affine))


@dataclass(frozen=True, eq=False)
class Volume:
    """One scan. Slices run from foot to head, rows from front to back, columns from the patient's right to left.

    (So an axial slice looks as radiologists hang it. Coronal and sagittal DICOM series keep their own slices; see
    `orientation`.)

    name          folder or file it came from                 shape         slices, rows, columns
    affine        (column, row, slice, 1) -> mm in RAS, as nibabel's for an array `hu.transpose(2, 1, 0)`
    positions_mm  place of every slice along the normal of the slices, rising
    distance_mm   median distance between slices
    source        reads slice `index` as shown, in Hounsfield units (of MR: as stored), float32
    notes         what a reader should know: gaps, tilt, repairs; never anything that identifies a person
    sop_uids      one per slice when it came from DICOM, to join labels given per slice; not for export
    values        what the voxels are: HU, MR, shades (pictures), or unknown (NIfTI does not say)
    series        short key of the DICOM series        sized  False: no distances are known, 1 mm stands for them
    """

    name: str
    shape: tuple[int, int, int]
    affine: np.ndarray = field(repr=False)
    positions_mm: np.ndarray = field(repr=False)
    distance_mm: float
    source: Callable[[int], np.ndarray] = field(repr=False)
    notes: tuple[str, ...] = ()
    sop_uids: tuple[str, ...] = field(default=(), repr=False)
    values: str = "unknown"
    series: str | None = None
    sized: bool = True

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Distance of columns, of rows, and of slices (median, at a right angle to them)."""
        return *_plane_spacing(self.affine)[:2], self.distance_mm

    @property
    def orientation(self) -> str:
        """What columns, rows and slices run towards: LPS (left, back, head) for every axial volume."""
        from nibabel import orientations

        return "".join(orientations.aff2axcodes(self.affine))

    @property
    def plane(self) -> str:
        """axial, coronal or sagittal: whichever the slices are nearest to."""
        return PLANES[int(np.abs(_slice_normal(self.affine)).argmax())]

    @property
    def frame(self) -> Frame:
        """What coordinates mean when every slice is an instance."""
        return Frame(patch=(1,), spacing=(self.distance_mm,), unit="mm") if self.sized else Frame(patch=(1,))

    @cached_property
    def hu(self) -> np.ndarray:
        """All slices, float32 (slices, rows, columns); read once and kept, so prefer `slice_hu` for one at a time."""
        return np.stack([self.slice_hu(index) for index in range(len(self))])

    def slice_hu(self, index: int) -> np.ndarray:
        """Slice `index`, float32 (rows, columns) in Hounsfield units, read from the file now."""
        if not 0 <= index < len(self):
            raise ConfigError(f"{self.name}: slice {index} asked for; there are slices 0 to {len(self) - 1}")
        return self.source(index)

    def voxels_above_lowest(self) -> np.ndarray:
        """float64 (n,): all voxels but those of the lowest value; of more than 64 million every second, third … row."""
        apart = -(-int(np.prod(self.shape, dtype=object)) // _MOST_SAMPLED)
        voxels = np.concatenate([self.slice_hu(index)[::apart].ravel() for index in range(len(self))])
        return voxels[voxels > voxels.min()].astype(np.float64)

    def __len__(self) -> int:
        return self.shape[0]


def open_volume(
    path: str | Path | Sequence[str | Path],
    *,
    series: str | None = None,
    strict: bool = False,
    among_several: str | None = None,
) -> Volume:
    """The volume of a folder with a DICOM series, of DICOM files, of a NIfTI file, or of a folder of pictures.

    Only headers are read now.

    path    a folder is searched through all its subfolders; a list of files is taken as it is, in any order
    series  which one, when there are several: the key that the error lists, the SeriesInstanceUID, `most-slices`
            (localizers do not count), or `description:axial` (part of its description)
    among_several  the same, but only where there are several: a re-exported scan may have another key
    strict  refuse gaps and uneven distances between slices, and a NIfTI file that does not state its orientation;
            else they are in `notes`
    """
    from smmil.images.dicom_series import _open_series
    from smmil.images.nifti import _open_nifti
    from smmil.images.picture_stack import _open_stack, is_stack

    if isinstance(path, (str, Path)):
        path = Path(path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        if path.name.lower().endswith((".nii", ".nii.gz")):
            if series is not None:
                raise ConfigError(f"{path}: series={series!r} makes no sense for a NIfTI file; leave it out")
            return _open_nifti(path, strict=strict)
        if is_stack(path):
            if series is not None:
                raise ConfigError(f"{path}: series={series!r} makes no sense for a folder of pictures; leave it out")
            return _open_stack(path)
    return _open_series(path, series=series, strict=strict, among_several=among_several)


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


_PERCENTILES = re.compile(r"p(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")
_MOST_SAMPLED = 2**26


def check_window(value: Window) -> None:
    """Refuse what `parse_window` would not understand, without a scan."""
    if _percentiles(value) is None:
        parse_window(value)


def _percentiles(value: Window) -> tuple[float, float] | None:
    """Lower and upper percentile of a text such as p1/99; None for anything else."""
    found = _PERCENTILES.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    low, high = float(found[1]), float(found[2])
    if not low < high <= 100:
        raise ConfigError(f"window {value!r}: expected a lower and a higher percentile up to 100, such as p1/99")
    return low, high


def _percentile_window(volume: "Volume", low: float, high: float, text: str) -> tuple[float, float]:
    """Centre and width between two percentiles of the voxels above the lowest value, which is air or padding.

    The pictures do not change when all values are multiplied and shifted: MR has no unit.
    """
    voxels = volume.voxels_above_lowest()
    below, above = np.percentile(voxels, (low, high)) if len(voxels) else (0.0, 0.0)
    if not below < above:
        raise DataError(
            f"{volume.name}: window {text!r} is empty, the scan has hardly more than one value; is it empty?"
        )
    return float(below + above) / 2, float(above - below)


def parse_window(value: Window, volume: "Volume | None" = None) -> tuple[float, float]:
    """Centre and width from a name ("brain"), from text ("40/80"), from percentiles of a scan ("p1/99") or a pair."""
    if (ends := _percentiles(value)) is not None:
        if volume is None:
            raise ConfigError(f"window {value!r}: percentiles are those of a scan; give centre/width here")
        return _percentile_window(volume, *ends, str(value))
    if not isinstance(value, str):
        centre, width = value
        return _check(centre, width, f"window {value}")
    if value in PRESETS:
        return PRESETS[value]
    try:
        centre, width = map(float, value.split("/"))
    except ValueError:
        hint = suggest(value, PRESETS)
        raise ConfigError(
            f"window {value!r}: neither a known name, centre/width such as 40/80, nor percentiles such as p1/99; {hint}"
        ) from None
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
