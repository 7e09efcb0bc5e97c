"""What a reader does in the viewer."""

import numpy as np

from support.lesion_cases import TILE
from support.screens import becomes, place_in, says, still
from support.viewer_study import CORNER, viewed_slide


def settled(page, name, models="0"):
    """The case is shown with these models, and nothing moves any more."""
    becomes(
        page,
        """([name, models]) => document.querySelector('#case-title').textContent === name &&
           (document.querySelector('#stage').dataset.ready ?? '').endsWith(':' + models)""",
        [name, models],
    )
    still(page)


def inspected(page, number):
    becomes(page, "n => document.querySelector('#inspector').dataset.instance === String(n)", int(number))


def open_case(page, name, models="0"):
    page.fill("#search", name)
    page.locator("#cases li", has_text=name).first.click()
    settled(page, name, models)


def listed(page, names):
    """The list comes to hold exactly these cases, in this order."""
    says(page, ".case-id", names)


def place_on_screen(page, tile, index=0):
    """Middle of a tile (column, row) of s1 inside its stage."""
    return place_in(page, tile, (viewed_slide("s1", "first").coords.min(0) - CORNER) / TILE, index)


def number_of(case, tile):
    return int(np.flatnonzero((case.coords == CORNER + np.array(tile) * TILE).all(1))[0])


def click_tile(page, tile):
    x, y = place_on_screen(page, tile)
    page.locator(".stage").first.click(position={"x": x, "y": y})
    number = number_of(viewed_slide("s1", "first"), tile)
    inspected(page, number)
    return number
