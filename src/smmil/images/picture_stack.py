"""A scan from a folder of pictures, one slice each, in the order of the numbers in their names."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.files import need_file
from smmil.images.dicom_file import LARGEST_SLICE
from smmil.images.tiff_slide import _image_errors, check_picture
from smmil.images.volume import Volume

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
_GREY = ("1", "L", "I;16", "I;16B", "I;16L", "I", "F")
_LAYERED = ("LA", "P", "PA", "RGB", "RGBA")


def is_stack(path: Path) -> bool:
    """Whether a path is a folder that holds pictures and nothing that could be DICOM."""
    if not path.is_dir():
        return False
    files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
    others = any(file.suffix.lower() in ("", ".dcm", ".dicom", ".ima", ".nii", ".gz") for file in files)
    return not others and any(file.suffix.lower() in _SUFFIXES for file in files)


@dataclass(frozen=True)
class _PictureSlices:
    """Reads slice by slice from the pictures."""

    files: tuple[Path, ...]
    shape: tuple[int, int]

    def __call__(self, index: int) -> np.ndarray:
        file = self.files[index]
        with _image_errors(file), _opened(file) as image:
            pixels = np.asarray(image.convert("RGBA") if image.mode in ("P", "PA") else image)
        if pixels.ndim == 3:
            if image.mode != "LA" and (pixels[..., :3] != pixels[..., :1]).any():
                raise DataError(f"{file}: the picture has colours, expected shades of grey; convert the slices")
            pixels = pixels[..., 0]
        if pixels.shape != self.shape:
            raise DataError(f"{file}: has changed since the folder was opened; open it again")
        values = pixels.astype(np.float32) * (255 if pixels.dtype == bool else 1)
        if not np.isfinite(values).all():
            raise DataError(f"{file}: holds values that are no numbers; write the picture again")
        return values


def _open_stack(folder: Path) -> Volume:
    """The volume of a folder of pictures: shades as stored, the lowest number first, distances unknown."""
    files = _ordered(folder)
    sizes = [_size(file) for file in files]
    for file, size in zip(files, sizes, strict=True):
        if size != sizes[0]:
            got, first = (f"{columns} x {rows}" for columns, rows in (size, sizes[0]))
            raise DataError(f"{file}: {got} pixels, but {files[0].name} has {first}; a scan has slices of one size")
    columns, rows = sizes[0]
    notes = ["pictures state no distances: every voxel counts as 1 mm, and the order of the numbers as foot to head"]
    if gaps := _gaps(files):
        notes.append(gaps)
    return Volume(
        name=folder.name,
        shape=(len(files), rows, columns),
        affine=np.diag([-1.0, -1.0, 1.0, 1.0]),
        positions_mm=np.arange(len(files), dtype=np.float64),
        distance_mm=1.0,
        source=_PictureSlices(files, (rows, columns)),
        notes=tuple(notes),
        values="shades",
        sized=False,
    )


def _ordered(folder: Path) -> tuple[Path, ...]:
    """The pictures by the last number in their names; names without one, or the same number twice, are refused."""
    files = [f for f in sorted(folder.iterdir()) if f.suffix.lower() in _SUFFIXES and not f.name.startswith(".")]
    if len(files) == 1:
        return tuple(files)
    numbered: dict[int, Path] = {}
    for file in files:
        if (number := _number(file)) is None:
            raise DataError(
                f"{file}: no number in its name, so its place among the slices is unknown; name it slice_017"
            )
        if number in numbered:
            raise DataError(
                f"{file}: the same number as {numbered[number].name}; keep one, or one folder for each scan"
            )
        numbered[number] = file
    return tuple(numbered[number] for number in sorted(numbered))


def _number(file: Path) -> int | None:
    found = re.findall(r"\d+", file.stem)
    return int(found[-1][-18:]) if found else None


def _gaps(files: tuple[Path, ...]) -> str:
    numbers = [_number(file) or 0 for file in files]
    steps = np.diff(numbers)
    missing = np.flatnonzero(steps > steps.min(initial=steps.max(initial=0)))
    first = f"after {numbers[missing[0]]}" if len(missing) else ""
    return f"{len(missing)} gap(s) in the numbers of the pictures, the first {first}" if len(missing) else ""


def _size(file: Path) -> tuple[int, int]:
    with _image_errors(file), _opened(file) as image:
        return image.size


def _opened(file: Path) -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise MissingExtra("Pillow", "slides", "reading images") from None
    image = Image.open(need_file(file))
    check_picture(file, image.format, image)
    if image.width * image.height > LARGEST_SLICE:
        raise DataError(f"{image.width} x {image.height} pixels, at most {LARGEST_SLICE:,}")
    if image.mode not in _GREY + _LAYERED:
        raise DataError(f"pixels of type {image.mode!r}, expected shades of grey; convert the slices")
    return image
