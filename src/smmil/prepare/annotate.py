"""Annotations to instance labels: what share of every instance an expert marked, kept in a file next to the bag."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smmil.annotations.dicom_masks import DICOM_MASKS, dicom_mask_kind, read_dicom_mask
from smmil.annotations.labels import ANY, annotation_errors, labels_in_order, read_slice_labels
from smmil.annotations.masks import PANDA, SUFFIXES, open_mask, pixel_share, polygon_share
from smmil.annotations.polygons import is_boxes, read_asap, read_boxes, read_geojson, read_table
from smmil.bag import Bag
from smmil.data.tables import read_instance_labels
from smmil.errors import ConfigError, DataError, check_choice
from smmil.files import digest, need_file, replacing
from smmil.images.dicom_file import is_dicom
from smmil.images.volume import Volume, open_volume

SHAPES = {"asap": read_asap, "geojson": read_geojson, "boxes": read_boxes}
KINDS = ("auto", *SHAPES, "label-image", *PANDA, "volume", "rsna", *DICOM_MASKS)
_Bounds = tuple[float, ...]
_DIGITS = 8  # of a share: rounding must not tip the scales at exactly one half
_PADDING = 0.02  # share by which a mask may differ from its slide: tiles that were filled up, rounding


@dataclass(frozen=True, eq=False)
class InstanceLabels:
    """One label per instance, and where they come from.

    labels  int8: 1 annotated, 0 not, -1 unknown        share  annotated share of the instance's area, 0 to 1
    about   kind, coverage, checksums of annotation and coordinates, notes
    """

    labels: np.ndarray
    share: np.ndarray
    about: dict[str, Any] = field(default_factory=dict)


def annotate_case(
    bag: Bag,
    annotation: str | Path,
    *,
    kind: str = "auto",
    coverage: float = 0.5,
    mpp: float | None = None,
    bounds: _Bounds | None = None,
    positive: Collection[Any] | None = None,
    slices: Sequence[str] | None = None,
    complete: bool = True,
    size: tuple[float | None, float | None] = (None, None),
    scan: Volume | None = None,
) -> InstanceLabels:
    """Label every instance of a bag by an annotation file: positive when more than `coverage` of it is annotated.

    kind      one of KINDS; auto: by the name of the file, and for .csv by its columns
    coverage  for patches, of slides and of scans; a CT slice is positive as soon as one voxel of it is annotated
    mpp       micrometres per pixel of the annotation, when it is not drawn in level-0 pixels
    bounds    x, y, width, height of the scanned area: where coordinates of GeoJSON count from (QuPath), and those of a
              label image of exactly that size
    positive  classes or codes that are lesions, where the file has others as well; of RSNA the subtypes; of DICOM
              masks numbers or names; of masks also ["any"]: every code but 0, as in masks that number their lesions
    slices    SOPInstanceUID of every instance, for labels given per slice (`Volume.sop_uids`)
    complete  False: not all lesions were marked, so what is not positive is unknown
    size      width and height of the slide in level-0 pixels: a label image of another size is refused
    scan      the scan of a label volume: one that lies elsewhere along the body, or has other sizes, is refused;
              DICOM masks need it, since they lie in the patient

    What is doubtful but not refused stands in about["warnings"].
    """
    path = Path(annotation)
    more: dict[str, Any] = {}
    if not 0 <= coverage < 1:
        raise ConfigError(f"coverage must be at least 0 and less than 1, got {coverage}")
    kind = _kind(path) if check_choice(kind, KINDS, "kind of annotation") == "auto" else kind
    boxes = bag.coords is not None and bag.coords.shape[1] == 3
    of_scan = ("volume", *DICOM_MASKS)
    if boxes and kind not in of_scan:
        raise DataError(
            f"{path}: {kind} says nothing about patches of a scan, which {bag.id} has; give a label volume (NIfTI) or "
            "a DICOM mask, or prepare whole slices"
        )
    if kind in ("rsna", *of_scan):
        rule = {"rule": "any annotation in the slice", "coverage": 0.0}
        if boxes:
            rule = {"rule": "more than coverage of the patch", "coverage": coverage}
        share, more = _of_scan(bag, path, kind, positive, slices, scan)
    else:
        rule = {"rule": "more than coverage of the area", "coverage": coverage}
        share, more = _of_patches(bag, path, kind, mpp, bounds, positive, size)
    labels = np.where(share > rule["coverage"], 1, 0 if complete else -1).astype(np.int8)
    chosen = {} if positive is None else {"positive": sorted(map(str, positive))}
    with annotation_errors(path, "an annotation"):
        origin = {
            "annotation": path.name,
            "digest": digest(need_file(path).read_bytes()),
            "coords": _coords_digest(bag),
        }
    about = {**origin, "kind": kind, "complete": complete, **rule, **more, **chosen}
    return InstanceLabels(labels, share, about)


def negative_case(bag: Bag) -> InstanceLabels:
    """Labels of a case that holds no lesion at all, such as a slide of the class normal: 0 everywhere."""
    about = {"kind": "negative case", "coords": _coords_digest(bag)}
    return InstanceLabels(np.zeros(bag.n, np.int8), np.zeros(bag.n), about)


def write_labels(path: str | Path, labels: InstanceLabels) -> None:
    """Write the sidecar that the column instance_labels of a manifest names, atomically.

    A .csv file with one row per instance: label, share, and about (JSON, in the first row only).
    """
    if Path(path).suffix.lower() != ".csv":
        raise ConfigError(f"{path}: instance labels with their shares are written as .csv")
    about = [""] * len(labels.labels)
    about[0] = json.dumps(labels.about, sort_keys=True, ensure_ascii=False)
    table = pd.DataFrame({"label": labels.labels, "share": labels.share, "about": about})
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")


def read_labels(path: str | Path) -> InstanceLabels:
    """What `write_labels` wrote."""
    path = Path(path)
    labels = read_instance_labels(path)
    with annotation_errors(path, "instance labels"):
        table = pd.read_csv(path, keep_default_na=False)
        share = table["share"].to_numpy(np.float64)
        about = json.loads(table["about"].iloc[0])
    if not isinstance(about, dict) or not ((share >= 0) & (share <= 1)).all():
        raise DataError(f"{path}: the columns share and about make no sense; write the labels again")
    return InstanceLabels(labels.astype(np.int8), share, about)


def _kind(path: Path) -> str:
    name = path.name.lower()
    if name.endswith((".nii", ".nii.gz")):
        return "volume"
    if name.endswith(("_mask.tif", "_mask.tiff")):
        raise DataError(
            f"{path}: named like a mask of PANDA, whose codes differ between its two providers; "
            f"give the kind: {', '.join(PANDA)}, or label-image for any other mask"
        )
    known = {".xml": "asap", ".geojson": "geojson", ".json": "geojson", **dict.fromkeys(SUFFIXES, "label-image")}
    if path.suffix.lower() in known:
        return known[path.suffix.lower()]
    if path.suffix.lower() != ".csv" and is_dicom(path):
        if (found := dicom_mask_kind(path)) is None:
            raise DataError(f"{path}: is a DICOM file, but no mask; expected SEG or RTSTRUCT")
        return found
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path}: cannot tell what kind of annotation this is; choose from: {', '.join(KINDS[1:])}")
    with annotation_errors(path, "a table"):
        columns = set(read_table(path).columns)
    if {"id", "label"} <= columns:
        return "rsna"
    if is_boxes(columns):
        return "boxes"
    raise DataError(f"{path}: neither ID,Label of slices nor x,y,width,height of boxes; rename the columns")


def _of_patches(
    bag: Bag,
    path: Path,
    kind: str,
    mpp: float | None,
    bounds: _Bounds | None,
    positive: Collection[Any] | None,
    size: tuple[float | None, float | None],
) -> tuple[np.ndarray, dict[str, Any]]:
    scale = _scale(bag, mpp)
    if kind in SHAPES:
        shapes = SHAPES[kind](path, positive)
        offset = tuple(bounds[:2]) if kind == "geojson" and bounds is not None else (0, 0)
        share = polygon_share(_boxes(bag, scale, offset), shapes.area)
        return share, {"scale": scale, "offset": list(offset), "notes": list(shapes.notes)}
    image = open_mask(path, kind, _codes(positive))
    more: dict[str, Any] = {}
    offset, extent = (0.0, 0.0), (image.width * scale, image.height * scale)
    if bounds is not None and len(bounds) >= 4 and np.allclose(extent, bounds[2:4], rtol=0, atol=1):
        offset = float(bounds[0]), float(bounds[1])  # the mask has exactly the size of the scanned area
    else:
        more |= _check_mask_size(path, extent, size, scale)
    boxes = _boxes(bag, scale, offset)
    outside = np.flatnonzero((boxes[:, :2] >= (image.width, image.height)).any(1) | (boxes[:, 2:] <= 0).any(1))
    if len(outside):
        raise DataError(
            f"{path}: {len(outside):,} of {len(boxes):,} instances lie outside the {image.width} x {image.height} mask;"
            " if it is smaller than the slide, give its pixel size (mpp), else it belongs to another slide"
        )
    return pixel_share(boxes, image.lesions(boxes)), {"scale": scale, "offset": list(offset), **more}


def _check_mask_size(
    path: Path, extent: tuple[float, float], size: tuple[float | None, float | None], scale: float
) -> dict[str, Any]:
    """Refuse a mask that does not cover its slide, or covers more; up to 2 % (padding, rounding) is a warning."""
    width, height = size
    if not width or not height:
        return {}
    found = f"the mask covers {extent[0]:,.0f} x {extent[1]:,.0f} level-0 pixels of a slide of {width:,} x {height:,}"
    ratios = extent[0] / width, extent[1] / height
    if all(abs(got - want) <= max(1.0, scale) for got, want in zip(extent, (width, height), strict=True)):
        return {}
    if max(abs(ratio - 1) for ratio in ratios) <= _PADDING:
        return {"warnings": [f"{found}; both are taken to begin at the same corner"]}
    alike = abs(ratios[0] / ratios[1] - 1) <= _PADDING
    hint = "it was drawn at another resolution: give its pixel size (mpp)" if alike else "it belongs to another slide"
    raise DataError(f"{path}: {found}; {hint}, or write it with as many pixels as the slide")


def _scale(bag: Bag, mpp: float | None) -> float:
    """Level-0 pixels per pixel of the annotation."""
    if mpp is None:
        return 1.0
    if not 0 < mpp < float("inf"):
        raise ConfigError(f"mpp of the annotation must be positive, got {mpp}")
    if bag.frame is None or bag.frame.spacing is None or bag.frame.unit != "um":
        raise DataError(
            f"{bag.id}: the pixel size of the slide is not known, so mpp={mpp:g} of its annotation is no help"
        )
    return mpp / bag.frame.spacing[0]


def _boxes(bag: Bag, scale: float, offset: Sequence[float]) -> np.ndarray:
    """(n, 4) first and last corner of every instance in pixels of the annotation."""
    coords, frame = bag.coords, bag.frame
    if coords is None or frame is None or coords.ndim != 2 or min(coords.shape[1], len(frame.patch)) < 2:
        raise DataError(f"{bag.id}: areas need coordinates x, y and the size of a patch; this bag has no such frame")
    corner = coords[:, :2].numpy().astype(np.float64) - np.asarray(offset, dtype=np.float64)
    return np.hstack([corner, corner + frame.patch[:2]]) / scale


def _of_scan(
    bag: Bag,
    path: Path,
    kind: str,
    positive: Collection[Any] | None,
    slices: Sequence[str] | None,
    scan: Volume | None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Annotated share of every slice or patch: 0 or 1 from a table of labels per slice, else that of a label volume."""
    if kind == "rsna":
        if slices is None or len(slices) != bag.n:
            got = "none" if slices is None else f"{len(slices)}"
            raise DataError(f"{path}: labels per slice need the name of each of {bag.n} slices, got {got}")
        with annotation_errors(path, "labels of slices"):
            marked = labels_in_order(read_slice_labels(path), slices, positive or (ANY,))
        return marked.astype(np.float64), {}
    patches = bag.coords is not None and bag.coords.shape[1] == 3
    if kind in DICOM_MASKS:
        if scan is None or (not patches and len(scan) != bag.n):
            got = "none" if scan is None else f"one of {len(scan)}"
            raise DataError(
                f"{path}: lies in the patient and needs the scan of {bag.n} slices it was drawn on, got {got}"
            )
        masks, notes = read_dicom_mask(path, kind, scan, positive)
        return _shares(bag, path, masks, scan.shape), {"notes": notes}
    codes, volume = _codes(positive), open_volume(path)  # turned as the scan itself is
    if not patches and len(volume) != bag.n:
        raise DataError(f"{path}: {len(volume)} slices for a scan of {bag.n}; the label volume is of another scan")
    if scan is not None:
        _check_geometry(path, volume, scan)
    pages = [volume.slice_hu(index) for index in range(len(volume))]
    seen = np.unique(np.concatenate([np.unique(page) for page in pages]))
    if codes is None and len(seen[seen != 0]) > 1:
        listed = ", ".join(f"{code:g}" for code in seen[:10])
        raise DataError(
            f"{path}: holds the codes {listed}; say which are lesions (--positive 3), or that all are (--positive any)"
        )
    lesions = (page != 0 if not codes else np.isin(page, codes) for page in pages)
    return _shares(bag, path, lesions, volume.shape), {}


def _shares(bag: Bag, path: Path, lesions: Iterable[np.ndarray], shape: tuple[int, int, int]) -> np.ndarray:
    """Share of lesion in every slice, or in every patch, from a yes/no picture of each slice."""
    if bag.coords is None or bag.coords.shape[1] != 3:
        return np.array([lesion.mean() for lesion in lesions])
    boxes = _voxel_boxes(bag, path, shape)
    share, (first, last) = np.zeros(bag.n), (boxes[:, 2], boxes[:, 5])
    for z, lesion in enumerate(lesions):
        here = np.flatnonzero((first <= z) & (z < last))
        share[here] += pixel_share(boxes[here][:, [0, 1, 3, 4]], [(0, 0, lesion)])
    return np.round(share / (last - first), _DIGITS)


def _voxel_boxes(bag: Bag, path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """(n, 6) first and last corner of every patch of a scan in voxels; an error if the mask is too small."""
    if bag.coords is None or bag.frame is None or len(bag.frame.patch) != 3:
        raise DataError(f"{bag.id}: patches of a scan need a frame with the size of a patch along x, y and z")
    first = bag.coords.numpy().astype(np.float64)
    if first.min() < 0 or (first >= shape[::-1]).any():
        raise DataError(f"{path}: patches of {bag.id} lie outside; the label volume is of another scan")
    return np.hstack([first, first + bag.frame.patch])


def _check_geometry(path: Path, mask: Volume, scan: Volume) -> None:
    """Refuse a label volume whose grid or affine is not that of the scan: it is of another scan, or was moved."""
    if mask.shape != scan.shape:
        sizes = (" x ".join(map(str, volume.shape)) for volume in (mask, scan))
        raise DataError(f"{path}: {next(sizes)} voxels for a scan of {next(sizes)}; resample the mask to the scan")
    corners = np.array([(x, y, z, 1) for x in (0, 1) for y in (0, 1) for z in (0, 1)]).T
    corners[:3] *= (np.array(scan.shape[::-1]) - 1)[:, None]
    shift = ((mask.affine - scan.affine) @ corners)[:3]
    normal = np.cross(scan.affine[:3, 0], scan.affine[:3, 1])
    along = np.abs(normal / np.linalg.norm(normal) @ shift).max()
    if along > scan.distance_mm / 2:
        raise DataError(
            f"{path}: its slices lie up to {along:.3g} mm from those of the scan, {scan.distance_mm:.3g} mm apart; "
            "the affine is wrong or of another scan: write the mask with the affine of the scan"
        )
    within = float(np.linalg.norm(shift, axis=0).max())
    if scan.sized and within > min(scan.spacing_mm):
        raise DataError(
            f"{path}: lies up to {within:.3g} mm beside the scan, whose voxels are {min(scan.spacing_mm):.3g} mm wide; "
            "it is of another scan, or its affine is wrong: write the mask with the affine of the scan"
        )


def _codes(positive: Collection[Any] | None) -> list[int] | None:
    """What means lesion in a mask or label volume: whole numbers, also when they were typed; of `any` none, so all.

    Masks of instances number their lesions 1, 2, 3 …: any code but 0 is one.
    """
    if positive is not None and list(positive) == [ANY]:
        return []
    try:
        return None if positive is None else [int(code) for code in positive]
    except ValueError:
        given = ", ".join(map(str, positive or ()))
        raise ConfigError(f"--positive {given}: masks hold codes, not names; give numbers, or any") from None


def _coords_digest(bag: Bag) -> str:
    """Checksum of where the instances are: labels of another tiling do not fit even when their number does."""
    return digest(str(bag.n) if bag.coords is None else np.ascontiguousarray(bag.coords.numpy(), dtype="<f8").data)[:16]
