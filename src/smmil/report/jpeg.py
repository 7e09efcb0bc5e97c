"""Pixels as text that a page can hold."""

import base64
import io
from collections.abc import Sequence

import numpy as np

_QUALITY = 80


def as_jpeg(image: np.ndarray) -> str:
    """A JPEG without any description, in base64; (rows, columns) is grey, (rows, columns, 3) is colour."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def fitting_jpeg(image: np.ndarray, sides: Sequence[int], most_bytes: int) -> str:
    """The largest JPEG with one of these longer sides that fits into `most_bytes`; the smallest when none does."""
    from PIL import Image

    longest = max(image.shape[:2])
    picture = Image.fromarray(np.ascontiguousarray(image))
    expected = 0.0
    for side in sides:
        # a picture has about as many bytes as pixels allow: no need to try sizes that are far too large
        if side != sides[-1] and expected * (side / longest) ** 2 > 1.2 * most_bytes:
            continue
        shape = [max(1, round(length * min(1.0, side / longest))) for length in (image.shape[1], image.shape[0])]
        small = picture if side >= longest else picture.resize((shape[0], shape[1]), Image.Resampling.BOX)
        encoded = as_jpeg(np.asarray(small))
        if len(encoded) <= most_bytes:
            break
        expected = len(encoded) / min(1.0, side / longest) ** 2
    return encoded
