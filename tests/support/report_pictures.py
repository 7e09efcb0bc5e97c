"""Marked slides, pixels of a picture, and `smmil report` as an app."""

import base64
import io

import numpy as np
from PIL import Image

from support.lesion_cases import SIDE, TILE


def pixels(picture):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.jpeg)))).astype(int)


def marked_slide(path, place):
    """White, with one black tile at (column, row)."""
    image = np.full((SIDE * TILE, SIDE * TILE, 3), 255, np.uint8)
    image[place[1] * TILE : (place[1] + 1) * TILE, place[0] * TILE : (place[0] + 1) * TILE] = 0
    Image.fromarray(image).save(path)
    return path


def app():
    import typer

    from smmil.cli.report import report

    made = typer.Typer()
    made.command()(report)
    return made
