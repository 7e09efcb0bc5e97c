"""Exports of one case, written into a folder of their own, de-identified, and deleted once sent."""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from smmil.errors import ConfigError, DataError
from smmil.exports import FORMATS, export
from smmil.exports.case import ExportCase
from smmil.exports.geometry import boxes, slide_facts
from smmil.exports.originals import Original
from smmil.files import file_name
from smmil.prediction import Prediction
from smmil.redact import safe_text

_TABLES = ("csv", "parquet")
_OF_SLIDES = ("geojson", "csv", "parquet", "png", "tiff")
_OF_SCANS = ("csv", "parquet", "png", "nifti")
_OF_DICOM = ("dicom-seg", "dicom-pm")


class Download(NamedTuple):
    """A written file, the name to offer for it, and the folder to delete afterwards."""

    file: Path
    name: str
    folder: Path

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def possible_formats(kind: str, case: ExportCase) -> list[str]:
    """What a case of this kind can be written to; its image is only there when it can be read and is its own.

    Tables can always be written; maps need places in pixels, and what lies in a patient needs the image.
    """
    image = case.image
    dicom = _OF_DICOM if image is not None and (image.is_dir() or image.suffix.lower() == ".dcm") else ()
    if kind == "slide" and _has_pixels(case):
        return [*_OF_SLIDES, *dicom]
    if kind == "scan" and image is not None:
        return [*_OF_SCANS, *dicom]
    return list(_TABLES) if kind != "none" or case.prediction.coords is None else []


def _has_pixels(case: ExportCase) -> bool:
    """Whether the exports can tell where in the slide its instances lie."""
    try:
        boxes(case, slide_facts(case))
    except DataError:
        return False
    return True


def needs_threshold(format_: str) -> bool:
    return "threshold" in FORMATS[format_].needs


def write_download(
    prediction: Prediction,
    model: str,
    format_: str,
    *,
    scratch: Path,
    image: Original | None,
    threshold: float | None,
    column: int | None,
) -> Download:
    """The case in that format; a threshold is used where the format has a use for it."""
    if needs_threshold(format_) and threshold is None:
        raise ConfigError(f"{format_}: needs a threshold, a score above which an instance is positive; set one")
    # half a character, as broken file names have them, cannot be written into any file
    prediction = replace(prediction, id=prediction.id.encode("utf-8", "replace").decode())
    cut = threshold if "threshold" in FORMATS[format_].takes else None
    folder = Path(mkdtemp(dir=scratch))
    try:
        target = folder / f"export{FORMATS[format_].endings[0]}"
        export(prediction, format_, target, image=image, threshold=cut, column=column)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    name = file_name(safe_text(f"{prediction.id}_{model}", 120)) + FORMATS[format_].endings[0]
    return Download(target, name, folder)
