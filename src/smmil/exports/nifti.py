"""A heat map of a CT scan as NIfTI, voxel for voxel over the scan: for 3D Slicer, ITK-SNAP and nibabel."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, MissingExtra
from smmil.exports.case import Case
from smmil.exports.provenance import RESEARCH, plain
from smmil.exports.scan import scan_heat
from smmil.files import replacing
from smmil.images.volume import Volume

_COMMENT = 6
_DESCRIPTION = 80


def write_nifti(case: Case, path: Path) -> None:
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


def _describe(header: Any, case: Case) -> None:
    from nibabel.nifti1 import Nifti1Extension

    short = plain(f"{case.facts['software']} {case.facts.get('model', '')}", _DESCRIPTION - len(RESEARCH) - 4)
    header["descrip"] = f"{short}; {RESEARCH}".encode("ascii", "replace")[:_DESCRIPTION]
    header.set_xyzt_units("mm")
    header["cal_min"], header["cal_max"] = np.float32(case.score.min()), np.float32(case.score.max())
    for code in ("qform_code", "sform_code"):
        header[code] = 1  # scanner coordinates
    header.extensions.append(Nifti1Extension(_COMMENT, json.dumps(case.facts).encode()))
