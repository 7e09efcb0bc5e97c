"""Writing pyramidal slides that scanners' readers open: for synthetic cohorts and for tests.

The same input always gives the same bytes: no dates, no random identifiers, no program versions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import ConfigError, DataError, MissingExtra, check_choice
from smmil.files import replacing

FLAVOURS = ("aperio", "generic", "leica", "dicom")
COMPRESSIONS = ("jpeg", "none")
JPEG_QUALITY = 90


def write_pyramid(
    path: str | Path,
    image: np.ndarray | Sequence[np.ndarray],
    *,
    mpp: float | None,
    flavour: str = "aperio",
    factors: Sequence[int] = (1, 4, 16),
    tile: int = 256,
    bounds_offset: tuple[int, int] | None = None,
    compression: str = "jpeg",
) -> Path:
    """Write a slide: an RGB image (shrunk by `factors`) or its levels, largest first; gives the path back.

    aperio   TIFF as Aperio scanners write it (.svs), with MPP and AppMag in the description
    generic  tiled TIFF with the pixel size in its resolution tags
    leica    Leica SCN (BigTIFF with XML): the only one of these formats whose scanned area may lie at an offset
             (`bounds_offset`, level-0 pixels) inside a larger slide, reported as OpenSlide's bounds
    dicom    a folder with one VL Whole Slide Microscopy instance per level
    mpp      micrometres per level-0 pixel; None writes a slide that does not say (aperio and generic only)
    """
    check_choice(flavour, FLAVOURS, "flavour")
    check_choice(compression, COMPRESSIONS, "compression")
    _check_options(mpp, flavour, tile, bounds_offset)
    levels = build_levels(image, factors) if isinstance(image, np.ndarray) else [_rgb(level) for level in image]
    path = Path(path)
    if flavour == "dicom":
        from smmil.images.write_dicom import write_dicom

        assert mpp is not None  # _check_options saw to it
        write_dicom(path, levels, mpp=mpp, tile=tile, compression=compression)
    else:
        tags = {"aperio": _aperio_tags, "generic": _generic_tags, "leica": _leica_tags}[flavour]
        _write_tiff(path, levels, tags(levels, mpp, bounds_offset or (0, 0)), tile, compression, flavour == "leica")
    return path


def build_levels(image: np.ndarray, factors: Sequence[int]) -> list[np.ndarray]:
    """Each level is the mean over f × f pixels; the incomplete pixels at the right and lower edge are dropped.

    Factors larger than the image are left out.
    """
    image = _rgb(image)
    if list(factors) != sorted(set(factors)) or factors[0] != 1:
        raise ConfigError(f"factors: must rise from 1, got {tuple(factors)}; for example (1, 4, 16)")
    return [_shrunk(image, f) for f in factors if f <= min(image.shape[:2])]


def _shrunk(image: np.ndarray, factor: int) -> np.ndarray:
    from PIL import Image

    height, width = (side // factor * factor for side in image.shape[:2])
    return np.asarray(Image.fromarray(image).reduce(factor, box=(0, 0, width, height)))


def _rgb(image: np.ndarray) -> np.ndarray:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise DataError(f"image: got {image.dtype} {image.shape}, expected uint8 of shape (height, width, 3)")
    return np.ascontiguousarray(image)


def _check_options(mpp: float | None, flavour: str, tile: int, bounds_offset: tuple[int, int] | None) -> None:
    if mpp is not None and not 0 < mpp < float("inf"):
        raise ConfigError(f"mpp: must be a positive number of micrometres per pixel, got {mpp}")
    if mpp is None and flavour in ("leica", "dicom"):
        raise ConfigError(f"mpp: the flavour {flavour!r} cannot be written without it; choose aperio or generic")
    if bounds_offset is not None and flavour != "leica":
        raise ConfigError(f"bounds_offset: {flavour!r} has no place for it; choose flavour='leica'")
    if flavour == "leica" and (bounds_offset is None or min(bounds_offset) < 1):
        raise ConfigError(f"bounds_offset: 'leica' needs two positive numbers of pixels, got {bounds_offset}")
    if tile % 16 or tile <= 0:
        raise ConfigError(f"tile: must be a positive multiple of 16 (a rule of TIFF), got {tile}")


def _write_tiff(
    path: Path, levels: list[np.ndarray], tags: list[dict[str, Any]], tile: int, compression: str, big: bool
) -> None:
    try:
        import tifffile
    except ModuleNotFoundError:
        raise MissingExtra("tifffile", "slides", "writing slides") from None
    fixed: dict[str, Any] = {"tile": (tile, tile), "photometric": "rgb", "metadata": None, "software": False}
    if compression == "jpeg":
        fixed |= {"compression": "jpeg", "compressionargs": {"level": JPEG_QUALITY}}
    with replacing(path) as temporary, tifffile.TiffWriter(temporary, bigtiff=big) as file:
        for depth, (level, tag) in enumerate(zip(levels, tags, strict=True)):
            file.write(level, subfiletype=1 if depth else 0, **fixed, **tag)


def _aperio_tags(levels: list[np.ndarray], mpp: float | None, _: tuple[int, int]) -> list[dict[str, Any]]:
    height, width = levels[0].shape[:2]
    size = "" if mpp is None else f"|AppMag = {_power(mpp)}|MPP = {mpp:.10g}"

    def description(level: np.ndarray) -> str:
        shrunk = f" -> {level.shape[1]}x{level.shape[0]}" if level is not levels[0] else ""
        return f"Aperio Image Library v11.2.1 \r\n{width}x{height} [0,0 {width}x{height}]{shrunk}{size}"

    return [{"description": description(level)} for level in levels]


def _generic_tags(levels: list[np.ndarray], mpp: float | None, _: tuple[int, int]) -> list[dict[str, Any]]:
    if mpp is None:
        return [{} for _ in levels]
    per_cm = [1e4 / mpp * level.shape[1] / levels[0].shape[1] for level in levels]
    return [{"resolution": (r, r), "resolutionunit": "CENTIMETER"} for r in per_cm]


def _leica_tags(levels: list[np.ndarray], mpp: float | None, offset: tuple[int, int]) -> list[dict[str, Any]]:
    """The XML of a Leica SCN file: sizes in nanometres, the scanned area somewhere in the collection."""
    assert mpp is not None  # _check_options saw to it
    nanometres = round(mpp * 1000)
    if abs(mpp * 1000 - nanometres) > 1e-9:
        raise ConfigError(f"mpp: the flavour 'leica' counts in whole nanometres, got {mpp} µm; round it")
    height, width = levels[0].shape[:2]
    nm = [n * nanometres for n in (width, height, *offset, width + 2 * offset[0], height + 2 * offset[1])]
    dimensions = "".join(
        f'<dimension sizeX="{level.shape[1]}" sizeY="{level.shape[0]}" r="{depth}" ifd="{depth}"/>'
        for depth, level in enumerate(levels)
    )
    xml = (
        '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">'
        f'<collection name="collection" sizeX="{nm[4]}" sizeY="{nm[5]}"><image name="image">'
        f'<pixels sizeX="{width}" sizeY="{height}">{dimensions}</pixels>'
        f'<view sizeX="{nm[0]}" sizeY="{nm[1]}" offsetX="{nm[2]}" offsetY="{nm[3]}"/>'
        f"<scanSettings><objectiveSettings><objective>{_power(mpp)}</objective></objectiveSettings>"
        "<illuminationSettings><illuminationSource>brightfield</illuminationSource>"
        "<numericalAperture>0.75</numericalAperture></illuminationSettings></scanSettings>"
        "</image></collection></scn>"
    )
    described = [{"description": xml}, *({} for _ in levels[1:])]
    return [a | b for a, b in zip(described, _generic_tags(levels, mpp, offset), strict=True)]


def _power(mpp: float) -> str:
    """The magnification that scanners print for this pixel size (0.25 µm: 40)."""
    return f"{10 / mpp:.4g}"
