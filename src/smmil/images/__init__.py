"""Pixels of one case, read lazily: slides and CT volumes."""

from smmil.images.mosaic import MosaicSlide
from smmil.images.opening import READERS, open_slide
from smmil.images.slide import DamagedTile, Slide, Thumbnail, need_mpp
from smmil.images.volume import Volume, open_volume

__all__ = [
    "DamagedTile",
    "MosaicSlide",
    "READERS",
    "Slide",
    "Thumbnail",
    "Volume",
    "need_mpp",
    "open_slide",
    "open_volume",
]
