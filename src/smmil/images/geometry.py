"""Where the slices of a volume lie in the patient, and how to show them the same way up every time.

Positions and directions are in millimetres. DICOM counts them towards the patient's left, back and head (LPS), nibabel
towards right, front and head (RAS); affines here are nibabel's and take (column, row, slice).
"""

from dataclasses import dataclass, field

import numpy as np

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
class Stack:
    """Slices in order along their normal: affine as stored, the order found, and what is odd about it."""

    affine: np.ndarray
    order: np.ndarray
    distance_mm: float
    uneven: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())


def stack(positions: np.ndarray, orientation: np.ndarray, pixel_mm: tuple[float, float], thickness: float) -> Stack:
    """Sort slices by position · (row × column) and find the affine of the pile.

    positions    (n, 3) first pixel of every slice, LPS       orientation  (2, 3) along a row, along a column, LPS
    pixel_mm     distance of columns, of rows                 thickness    distance to assume for a single slice
    With uneven distances the affine is right at the first and last slice, and `distance_mm` is the median.
    """
    normal = unit(np.cross(orientation[0], orientation[1]))
    along = positions @ normal
    order = np.argsort(along, kind="stable")
    first, last = positions[order[0]], positions[order[-1]]
    step = (last - first) / (len(order) - 1) if len(order) > 1 else normal * thickness
    affine = np.eye(4)
    affine[:3] = np.column_stack([orientation[0] * pixel_mm[0], orientation[1] * pixel_mm[1], step, first])
    distances = np.diff(along[order])
    typical = float(np.median(distances)) if len(distances) else thickness
    remarks = (*_lean(step, normal), *_sideways(positions[order], along[order]))
    return Stack(LPS_TO_RAS @ affine, order, typical, uneven_distances(along[order]), remarks)


def doubles(positions: np.ndarray, orientation: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of slices that claim the same place."""
    along = positions @ unit(np.cross(orientation[0], orientation[1]))
    order = np.argsort(along, kind="stable")
    close = np.flatnonzero(np.diff(along[order]) < _SAME_PLACE_MM)
    return [(int(order[i]), int(order[i + 1])) for i in close]


def uneven_distances(along: np.ndarray) -> tuple[str, ...]:
    """What is wrong with the distances of sorted slices, in words: gaps with their positions, then other unevenness."""
    distances = np.diff(along)
    if not len(distances):
        return ()
    typical = np.median(distances)
    gaps = np.flatnonzero(distances > _GAP * typical)
    others = np.delete(distances, gaps)
    found = [_gap(along, gaps, float(typical))] if len(gaps) else []
    if len(others) and np.abs(others - typical).max() > _UNEVEN * typical:
        found.append(f"distances between slices vary from {others.min():.2f} to {others.max():.2f} mm")
    return tuple(found)


def _gap(along: np.ndarray, gaps: np.ndarray, typical: float) -> str:
    places = ", ".join(f"{along[i]:.2f} to {along[i + 1]:.2f}" for i in gaps[:5])
    more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
    return f"{len(gaps)} gap(s) between slices otherwise {typical:.2f} mm apart: from {places} mm{more}"


def _lean(step: np.ndarray, normal: np.ndarray) -> tuple[str, ...]:
    """Gantry tilt: slices that are not stacked along their normal, or that lie oblique in the patient."""
    sheared = np.degrees(np.arccos(np.clip(unit(step) @ normal, -1, 1)))
    oblique = np.degrees(np.arccos(np.clip(np.abs(normal).max(), -1, 1)))
    found = []
    if sheared > _STRAIGHT_DEGREES:
        found.append(
            f"gantry tilt: each slice is shifted against the next by {sheared:.1f} degrees (kept in the affine)"
        )
    if oblique > _STRAIGHT_DEGREES:
        found.append(f"slices lie {oblique:.1f} degrees oblique in the patient (kept in the affine)")
    return tuple(found)


def _sideways(positions: np.ndarray, along: np.ndarray) -> tuple[str, ...]:
    """Slices that leave the straight line from the first to the last, which no affine describes."""
    if len(along) < 3:
        return ()
    share = ((along - along[0]) / (along[-1] - along[0]))[:, None]
    off = np.linalg.norm(positions - (positions[0] + share * (positions[-1] - positions[0])), axis=1).max()
    return (f"slices leave the straight line of the stack by up to {off:.2f} mm",) if off > 0.1 else ()


def turned(affine: np.ndarray, sizes: tuple[int, int, int]) -> Turn:
    """How to show slices of (columns, rows, slices) `sizes` as they are hung: the third axis stays the third."""
    from nibabel import orientations

    stored = orientations.io_orientation(affine)
    target = orientations.axcodes2ornt(SHOWN[int(stored[2, 0])])
    change = orientations.ornt_transform(stored, target)
    swap = bool(change[0, 0] == 1)
    flips = {int(axis): bool(sign < 0) for axis, sign in change}
    shown = affine @ orientations.inv_ornt_aff(change, sizes)
    return Turn(shown, swap, flip_rows=flips[1], flip_columns=flips[0], flip_slices=flips[2])


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def slice_normal(affine: np.ndarray) -> np.ndarray:
    """Direction of rising slices, perpendicular to them, LPS."""
    axes = (LPS_TO_RAS @ affine)[:3]
    return unit(np.cross(axes[:, 0], axes[:, 1]))


def plane_spacing(affine: np.ndarray) -> tuple[float, float, float]:
    """Distance of columns, of rows, and of slices measured at a right angle to them."""
    axes = (LPS_TO_RAS @ affine)[:3]
    x, y = np.linalg.norm(axes[:, 0]), np.linalg.norm(axes[:, 1])
    return float(x), float(y), float(axes[:, 2] @ slice_normal(affine))


def towards(affine: np.ndarray) -> str:
    """What columns, rows and slices run towards, nearest letters: L/R, A/P, I/S."""
    from nibabel import orientations

    return "".join(orientations.aff2axcodes(affine))


def plane(affine: np.ndarray) -> str:
    """axial, coronal or sagittal: whichever the slices are nearest to."""
    return PLANES[int(np.abs(slice_normal(affine)).argmax())]
