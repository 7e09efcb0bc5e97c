"""Slides as folders of DICOM files: finds the file from which OpenSlide reads the whole pyramid.

OpenSlide's DICOM driver gives the same pixels as wsidicom (a test compares them), so slides need one decoder only.
"""

from pathlib import Path

from smmil.errors import DataError, MissingExtra

_WSI_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
_ASKED = ["SOPClassUID", "SeriesInstanceUID", "ImageType", "TotalPixelMatrixColumns"]


def is_dicom(path: Path) -> bool:
    """Whether a file carries DICOM's mark (after a preamble of 128 bytes)."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def largest_level(folder: Path) -> Path:
    """The file of level 0 in a folder that holds one DICOM slide; label and overview images are passed over."""
    files = [path for path in sorted(folder.iterdir()) if is_dicom(path)]
    levels = [(*level, path) for path in files if (level := _level(path)) is not None]
    if not levels:
        raise DataError(f"{folder}: no DICOM slide in this folder; give the folder with the .dcm files of one slide")
    series = {series for series, _, _ in levels}
    if len(series) > 1:
        raise DataError(f"{folder}: holds {len(series)} DICOM series, expected the levels of one slide; divide them")
    return max(levels, key=lambda level: level[1])[2]


def _level(path: Path) -> tuple[str, int] | None:
    """Series and width of a level of a slide; None for anything else (label, overview, CT …)."""
    try:
        import pydicom
    except ModuleNotFoundError:
        raise MissingExtra("pydicom", "slides", "reading DICOM slides") from None
    try:
        header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=_ASKED)
        if header.get("SOPClassUID") != _WSI_CLASS or "VOLUME" not in (header.get("ImageType") or ()):
            return None
        return str(header.SeriesInstanceUID), int(header.TotalPixelMatrixColumns)
    except Exception as problem:  # noqa: BLE001 (pydicom raises seven kinds on damaged files)
        raise DataError(f"{path}: not readable as DICOM ({type(problem).__name__}: {problem}); copy it again") from None
