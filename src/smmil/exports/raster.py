"""Heat maps of slides as tiled float TIFF, and of CT scans as NIfTI."""

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, MissingExtra
from smmil.exports.case import ExportCase
from smmil.exports.geometry import SlideFacts, boxes, extent, paint, reduced_shape, reduction, scan_heat, slide_facts
from smmil.files import replacing
from smmil.images.volume import Volume
from smmil.redact import RESEARCH, plain

TILE = 512
_LOWEST, _HIGHEST, _NO_DATA = 340, 341, 42113  # SMinSampleValue and SMaxSampleValue, which ASAP reads; GDAL_NODATA


def write_tiff(case: ExportCase, path: Path) -> None:
    """The whole slide, bounds not cut off, one map pixel per 2^k level-0 pixels; nan where there is no instance.

    ASAP lays a map over a slide whose sides are a power of two larger. See `painting.reduction` for the choice of k.
    Smaller levels follow, halved until they fit into one tile.
    """
    try:
        import tifffile
    except ModuleNotFoundError:
        raise MissingExtra("tifffile", "slides", "writing TIFF") from None
    case.need_slide("a TIFF map")
    facts = slide_facts(case)
    rectangles = boxes(case, facts)
    size = extent(rectangles, facts.size)
    if facts.size is None:
        case.notes.append("the size of the slide is not known: the map ends with the last tile")
    r, exact = reduction(rectangles, size)
    if not exact:
        case.notes.append(f"tile edges were rounded to map pixels of {r} level-0 pixels")
    heat = paint(rectangles / r, case.score, reduced_shape(size, r))
    about = _about(case, facts, size, r, exact)
    with replacing(path) as temporary, tifffile.TiffWriter(temporary) as file:
        for depth, level in enumerate(_levels(heat)):
            tags = _tags(case, facts, r * 2**depth)
            file.write(level, description=about if depth == 0 else None, subfiletype=1 if depth else 0, **tags)


def _levels(heat: np.ndarray) -> list[np.ndarray]:
    levels = [heat]
    while max(levels[-1].shape) > TILE:
        levels.append(_halved(levels[-1]))
    return levels


def _halved(heat: np.ndarray) -> np.ndarray:
    """The mean over 2 × 2 pixels, as far as they are painted."""
    rows, columns = heat.shape
    even = np.pad(heat, ((0, rows % 2), (0, columns % 2)), constant_values=np.nan)
    fours = even.reshape(len(even) // 2, 2, -1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # four pixels without tissue have no mean: nan
        return np.asarray(np.nanmean(fours, axis=(1, 3), dtype=np.float64), np.float32)


def _tags(case: ExportCase, facts: SlideFacts, r: int) -> dict[str, Any]:
    lowest, highest = float(case.score.min()), float(case.score.max())
    tags: dict[str, Any] = {
        "tile": (TILE, TILE),
        "compression": "lzw",
        "photometric": "minisblack",
        "metadata": None,
        "software": case.facts["software"],
        "extratags": [
            (_LOWEST, "f", 1, lowest, True),
            (_HIGHEST, "f", 1, highest, True),
            (_NO_DATA, "s", 0, "nan", True),
        ],
    }
    if facts.mpp is not None:
        per_cm = 1e4 / (facts.mpp * r)
        tags |= {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}
    return tags


def _about(case: ExportCase, facts: SlideFacts, size: tuple[int, int], r: int, exact: bool) -> str:
    """JSON in ASCII: a description tag takes nothing else."""
    return json.dumps(
        {
            **case.facts,
            "values": "score",
            "level0_size": list(size),
            "level0_pixels_per_pixel": r,
            "exact_edges": exact,
            "bounds": None if facts.bounds is None else list(facts.bounds),
            "um_per_level0_pixel": facts.mpp,
        }
    )


_COMMENT = 6
_DESCRIPTION = 80


def write_nifti(case: ExportCase, path: Path) -> None:
    """float32 in the geometry of the scan, nan where no instance lies; the same case gives the same bytes.

    Over a NIfTI file the map has its very shape and affine; over a DICOM series, those of `open_volume`.
    """
    try:
        import nibabel
    except ModuleNotFoundError:
        raise MissingExtra("nibabel", "ct", "writing NIfTI") from None
    if case.axes == 2:
        raise ConfigError(f"{case.id}: nifti is for scans, but this case is a slide; choose tiff, geojson or dicom-pm")
    volume = case.volume("nifti")
    image = nibabel.Nifti1Image(scan_heat(case, volume).transpose(2, 1, 0), volume.affine)
    image = _as_stored(image, volume, case.image)
    _describe(image.header, case)
    data = image.to_bytes()
    with replacing(path) as temporary:
        # Packed here: the usual writer would put the name of the temporary file and the time into the bytes.
        temporary.write_bytes(gzip.compress(data, mtime=0) if path.name.lower().endswith(".gz") else data)


def _as_stored(image: Any, volume: Volume, source: Path | None) -> Any:
    """Turned back to the axes of the NIfTI file that was given, so that both lie in memory alike."""
    import nibabel
    from nibabel import orientations

    if source is None or not source.name.lower().endswith((".nii", ".nii.gz")):
        return image
    stored: Any = nibabel.load(source)
    change = orientations.ornt_transform(
        orientations.io_orientation(volume.affine), orientations.io_orientation(stored.affine)
    )
    return image.as_reoriented(change)


def _describe(header: Any, case: ExportCase) -> None:
    from nibabel.nifti1 import Nifti1Extension

    short = plain(f"{case.facts['software']} {case.facts.get('model', '')}", _DESCRIPTION - len(RESEARCH) - 4)
    header["descrip"] = f"{short}; {RESEARCH}".encode("ascii", "replace")[:_DESCRIPTION]
    header.set_xyzt_units("mm")
    header["cal_min"], header["cal_max"] = np.float32(case.score.min()), np.float32(case.score.max())
    for code in ("qform_code", "sform_code"):
        header[code] = 1  # scanner coordinates
    header.extensions.append(Nifti1Extension(_COMMENT, json.dumps(case.facts).encode()))
