"""Pixels of one case, read lazily: slides."""

from smmil.images.opening import READERS, open_slide
from smmil.images.slide import DamagedTile, Slide, Thumbnail, need_mpp
from smmil.images.write import write_pyramid

__all__ = ["DamagedTile", "READERS", "Slide", "Thumbnail", "need_mpp", "open_slide", "write_pyramid"]
