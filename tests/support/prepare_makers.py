"""Slides, jobs and an encoder whose features can be computed by hand."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from smmil.encoders import Encoder
from smmil.prepare import PrepareCase, PrepareJob, Recipe, TissueRecipe
from smmil.synthetic import write_pyramid

GLASS, TISSUE, PLANTED = (245, 244, 246), (200, 120, 160), (90, 40, 150)
ENCODER = "support.prepare_makers:mean_colour"


class _MeanColour(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(float(os.environ.get("PAUSE", "0")))  # so that there is time to be killed
        return images.mean((2, 3))


def mean_colour() -> Encoder:
    """An encoder whose three features are the mean colour of the tile, 0 to 1."""
    zero, one = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Encoder("mean@1", 3, 4, zero, one, None, "none", "by hand", _MeanColour(), torch.device("cpu"))


def colour(rgb) -> np.ndarray:
    """The features of a tile of one colour."""
    return (np.array(rgb, np.float32) / 255).astype(np.float16)


def glass(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), GLASS, np.uint8)


def painted(height: int, width: int, *squares, background=GLASS) -> np.ndarray:
    """An image with squares (x, y, width, height, colour) on it."""
    image = np.full((height, width, 3), background, np.uint8)
    for x, y, w, h, rgb in squares:
        image[y : y + h, x : x + w] = rgb
    return image


def write_slide(path: Path, image: np.ndarray, mpp: float | None = 0.5, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_pyramid(path, image, mpp=mpp, **{"factors": (1, 4, 16), "tile": 64, "compression": "none"} | options)


def recipe(tile_um: float = 32.0, **options) -> Recipe:
    """Small tiles, the encoder of this file, and a fine mask without tidying."""
    tissue = TissueRecipe(**{"resolution_um": 4.0, "smallest_um2": 0.0, "hole_um2": 0.0} | options.pop("tissue", {}))
    return Recipe(**{"tile_um": tile_um, "tissue": tissue, "encoder": ENCODER} | options)


def job(source: Path, out: Path, chosen: Recipe | None = None, **case) -> PrepareJob:
    chosen = chosen or recipe()
    extra = {name: case.pop(name) for name in ("points", "coverage") if name in case}
    return PrepareJob(PrepareCase(source.stem, source, **case), chosen, chosen.digest("mean@1"), out, **extra)


def speckled(seed: int, side: int = 256) -> np.ndarray:
    """Glass with a square of noisy tissue, different for every seed."""
    image = glass(side, side)
    noise = np.random.default_rng(seed).integers(-30, 30, (side // 2, side // 2, 3))
    image[side // 4 : 3 * side // 4, side // 4 : 3 * side // 4] = np.clip(np.array(TISSUE) + noise, 0, 255)
    return image


def checksums(folder: Path, pattern: str = "**/*.h5") -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob(pattern))
    }
