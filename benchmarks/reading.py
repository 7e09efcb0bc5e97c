"""Tiles per second from a slide: ours against raw OpenSlide, on the same file, taking turns in one run.

    python benchmarks/reading.py [SLIDE]

Raw OpenSlide is read_region turned into an RGB array. Without an argument a JPEG slide is written and read.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import openslide
from PIL import Image

from smmil.images.openslide_slide import OpenSlideSlide
from smmil.synthetic import write_pyramid

ROUNDS, TILES, PIXELS = 7, 96, 256
Reader = Callable[[int, int], object]


def texture(side: int = 4096) -> np.ndarray:
    """Pink noise: compresses about as well as tissue."""
    coarse = np.random.default_rng(0).integers(120, 255, (side // 6, side // 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))


def places(path: Path) -> list[tuple[int, int]]:
    """Corners of tiles on the file's own grid, in reading order."""
    with openslide.OpenSlide(path) as slide:
        (width, height), step = slide.dimensions, int(slide.properties.get("openslide.level[0].tile-width", PIXELS))
    corners = [(x, y) for y in range(0, height - step + 1, step) for x in range(0, width - step + 1, step)]
    return corners[:TILES]


def raw(path: Path, side: int) -> Reader:
    slide = openslide.OpenSlide(path)
    return lambda x, y: np.asarray(slide.read_region((x, y), 0, (side, side)).convert("RGB"))


def ours(path: Path, side: int, fast: bool) -> Reader:
    slide = OpenSlideSlide(path, fast=fast)
    return lambda x, y: slide.read(x, y, side, side)


def seconds(reader: Reader, corners: list[tuple[int, int]]) -> float:
    """CPU time: the machine may be busy with other things."""
    start = time.process_time()
    for x, y in corners:
        reader(x, y)
    return time.process_time() - start


def measure(path: Path) -> dict[str, float]:
    """Rates divided by raw OpenSlide's: medians over rounds, each with new handles, so that no cache is warm."""
    with openslide.OpenSlide(path) as slide:
        side = int(slide.properties.get("openslide.level[0].tile-width", PIXELS))
    makers: dict[str, Callable[[], Reader]] = {
        "raw": lambda: raw(path, side),
        "through OpenSlide": lambda: ours(path, side, fast=False),
        "as opened by default": lambda: ours(path, side, fast=True),
    }
    corners = places(path)
    rounds = [{name: seconds(make(), corners) for name, make in makers.items()} for _ in range(ROUNDS + 1)][1:]
    return {name: median(r["raw"] / r[name] for r in rounds) for name in makers if name != "raw"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = (
            Path(sys.argv[1]) if len(sys.argv) > 1 else write_pyramid(Path(folder) / "texture.svs", texture(), mpp=0.5)
        )
        for name, ratio in measure(path).items():
            print(f"reading tiles, {name}: {ratio:.2f} x the rate of raw OpenSlide")


if __name__ == "__main__":
    main()
