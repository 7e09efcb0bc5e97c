"""What a reader does in the viewer, and what the screen must then show."""

import numpy as np
from browser.viewing import CORNER, viewed_slide
from report.lesion_cases import TILE

from smmil.maps import canvas

SIZE = {"width": 1366, "height": 768}
# read from a copy, so that the page's own canvas stays as it is
PIXELS = """e => {
    const copy = Object.assign(document.createElement('canvas'), { width: e.width, height: e.height });
    const pen = copy.getContext('2d', { willReadFrequently: true });
    pen.drawImage(e, 0, 0);
    return Array.from(pen.getImageData(0, 0, e.width, e.height).data);
}"""


def becomes(page, condition, given=None):
    """The page comes to this by itself, sooner or later: a busy machine may take its time.

    The condition is a function: the page's policy allows no evaluation of text.
    """
    page.wait_for_function(condition, arg=given)


def settled(page, name, models="0"):
    """The case is shown with these models, and nothing moves any more."""
    becomes(
        page,
        """([name, models]) => document.querySelector('#case-title').textContent === name &&
           (document.querySelector('#stage').dataset.ready ?? '').endsWith(':' + models)""",
        [name, models],
    )
    still(page)


def still(page):
    """The map has come to rest and all its pixels are there."""
    page.wait_for_timeout(120)  # for what was asked to begin
    becomes(page, "() => !document.querySelector('.stage[aria-busy=true]')")
    page.wait_for_timeout(60)


def inspected(page, number):
    becomes(page, "n => document.querySelector('#inspector').dataset.instance === String(n)", int(number))


def open_case(page, name, models="0"):
    page.fill("#search", name)
    page.locator("#cases li").first.click()
    settled(page, name, models)


def shows(page, selector, text):
    becomes(page, "([s, t]) => document.querySelector(s)?.textContent.includes(t)", [selector, text])


def listed(page, names):
    """The list comes to hold exactly these cases, in this order."""
    becomes(
        page,
        "names => [...document.querySelectorAll('.case-id')].map(e => e.textContent).join('|') === names.join('|')",
        names,
    )


def place_on_screen(page, tile, index=0):
    """Middle of a tile (column, row) of s1 inside its stage, from where the browser has put the map."""
    box = page.locator(".stage").nth(index).bounding_box()
    heat = page.locator(".heat").nth(index)
    area, size = heat.bounding_box(), heat.evaluate("e => [e.width, e.height]")
    first = (viewed_slide("s1", "first").coords.min(0) - CORNER) / TILE
    return [area[a] - box[a] + (tile[i] - first[i] + 0.5) * area[s] / size[i]
            for i, (a, s) in enumerate((("x", "width"), ("y", "height")))]  # fmt: skip


def number_of(case, tile):
    return int(np.flatnonzero((case.coords == CORNER + np.array(tile) * TILE).all(1))[0])


def click_tile(page, tile):
    x, y = place_on_screen(page, tile)
    page.locator(".stage").first.click(position={"x": x, "y": y})
    number = number_of(viewed_slide("s1", "first"), tile)
    inspected(page, number)
    return number


def painted(page, index=0):
    heat = page.locator(".heat").nth(index)
    width, height = heat.evaluate("e => [e.width, e.height]")
    return np.array(heat.evaluate(PIXELS)).reshape(height, width, 4)


def expected_colours(case, palette="viridis", threshold=-np.inf):
    """What the map must be, one pixel per tile, worked out without the page."""
    cells = ((case.coords - case.coords.min(0)) // TILE).T
    width, height = cells.max(1) + 1
    low, high = np.percentile(case.scores, (2, 98))
    shade = np.clip(np.rint((case.scores[:, 0] - low) / (high - low) * 255), 0, 255).astype(int)
    colours = np.rint(canvas.colours(palette)(shade) * 255) * (case.scores >= threshold)
    expected = np.zeros((height, width, 4))
    expected[cells[1], cells[0]] = colours
    return expected
