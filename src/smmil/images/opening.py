"""Opening any slide: which library reads which file, checksums of plain images, DICOM folders.

OpenSlide's DICOM driver gives the same pixels as wsidicom (a test compares them), so slides need one decoder only.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra, check_choice
from smmil.files import check_once, need_file
from smmil.images.dicom_file import _check_frame_table, is_dicom
from smmil.images.openslide_slide import OpenSlideSlide, _library, _over_white
from smmil.images.slide import Slide, choose_mpp
from smmil.images.tiff_slide import _image_errors, check_picture

_WSI_CLASS = "1.2.840.10008.5.1.4.1.1.77.1.6"
_ASKED = ["SOPClassUID", "SeriesInstanceUID", "ImageType", "TotalPixelMatrixColumns"]


def largest_level(folder: Path) -> Path:
    """The file of level 0 in a folder that holds one DICOM slide; label and overview images are passed over."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    for path in files:
        if path.suffix.lower() == ".dcm" and not is_dicom(path):
            raise DataError(f"{path}: not a DICOM file (the mark DICM is missing); copy it again or move it out")
    files = [path for path in files if is_dicom(path)]
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


SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".ppm")
# The whole image is held in memory; this many pixels are half a gigabyte.
MAX_PIXELS = 178_956_970
_EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_ORIENTATION_TAG = 274


class _PlainSlide(Slide):
    """An image without pyramid. Its resolution tags are ignored (often a default such as 72 dpi): mpp must be given."""

    reader = "pillow"

    def __init__(self, path: str | Path, mpp: float | None = None):
        self.path = Path(path)
        with _opened(self.path) as image:
            self.size, self.notes = image.size, _notes(image)
        self.mpp, _ = choose_mpp((None, None), mpp)
        self.downsamples, self.level_sizes = (1.0,), (self.size,)
        self.bounds = (0, 0, *self.size)
        self._decoded: np.ndarray | None = None
        self._closed = False

    def _pixels(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        if self._closed:
            raise ValueError(f"{self.path}: read after close")
        if self._decoded is None:
            self._decoded = _decode(self.path)
        return self._decoded[top : top + height, left : left + width]

    def close(self) -> None:
        self._decoded, self._closed = None, True


def _opened(path: Path) -> Any:
    """The image with its header read and its size checked; nothing is decoded yet."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingExtra("Pillow", "slides", "reading images") from None
    with _image_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are allowed here, and of odd but harmless tags
        image = Image.open(need_file(path))
        check_picture(path, image.format, image)
    if image.width * image.height > MAX_PIXELS:
        raise DataError(
            f"{path}: {image.width} × {image.height} pixels in one plain image, at most {MAX_PIXELS} are decoded; "
            "convert it to a tiled pyramid"
        )
    if image.mode not in _EIGHT_BIT:
        raise DataError(f"{path}: pixels of type {image.mode!r}, expected 8 bits per colour; convert the image")
    return image


def _decode(path: Path) -> np.ndarray:
    with _opened(path) as image, _image_errors(path):
        layered = image.convert("RGBA" if image.has_transparency_data else "RGB")
        return _over_white(layered) if layered.mode == "RGBA" else np.asarray(layered)


def _notes(image: Any) -> tuple[str, ...]:
    notes = []
    with _image_errors(Path(image.filename)):
        frames, orientation = getattr(image, "n_frames", 1), image.getexif().get(_ORIENTATION_TAG, 1)
    if frames > 1:
        notes.append(f"the file holds {frames} images; only the first is read")
    if orientation not in (0, 1):
        notes.append("the file asks viewers to turn the image; coordinates count in the pixels as stored")
    return tuple(notes)


READERS = ("openslide", "tifffile", "pillow")
# Suffixes that never are slides with levels: no need to ask OpenSlide, or even to have it.
_NEVER_PYRAMIDS = tuple(suffix for suffix in SUFFIXES if suffix not in (".tif", ".tiff"))
_SUPPORTED = (
    "OpenSlide's formats (svs, ndpi, mrxs, scn, bif, vms, vmu, svslide, czi, qptiff, tif, tiff), "
    f"DICOM slides (a .dcm file or its folder), plain images ({', '.join(SUFFIXES)}), "
    "and tables of patches (.patches.csv)"
)


def is_mosaic(path: Path) -> bool:
    """Whether a path names a table of patches that are put together to a slide, by its ending."""
    return path.name.lower().endswith(".patches.csv")


def _companions(file: Path) -> list[Path]:
    """What OpenSlide opens by itself: the files beside a DICOM or Hamamatsu slide, those below one of 3DHISTECH."""
    together = file.suffix.lower() in (".vms", ".vmu") or is_dicom(file)
    folder = file.parent if together else file.with_suffix("")
    return [path for path in folder.iterdir() if path.exists()] if folder.is_dir() else []


def open_slide(path: str | Path, mpp: float | None = None, reader: str | None = None) -> Slide:
    """Open a slide file or a DICOM folder for reading.

    mpp     micrometres per level-0 pixel when the file does not say, or says it wrongly
    reader  one of READERS; None: OpenSlide for all it knows, Pillow for plain images
    """
    path = Path(path)
    check_choice(reader or "openslide", READERS, "reader")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    need_file(path)
    if is_mosaic(path):
        from smmil.images.mosaic import MosaicSlide

        return MosaicSlide(path, mpp)
    if reader == "pillow" or (reader is None and path.suffix.lower() in _NEVER_PYRAMIDS):
        return _PlainSlide(path, mpp)
    file, openslide = largest_level(path) if path.is_dir() else path, _library()
    for companion in _companions(file):
        if is_dicom(need_file(companion)):
            check_once(companion, _check_frame_table)
    try:
        known = openslide.OpenSlide.detect_format(file)
    except (openslide.OpenSlideError, OSError, ValueError) as problem:
        raise DataError(f"{path}: cannot be read ({problem}); copy the slide again") from None
    if known is not None:
        slide = OpenSlideSlide(file, mpp, reader or "openslide")
        slide.path = path
        return slide
    if reader is None and path.suffix.lower() in SUFFIXES:
        return _PlainSlide(path, mpp)
    raise DataError(f"{path}: not a slide that can be read, or damaged; supported are {_SUPPORTED}")
