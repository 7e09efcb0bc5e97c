"""Stain normalisation: the colours of a slide brought to those of a target, by one formula for all of its tiles.

Macenko et al. 2009 (IEEE ISBI): two stain vectors from the optical densities, replaced by those of the target.
Reinhard et al. 2001 (IEEE CG&A): mean and deviation in Ruderman's lαβ space, replaced by those of the target.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smmil.errors import ConfigError, DataError
from smmil.files import digest
from smmil.images import DamagedTile, Slide, open_slide
from smmil.prepare.recipe import Recipe

# Light where nothing absorbs, the least mean optical density of tissue, and the percentile of angles that stands for
# the extreme. Asking that of every colour, as some do, would leave out all places with eosin alone: it is clear in red.
_LIGHT, _LEAST, _EXTREME = 240.0, 0.15, 1.0
_TILES, _PIXELS = 64, 2**20  # of a slide that are looked at
_FEWEST = 1000  # coloured pixels below which nothing is concluded
_APART = 5.0  # degrees between two stains below which there is one
# Stain vectors (haematoxylin, eosin) and 99th percentiles of their amounts; mean and deviation of l, α, β.
_TARGETS = {
    "macenko": (0.5626, 0.7201, 0.4062, 0.2159, 0.8012, 0.5581, 1.9705, 1.0308),
    "reinhard": (8.63234435, -0.11501964, 0.03868433, 0.57506023, 0.10403329, 0.01364062),
}
_DENSITY = -np.log((np.arange(256) + 1) / _LIGHT)
_TO_LMS = np.array([[0.3811, 0.5783, 0.0402], [0.1967, 0.7244, 0.0782], [0.0241, 0.1288, 0.8444]])
_TO_LAB = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]]) / np.sqrt([[3], [6], [2]])

Channels = tuple[np.ndarray, np.ndarray, np.ndarray]


def _mixed(matrix: np.ndarray, channels: Channels) -> Channels:
    """The product of a 3 x 3 matrix with every pixel, summed in one order whatever the number of threads."""
    a, b, c = channels
    first, second, third = (row[0] * a + row[1] * b + row[2] * c for row in matrix)
    return first, second, third


def _planes(image: np.ndarray) -> Channels:
    return image[..., 0], image[..., 1], image[..., 2]


def _densities(image: np.ndarray) -> Channels:
    return _planes(_DENSITY[image])


def _lab(image: np.ndarray) -> Channels:
    """Ruderman's l, α, β of RGB from 0 to 255; black counts as the darkest grey."""
    long, medium, short = _mixed(_TO_LMS, _planes(np.maximum(image, 1).astype(np.float64)))
    return _mixed(_TO_LAB, (np.log(long), np.log(medium), np.log(short)))


@dataclass(frozen=True)
class _Stain:
    """What normalisation needs to know of a picture: numbers in the order of `_TARGETS`."""

    method: str
    numbers: tuple[float, ...]

    @classmethod
    def fit(cls, method: str, pixels: np.ndarray) -> "_Stain":
        """The numbers of RGB pixels (n, 3), uint8, of which those of glass are left out; refused without two stains."""
        red, green, blue = _densities(pixels)
        tissue = red + green + blue >= 3 * _LEAST
        if tissue.sum() < _FEWEST:
            raise DataError(
                f"stain normalisation sees {int(tissue.sum()):,} stained pixels and needs {_FEWEST:,}; leave this case "
                "out, or prepare without stain"
            )
        fitted = _macenko(pixels[tissue]) if method == "macenko" else _reinhard(pixels[tissue])
        return cls(method, tuple(float(number) for number in fitted))

    def towards(self, target: tuple[float, ...] | None = None) -> Callable[[np.ndarray], np.ndarray]:
        """The function that gives a picture of these stains those of the target (`_TARGETS`); uint8 (…, 3) both."""
        ours, theirs = np.array(self.numbers), np.array(target or _TARGETS[self.method])
        if self.method == "macenko":
            amounts = np.diag(theirs[6:] / ours[6:]) @ np.linalg.pinv(ours[:6].reshape(2, 3).T)
            matrix = theirs[:6].reshape(2, 3).T @ amounts
            return lambda image: _to_bytes([_LIGHT * np.exp(-d) - 1 for d in _mixed(matrix, _densities(image))])
        scale = theirs[3:] / ours[3:]
        shift = theirs[:3] - ours[:3] * scale
        to_lms, to_rgb = np.linalg.inv(_TO_LAB), np.linalg.inv(_TO_LMS)

        def recoloured(image: np.ndarray) -> np.ndarray:
            one, two, three = (s * channel + t for s, channel, t in zip(scale, _lab(image), shift, strict=True))
            long, medium, short = _mixed(to_lms, (one, two, three))
            return _to_bytes(_mixed(to_rgb, (np.exp(long), np.exp(medium), np.exp(short))))

        return recoloured


def _to_bytes(channels: Iterable[np.ndarray]) -> np.ndarray:
    return np.stack([np.rint(np.clip(channel, 0, 255)) for channel in channels], -1).astype(np.uint8)


def _macenko(pixels: np.ndarray) -> list[float]:
    """Two unit vectors, the one that absorbs more red light first, and the 99th percentiles of their amounts.

    The plane of the two largest singular values of the densities; in it, the robust extremes of the angle.
    """
    densities = _densities(pixels)
    moments = np.array([[(a * b).sum() for b in densities] for a in densities])
    axes = np.linalg.eigh(moments)[1][:, :0:-1]
    axes = axes * np.where(axes[1] < 0, -1.0, 1.0)  # towards positive densities, so that no angle wraps around
    across, along = (sum(w * d for w, d in zip(axis, densities, strict=True)) for axis in axes.T[::-1])
    angles = np.percentile(np.arctan2(across, along), (_EXTREME, 100 - _EXTREME))
    apart = np.degrees(angles[1] - angles[0])
    if apart < _APART:
        raise DataError(
            f"stain normalisation finds one stain (directions {apart:.1f} degrees apart, two need {_APART:g}); leave "
            "this case out, or prepare without stain"
        )
    vectors = [np.cos(angle) * axes[:, 0] + np.sin(angle) * axes[:, 1] for angle in angles]
    vectors.sort(key=lambda vector: -vector[0])
    first, second = np.linalg.pinv(np.array(vectors).T)
    amounts = (sum(w * d for w, d in zip(row, densities, strict=True)) for row in (first, second))
    return [*vectors[0], *vectors[1], *(np.percentile(amount, 99) for amount in amounts)]


def _reinhard(pixels: np.ndarray) -> list[float]:
    channels = _lab(pixels)
    deviations = [float(channel.std()) for channel in channels]
    if min(deviations) < 1e-6:
        raise DataError("stain normalisation finds a single colour; leave this case out, or prepare without stain")
    return [*(float(channel.mean()) for channel in channels), *deviations]


def _sample_indices(count: int) -> np.ndarray:
    """Which of so many tiles are looked at: all, or some evenly spread from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, _TILES)).round().astype(int))


def _thinned(tiles: list[np.ndarray]) -> np.ndarray:
    """Pixels (n, 3) of these tiles, every k-th where they are too many."""
    pixels = np.concatenate([tile.reshape(-1, 3) for tile in tiles]) if tiles else np.zeros((0, 3), np.uint8)
    return pixels[:: -(-len(pixels) // _PIXELS) or 1]


def _fit_slide(slide: Slide, coords: np.ndarray, footprint: float, pixels: int, recipe: Recipe) -> _Stain | None:
    """The stains of a slide by a sample of its tiles, as they will be seen; None: the recipe leaves colours alone."""
    if recipe.stain is None:
        return None
    if recipe.stain_reference is not None and recipe.stain_target is None:
        raise ConfigError(f"stain_reference: {recipe.stain_reference} was not read; smmil.prepare.plan does")
    tiles = []
    for x, y in np.rint(coords[_sample_indices(len(coords))]).tolist():
        with suppress(DamagedTile):  # counted when all tiles are read
            tiles.append(slide.read(x, y, footprint, pixels))
    with _named(slide.path):
        return _Stain.fit(recipe.stain, _thinned(tiles))


def _with_reference(recipe: Recipe) -> Recipe:
    """The recipe with its reference picture read: numbers and a checksum in place of a path."""
    if recipe.stain is None or recipe.stain_reference is None or recipe.stain_target is not None:
        return recipe
    path = Path(recipe.stain_reference)
    with open_slide(path) as slide, _named(path):
        found = _Stain.fit(recipe.stain, _thinned([slide.thumbnail(1024).image])).numbers
    return recipe.model_copy(update={"stain_target": found, "stain_reference": digest(path.read_bytes())[:32]})


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError as problem:
        raise DataError(f"{path}: {problem}") from None
