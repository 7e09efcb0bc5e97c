"""Masks of a scan as DICOM keeps them: segmentations (SEG) and contours of radiotherapy (RTSTRUCT).

Both lie in the patient, not in the slices: each frame or contour is put where its position says. Names of segments and
regions are compared, never shown, since they may be the name of a person.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.annotations.labels import ANY
from smmil.errors import DataError
from smmil.files import digest
from smmil.images.dicom_file import dicom_errors, frame_headers, kind_of, read_tags
from smmil.images.dicom_pixels import stored_pixels
from smmil.images.dicom_series import DicomSlices
from smmil.images.volume import LPS_TO_RAS, Turn, Volume

DICOM_MASKS = {"dicom-seg": "SEG", "rtstruct": "RTSTRUCT"}
_SEG = ("SegmentationType", "MaximumFractionalValue", "SegmentSequence", "ReferencedSeriesSequence")
_RTSTRUCT = ("StructureSetROISequence", "ROIContourSequence", "ReferencedFrameOfReferenceSequence")
_CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
# Frames of a segmentation are those of the scan, so they lie on its slices and pixels but for rounding.
_OFF_SLICE, _OFF_PIXEL = 0.1, 0.5
_SAME_PLANE_MM = 0.05
# No hand draws so many points in one contour, and no drawing crosses the rows of a slice, or of a scan, so often.
_MOST_POINTS, _MOST_ON_A_SLICE, _MOST_CROSSINGS = 100_000, 4_000_000, 100_000_000
_LARGEST_DRAWING = 256 * 2**20
_LONGEST_NUMBER, _FARTHEST_MM = 32, 1e5
_HALF = 0.5
_TOO_OFTEN = "so often that no hand drew them; draw them again"


def dicom_mask_kind(path: Path) -> str | None:
    """dicom-seg or rtstruct by what the file says it is; None for any other DICOM file."""
    modality = kind_of(read_tags(path))
    return next((kind for kind, name in DICOM_MASKS.items() if name == modality), None)


def read_dicom_mask(
    path: Path, kind: str, scan: Volume, positive: Collection[Any] | None = None
) -> tuple[Iterator[np.ndarray], list[str]]:
    """A yes/no picture for every slice of the scan, as it is shown, and notes.

    positive  numbers or names of segments or regions of interest; ["any"]: all; None: the only one
    """
    if not scan.sized:
        raise DataError(f"{path}: lies in the patient, but the scan is a folder of pictures without a place in it")
    if (found := dicom_mask_kind(path)) != kind:
        raise DataError(f"{path}: is {found or 'another DICOM file'}, not {kind}; give the file of the mask")
    with dicom_errors(path, f"a DICOM {DICOM_MASKS[kind]}"):
        return (_segmentation if kind == "dicom-seg" else _structure_set)(path, _ScanGrid.of(scan), positive)


@dataclass(frozen=True)
class _ScanGrid:
    """Where the pixels of a scan lie in the patient, as it is shown; mm, LPS.

    corners  (n, 3) first pixel of every slice      axes  (3, 3) columns: one step across, one down, the normal
    series, references  identifiers of its series and frames of reference; none for a NIfTI file
    """

    corners: np.ndarray
    axes: np.ndarray
    distance_mm: float
    shape: tuple[int, int, int]
    series: frozenset[str]
    references: frozenset[str]

    @classmethod
    def of(cls, scan: Volume) -> "_ScanGrid":
        lps, source = LPS_TO_RAS @ scan.affine, scan.source
        normal = np.cross(lps[:3, 0], lps[:3, 1])
        axes = np.column_stack([lps[:3, 0], lps[:3, 1], normal / np.linalg.norm(normal)])
        known = source.headers if isinstance(source, DicomSlices) else ()
        corners = (lps[:3, 2:3] * np.arange(len(scan)) + lps[:3, 3:4]).T
        return cls(
            source.corners_mm if isinstance(source, DicomSlices) else corners,
            axes,
            scan.distance_mm,
            scan.shape,
            frozenset(h.series_uid for h in known),
            frozenset(h.reference_uid for h in known if h.reference_uid),
        )

    def nearest(self, height: float) -> int:
        """The slice nearest to a height along the normal."""
        return int(np.abs(self.corners @ self.axes[:, 2] - height).argmin())

    def places(self, points: np.ndarray, index: int) -> np.ndarray:
        """(n, 3) column, row and mm above the slice of points in the patient."""
        return np.linalg.solve(self.axes, (points - self.corners[index]).T).T

    def refuse_other(self, series: Collection[str], references: Collection[str]) -> None:
        """Refuse a mask that names another series, or other coordinates, than the scan has."""
        for what, theirs, ours in (
            ("series", {*series} - {""}, self.series),
            ("frame of reference", {*references} - {""}, self.references),
        ):
            if theirs and ours and theirs.isdisjoint(ours):
                shown = [" and ".join(sorted(digest(uid)[:8] for uid in uids)[:3]) for uids in (theirs, ours)]
                raise DataError(
                    f"is a mask of the {what} {shown[0]}, the scan has {shown[1]}; choose that series (--series), "
                    "give the mask of this one, or convert both to NIfTI"
                )


def _chosen(names: dict[int, str], positive: Collection[Any] | None, what: str) -> list[int]:
    """Numbers of the segments or regions that are lesions."""
    listed = ", ".join(map(str, sorted(names)[:12])) + (" …" if len(names) > 12 else "")
    if not names:
        raise DataError(f"holds no {what}; export the mask again")
    if positive is None and len(names) > 1:
        raise DataError(
            f"holds the {what}s {listed}; say which are lesions by number or name (--positive 2), or --positive any"
        )
    if positive is None or list(positive) == [ANY]:
        return sorted(names)
    found = set()
    for wanted in map(str, positive):
        fits = {n for n, name in names.items() if wanted == str(n) or wanted.strip().lower() == name.strip().lower()}
        if not fits:
            raise DataError(f"no {what} has the number or name {wanted!r}; there are the numbers {listed}")
        found |= fits
    return sorted(found)


def _segmentation(
    path: Path, grid: _ScanGrid, positive: Collection[Any] | None
) -> tuple[Iterator[np.ndarray], list[str]]:
    tags = read_tags(path, _SEG)
    grid.refuse_other(
        [str(item.get("SeriesInstanceUID", "")) for item in tags.get("ReferencedSeriesSequence") or ()],
        [str(tags.get("FrameOfReferenceUID") or "")],
    )
    kind = str(tags.get("SegmentationType", ""))
    if kind not in ("BINARY", "FRACTIONAL", "LABELMAP"):
        raise DataError("SegmentationType is none of BINARY, FRACTIONAL and LABELMAP; export the mask again")
    named = {int(s.SegmentNumber): str(s.get("SegmentLabel", "")) for s in tags.get("SegmentSequence") or ()}
    chosen = _chosen({n: name for n, name in named.items() if n > 0}, positive, "segment")
    # More than half of what is full counts, as everywhere.
    full = int(tags.get("MaximumFractionalValue") or 255) if kind == "FRACTIONAL" else 1
    frames: dict[int, list[tuple[Any, Turn]]] = {}
    seen = set()
    for header in frame_headers(path, tags):
        index, turn = _slice_of(header, grid)
        if (index, header.segment) in seen:
            raise DataError(f"{_frame(header)} is the second of its segment in one slice; export it again")
        seen.add((index, header.segment))
        if kind == "LABELMAP" or header.segment in chosen:
            frames.setdefault(index, []).append((header, turn))
        elif header.segment not in named:
            raise DataError(f"{_frame(header)} is of a segment that is not described; export it again")

    def pictures() -> Iterator[np.ndarray]:
        for index in range(grid.shape[0]):
            mask = np.zeros(grid.shape[1:], dtype=bool)
            for header, turn in frames.get(index, ()):
                stored = stored_pixels(header)
                marked = np.isin(stored, chosen) if kind == "LABELMAP" else stored > full * _HALF
                mask |= turn.show(marked)
            yield mask

    return pictures(), []


def _frame(header: Any) -> str:
    return f"frame {header.frame + 1}"


def _slice_of(header: Any, grid: _ScanGrid) -> tuple[int, Turn]:
    """The slice that a frame lies on, and how it is turned to be shown; refused unless pixel lies on pixel."""
    index = grid.nearest(float(header.position @ grid.axes[:, 2]))
    steps = header.orientation * np.array(header.pixel_mm)[:, None]
    ends = np.array([(0, 0), (header.columns - 1, 0), (0, header.rows - 1)])
    column, row, above = grid.places(header.position + ends @ steps, index).T
    across = np.linalg.solve(grid.axes, steps[0])
    swap = bool(abs(across[1]) > abs(across[0]))
    rows, columns = (header.columns, header.rows) if swap else (header.rows, header.columns)
    where = _frame(header)
    if (rows, columns) != grid.shape[1:]:
        raise DataError(
            f"{where} has {rows} x {columns} pixels, a slice of the scan {grid.shape[1]} x {grid.shape[2]}; "
            "write the mask on the grid of the scan"
        )
    if not np.abs(above).max() <= _OFF_SLICE * grid.distance_mm:
        raise DataError(
            f"{where} lies up to {np.abs(above).max():.3g} mm from the nearest slice of the scan, one every "
            f"{grid.distance_mm:.3g} mm; it is of another scan, or was resampled: write it on the slices of the scan"
        )
    sides = np.array([columns - 1, rows - 1])
    first, along = np.array([column[0], row[0]]), np.array([column[1:], row[1:]]).T - (column[0], row[0])
    flips = first > sides / 2
    expected = np.where(flips, sides, 0)
    turned = np.where(flips, -1.0, 1.0) * np.eye(2)[:: -1 if swap else 1] * sides
    off = max(np.abs(first - expected).max(), np.abs(along - turned).max())
    if not off <= _OFF_PIXEL:
        raise DataError(
            f"{where} lies {off:.3g} pixels beside the slice of the scan; it is of another scan, or was resampled: "
            "write the mask on the grid of the scan"
        )
    return index, Turn(np.eye(4), swap, flip_rows=bool(flips[1]), flip_columns=bool(flips[0]), flip_slices=False)


def _structure_set(
    path: Path, grid: _ScanGrid, positive: Collection[Any] | None
) -> tuple[Iterator[np.ndarray], list[str]]:
    if path.stat().st_size > _LARGEST_DRAWING:
        raise DataError(f"the file is larger than {_LARGEST_DRAWING >> 20} MB, too large for contours")
    tags = read_tags(path, _RTSTRUCT)
    regions = {int(roi.ROINumber): roi for roi in tags.get("StructureSetROISequence") or ()}
    chosen = _chosen({n: str(roi.get("ROIName", "")) for n, roi in regions.items()}, positive, "region")
    common = [str(item.get("FrameOfReferenceUID", "")) for item in tags.get("ReferencedFrameOfReferenceSequence") or ()]
    drawn: dict[int, dict[int, list[_Contour]]] = {}
    open_ones = small = crossings = 0
    for drawing in tags.get("ROIContourSequence") or ():
        number = int(drawing.ReferencedROINumber)
        if number not in chosen:
            continue
        own = str(regions[number].get("ReferencedFrameOfReferenceUID", ""))
        grid.refuse_other((), [own] if own else common)
        for place, contour in enumerate(drawing.get("ContourSequence") or (), 1):
            points = _points(contour, f"contour {place} of region {number}")
            if str(contour.get("ContourGeometricType", "")) not in _CLOSED:
                open_ones += 1
            elif len(points) < 3:
                small += 1
            else:
                found = _placed(points, grid, f"contour {place} of region {number}")
                crossings += int(np.abs(np.diff(found.corners[:, 1])).clip(max=grid.shape[1]).sum())
                if crossings > _MOST_CROSSINGS:
                    raise DataError(f"its contours cross the rows of the slices {_TOO_OFTEN}")
                drawn.setdefault(found.slice, {}).setdefault(number, []).append(found)
    pixels = {index: _drawn_on(regions_of, grid.shape[1:]) for index, regions_of in drawn.items()}
    small += sum(count for _, count in pixels.values())
    counts = (
        (open_ones, "are points or open lines and were passed over"),
        (small, "enclose no middle of a pixel and count for nothing"),
    )
    nothing = np.zeros(grid.shape[1:], dtype=bool)
    notes = [f"{count} contour(s) {what}" for count, what in counts if count]
    return (np.unpackbits(pixels[i][0], axis=1, count=grid.shape[2]).astype(bool) if i in pixels else nothing
            for i in range(grid.shape[0])), notes  # fmt: skip


@dataclass(frozen=True)
class _Contour:
    """A closed contour in columns and rows of a slice, and how far above the slice it was drawn."""

    slice: int
    corners: np.ndarray
    above_mm: float


def _points(contour: Any, what: str) -> np.ndarray:
    """(n, 3) points in the patient, from the text itself: making a number of each by pydicom takes minutes."""
    value = contour.get_item("ContourData").value if "ContourData" in contour else None
    if not value:
        return np.zeros((0, 3))
    numbers = value.split(b"\\") if isinstance(value, bytes) else value
    if len(numbers) > 3 * _MOST_POINTS:
        raise DataError(f"{what} has {len(numbers) // 3:,} points, at most {_MOST_POINTS:,}; draw it again")
    if isinstance(value, bytes) and max(map(len, numbers)) > _LONGEST_NUMBER:
        raise DataError(f"{what} holds what is no number; export it again")
    points = np.array(numbers, dtype=np.float64)
    stated = contour.get("NumberOfContourPoints")
    if len(points) % 3 or (stated is not None and int(stated) * 3 != len(points)):
        raise DataError(f"{what} has {len(points):,} numbers, which is not three for each point; export it again")
    if not (np.abs(points) <= _FARTHEST_MM).all():
        raise DataError(f"{what} has a point that is no number, or lies far from any patient; export it again")
    return points.reshape(-1, 3)


def _placed(points: np.ndarray, grid: _ScanGrid, what: str) -> _Contour:
    """The contour on the slice nearest to it, which must lie within half the distance of slices."""
    index = grid.nearest(float(np.median(points @ grid.axes[:, 2])))
    places = grid.places(points, index)
    off = float(np.abs(places[:, 2]).max())
    if not off <= grid.distance_mm / 2 + _SAME_PLANE_MM:
        raise DataError(
            f"{what} lies up to {off:.3g} mm from the nearest slice of the scan, one every "
            f"{grid.distance_mm:.3g} mm, or is not parallel to it; draw it on the slices of this scan"
        )
    # Rounding must not decide about the middle of a pixel that a line goes through.
    return _Contour(index, np.round(places[:, :2], 6), float(places[:, 2].mean()))


def _drawn_on(regions: dict[int, list[_Contour]], size: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The pixels of a slice, eight to a byte, and how many contours enclose none.

    Contours of a region in one plane leave holes in each other (even-odd); regions, and planes that share a slice, are
    joined.
    """
    joined, empty = np.zeros(size, dtype=bool), 0
    for contours in regions.values():
        contours = sorted(contours, key=lambda contour: contour.above_mm)
        steps = np.flatnonzero(np.diff([contour.above_mm for contour in contours]) > _SAME_PLANE_MM) + 1
        for plane in np.split(np.arange(len(contours)), steps):
            mask, without = _filled([contours[i].corners for i in plane], size)
            joined |= mask
            empty += without
    return np.packbits(joined, axis=1), empty


def _filled(rings: Sequence[np.ndarray], size: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Pixels whose middle lies inside an odd number of rings, and how many rings enclose none.

    Of middles on a line, those at the left and the upper side of a ring lie inside.
    """
    rows, columns = size
    start = np.concatenate(rings)
    end = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings])
    ring = np.repeat(np.arange(len(rings)), [len(corners) for corners in rings])
    # A side crosses the rows from its upper end on, up to but not at its lower end.
    upper, lower = np.minimum(start[:, 1], end[:, 1]), np.maximum(start[:, 1], end[:, 1])
    first, last = (np.clip(np.ceil(edge), 0, rows).astype(np.int64) for edge in (upper, lower))
    count = last - first
    if count.sum() > _MOST_ON_A_SLICE:
        raise DataError(f"contours cross the rows of a slice {_TOO_OFTEN}")
    side = np.repeat(np.arange(len(start)), count)
    row = np.arange(len(side)) - np.repeat(np.cumsum(count) - count, count) + first[side]
    (x, y), (u, v) = start[side].T, end[side].T
    at = np.round(x + (row - y) / (v - y) * (u - x), 6)
    column = np.clip(np.ceil(at), 0, columns).astype(np.int64)
    turns = np.zeros((rows, columns + 1), dtype=np.int64)
    np.add.at(turns, (row, column), 1)
    within = column < columns
    place, times = np.unique(np.ravel_multi_index((ring[side], row, column), (len(rings), rows, columns + 1))[within],
                             return_counts=True)  # fmt: skip
    enclosing = np.unique(place[times % 2 == 1] // (rows * (columns + 1)))
    return np.cumsum(turns, axis=1)[:, :columns] % 2 == 1, len(rings) - len(enclosing)
