"""The slices of a scan as colour pictures: three windows of one slice, or one window of three neighbouring slices."""

from collections.abc import Iterator

import numpy as np

from smmil.images.volume import Volume
from smmil.images.windows import triplets, window_channels
from smmil.prepare.recipe import Recipe


def slice_pictures(volume: Volume, recipe: Recipe) -> Iterator[np.ndarray]:
    """One float32 picture (side, side, 3) with shades from 0 to 1 per slice, in the order of the volume."""
    if recipe.triplets:
        for three in triplets(volume):
            yield _square(window_channels(three, recipe.windows)[0])
        return
    for index in range(len(volume)):
        shades = window_channels(volume.slice_hu(index), recipe.windows)
        yield _square(shades if len(shades) == 3 else shades.repeat(3, axis=0))


def _square(channels: np.ndarray) -> np.ndarray:
    """Channels last, and black beside a slice that is not square, so that resizing keeps its proportions."""
    _, rows, columns = channels.shape
    side = max(rows, columns)
    if rows != columns:
        top, left = (side - rows) // 2, (side - columns) // 2
        channels = np.pad(channels, ((0, 0), (top, side - rows - top), (left, side - columns - left)))
    return np.ascontiguousarray(channels.transpose(1, 2, 0))
