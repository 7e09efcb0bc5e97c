"""Plain images (PNG, JPEG, TIFF …) as slides of one level, decoded as a whole on the first read."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.images.slide import Slide
from smmil.images.spacing import settle_mpp

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".ppm")
# The whole image is held in memory; this many pixels are half a gigabyte.
MAX_PIXELS = 178_956_970
_EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_ORIENTATION_TAG = 274


class PlainSlide(Slide):
    """An image without pyramid. Its resolution tags are not believed (72 dpi is no microscope): mpp must be given."""

    reader = "pillow"

    def __init__(self, path: str | Path, mpp: float | None = None):
        self.path = Path(path)
        with _opened(self.path) as image:
            self.size = image.size
            self.notes = _notes(image)
        self.mpp, notes = settle_mpp((None, None), mpp)
        self.notes += notes
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that are allowed here, and of odd but harmless tags
            image = Image.open(path)
    except Exception as problem:  # noqa: BLE001 (Pillow raises many kinds on damaged files)
        raise _unreadable(path, problem) from None
    if image.width * image.height > MAX_PIXELS:
        raise DataError(
            f"{path}: {image.width} × {image.height} pixels in one plain image, at most {MAX_PIXELS} are decoded; "
            "convert it to a tiled pyramid"
        )
    if image.mode not in _EIGHT_BIT:
        raise DataError(f"{path}: pixels of type {image.mode!r}, expected 8 bits per colour; convert the image")
    return image


def _decode(path: Path) -> np.ndarray:
    from PIL import Image

    with _opened(path) as image:
        try:
            layered = image.convert("RGBA") if image.has_transparency_data else image.convert("RGB")
        except Exception as problem:  # noqa: BLE001 (Pillow raises many kinds on damaged files)
            raise _unreadable(path, problem) from None
    if layered.mode == "RGBA":
        layered = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return np.asarray(layered)


def _unreadable(path: Path, problem: Exception) -> DataError:
    return DataError(f"{path}: not readable as an image ({type(problem).__name__}: {problem}); copy or export it again")


def _notes(image: Any) -> tuple[str, ...]:
    notes = []
    try:
        frames, orientation = getattr(image, "n_frames", 1), image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception as problem:  # noqa: BLE001 (Pillow raises many kinds on damaged files)
        raise _unreadable(Path(image.filename), problem) from None
    if frames > 1:
        notes.append(f"the file holds {frames} images; only the first is read")
    if orientation not in (0, 1):
        notes.append("the file asks viewers to turn the image; coordinates count in the pixels as stored")
    return tuple(notes)
