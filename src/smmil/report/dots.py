"""Places of instances that lie on no lattice, packed for the page."""

from typing import NamedTuple

import numpy as np

from smmil.maps.points import dot_places, dots_extent
from smmil.maps.raster import Extent
from smmil.prediction import Prediction

_LEVELS = 2**16 - 1


class PackedPlaces(NamedTuple):
    """Where the dots are.

    order    the instances from left to right, as their scores have to be stored
    content  x as steps from one dot to the next, then y; each as whole numbers from 0 at the left or top end of the
             extent to 65,535 at the other, all high bytes before all low bytes
    width    width of an instance in coordinate units; None: nobody says
    """

    order: np.ndarray
    content: bytes
    extent: Extent
    width: float | None
    note: str


def pack_places(prediction: Prediction) -> PackedPlaces:
    """The middle of every instance to 1/65,535 of the extent: about a pixel and a half on the largest slides."""
    places, width = dot_places(prediction)
    left, right, bottom, top = extent = dots_extent(prediction)
    numbers = np.rint((places - (left, top)) / (right - left, bottom - top) * _LEVELS).astype(np.int64)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))
    across, down = numbers[order].T
    # steps between neighbours are small numbers, which compress far better than places
    content = byte_planes(np.diff(across, prepend=0)) + byte_planes(down)
    note = f"{prediction.n:,} instances on no lattice: every dot is one instance at its own place, hottest on top"
    return PackedPlaces(order, content, extent, width, note)


def byte_planes(numbers: np.ndarray) -> bytes:
    """Numbers below 65,536, all high bytes before all low bytes: equal bytes side by side compress better."""
    return (numbers >> 8).astype(np.uint8).tobytes() + (numbers & 255).astype(np.uint8).tobytes()
