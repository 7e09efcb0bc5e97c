"""The image file of every case, as exports find it too."""

from smmil.exports.originals import Original, find_originals

__all__ = ["Original", "find_originals"]
