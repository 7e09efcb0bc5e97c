"""Makers of slides for tests: known pixels, written as real files."""

from pathlib import Path

import numpy as np

from smmil.synthetic import write_pyramid

FLAVOURS = ("aperio", "generic", "leica", "dicom")
OFFSET = (64, 32)
TISSUE, PLANTED = (200, 120, 160), (10, 200, 30)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def planted(height: int, width: int, x: int, y: int, side: int) -> np.ndarray:
    """Tissue-coloured everywhere but for one square with its corner at (x, y)."""
    image = np.full((height, width, 3), TISSUE, np.uint8)
    image[y : y + side, x : x + side] = PLANTED
    return image


def origin(flavour: str) -> tuple[int, int]:
    """Where the first pixel of the written image lies on the slide."""
    return OFFSET if flavour == "leica" else (0, 0)


def slide_file(folder: Path, image: np.ndarray, flavour: str = "aperio", *, mpp: float | None = 0.5, **options) -> Path:
    """Write `image` as a slide: not compressed and in small tiles unless told otherwise."""
    name = {"aperio": "slide.svs", "generic": "slide.tif", "leica": "slide.scn", "dicom": "slide"}[flavour]
    options = {"factors": (1, 4), "tile": 64, "compression": "none"} | options
    if flavour == "leica":
        options["bounds_offset"] = OFFSET
    return write_pyramid(folder / name, image, mpp=mpp, flavour=flavour, **options)
