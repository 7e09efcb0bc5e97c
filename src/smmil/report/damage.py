"""Parts of a slide that cannot be decoded: hatched in its picture, since white would look like empty glass."""

import numpy as np

from smmil.errors import DataError
from smmil.images import DamagedTile, Slide, Thumbnail

_DARK, _LIGHT = 96, 160
_STRIPES = 80  # along the longer side of a picture: still seen when it is made small


def lost_pixels(shown: Thumbnail) -> np.ndarray:
    """(rows, columns) bool: pixels of the thumbnail that stand for damage."""
    lost = np.zeros(shown.image.shape[:2], bool)
    for x, y, width, height in shown.damaged:
        left, top = int(x / shown.scale), int(y / shown.scale)
        right, bottom = (int(np.ceil(end / shown.scale - 1e-6)) for end in (x + width, y + height))
        lost[top:bottom, left:right] = True
    return lost


def hatched(image: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """The picture with grey diagonal stripes, which no stain has, where pixels were lost."""
    if not lost.any():
        return image
    row, column = np.indices(lost.shape)
    stripe = max(2, max(lost.shape) // _STRIPES)
    grey = np.where((row + column) // stripe % 2, _DARK, _LIGHT).astype(np.uint8)
    return np.where(lost[..., None], grey[..., None], image)


def describe(lost: np.ndarray, slide: Slide, shown: Thumbnail) -> str:
    """How much is lost and why; an error when nothing is left to show."""
    reason = _reason(slide, shown)
    if lost.all():
        raise DataError(f"{slide.path}: the slide is damaged, nothing here can be decoded ({reason}); copy it again")
    share = max(1, round(100 * lost.mean()))
    return f"the slide is damaged: {share} % of its picture cannot be decoded ({reason}) and is hatched; copy it again"


def _reason(slide: Slide, shown: Thumbnail) -> str:
    x, y, width, height = shown.damaged[0]
    side = max(width, height)
    try:
        slide.read(x, y, side, max(1, round(side / shown.scale)))
    except DamagedTile as damage:
        return damage.reason
    return "its reader does not say why"
