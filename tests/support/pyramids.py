"""Makers of slides for tests: known pixels, written as real files."""

from pathlib import Path

import numpy as np
import tifffile

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


def qptiff(path: Path, image: np.ndarray, *, channels: tuple[str, ...] = (), mpp: float = 0.5, **options) -> Path:
    """Write `image` as scanners of Akoya do: full size, thumbnail, smaller levels, overview, label; XML on each page.

    channels  names of fluorescence channels, a grey page each on every level, in place of an RGB page
    label     options of the page with the label, such as subfiletype
    """
    label = options.pop("label", {})

    def described(kind: str, name: str = "") -> dict[str, str]:
        parts = f"<ImageType>{kind}</ImageType>" + (f"<Name>{name}</Name>" if name else "")
        head = '<?xml version="1.0" encoding="utf-16"?>\n'
        root = "PerkinElmer-QPI-ImageDescription"
        return {"description": f"{head}<{root}><DescriptionVersion>5</DescriptionVersion>{parts}</{root}>"}

    common = {"software": "PerkinElmer-QPI", "metadata": None}
    with tifffile.TiffWriter(path, bigtiff=True) as file:

        def level(factor: int, kind: str) -> None:
            places = {"tile": (64, 64), "subfiletype": int(factor > 1), "resolutionunit": "CENTIMETER"}
            places |= {"resolution": (1e4 / mpp / factor,) * 2} | common | options
            small = image[::factor, ::factor]
            for name in channels:
                file.write(small[..., 0], photometric="minisblack", **described(kind, name), **places)
            if not channels:
                file.write(small, photometric="rgb", **described(kind), **places)

        def aside(kind: str, every: int, **more) -> None:
            file.write(image[::every, ::every], photometric="rgb", **described(kind), **common | more)

        level(1, "FullResolution")
        aside("Thumbnail", 16)
        for factor in (2, 4):
            level(factor, "ReducedResolution")
        aside("Overview", 12)
        aside("Label", 10, **label)
    return path
