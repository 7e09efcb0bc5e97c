"""Opening any slide: which library reads which file."""

from pathlib import Path

from smmil.errors import DataError, check_choice
from smmil.images.dicom_slide import largest_level
from smmil.images.openslide_slide import OpenSlideSlide, library
from smmil.images.plain import SUFFIXES, PlainSlide
from smmil.images.slide import Slide

READERS = ("openslide", "tifffile", "pillow")
# Suffixes that never are slides with levels: no need to ask OpenSlide, or even to have it.
_NEVER_PYRAMIDS = tuple(suffix for suffix in SUFFIXES if suffix not in (".tif", ".tiff"))
_SUPPORTED = (
    "OpenSlide's formats (svs, ndpi, mrxs, scn, bif, vms, vmu, svslide, czi, tif, tiff), "
    f"DICOM slides (a .dcm file or its folder), and plain images ({', '.join(SUFFIXES)})"
)


def open_slide(path: str | Path, mpp: float | None = None, reader: str | None = None) -> Slide:
    """Open a slide file or a DICOM folder for reading.

    mpp     micrometres per level-0 pixel when the file does not say, or says it wrongly
    reader  one of READERS; None: OpenSlide for all it knows, Pillow for plain images
    """
    path = Path(path)
    if reader is not None:
        check_choice(reader, READERS, "reader")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if reader == "pillow" or (reader is None and path.suffix.lower() in _NEVER_PYRAMIDS):
        return PlainSlide(path, mpp)
    return _open_scan(path, mpp, reader)


def _open_scan(path: Path, mpp: float | None, reader: str | None) -> Slide:
    file = largest_level(path) if path.is_dir() else path
    openslide = library()
    try:
        known = openslide.OpenSlide.detect_format(file)
    except (openslide.OpenSlideError, OSError, ValueError) as problem:
        raise DataError(f"{path}: cannot be read ({problem}); copy the slide again") from None
    if known is not None:
        slide = OpenSlideSlide(file, mpp, reader or "openslide")
        slide.path = path
        return slide
    if reader is None and path.suffix.lower() in SUFFIXES:
        return PlainSlide(path, mpp)
    raise DataError(f"{path}: not a slide that can be read, or damaged; supported are {_SUPPORTED}")
