"""What browser tests share: how Chromium is started, when a page has come to rest, and what its screen shows."""

import io
import shutil
from contextlib import contextmanager

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from smmil.maps import canvas
from support.lesion_cases import TILE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--force-color-profile=srgb"]  # fmt: skip
SIZE = {"width": 1366, "height": 768}
EVIL = "<img src=x onerror=\"document.title='broken'\">'\"& ü 切片"
# read from a copy, so that the page's own canvas stays as it is
PIXELS = """e => {
    const copy = Object.assign(document.createElement('canvas'), { width: e.width, height: e.height });
    const pen = copy.getContext('2d', { willReadFrequently: true });
    pen.drawImage(e, 0, 0);
    return Array.from(pen.getImageData(0, 0, e.width, e.height).data);
}"""


@contextmanager
def watched(browser, address, ready, own):
    """The opened page; at the end nothing may have gone wrong, and nothing may have been asked of others than `own`."""
    page = browser.new_page(viewport=SIZE)
    trouble, asked = [], []
    page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda problem: trouble.append(str(problem)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector(ready)
    yield page
    assert page.title() != "broken"
    page.close()
    assert trouble == []
    assert [url for url in asked if not url.startswith(own)] == []


def read_report(browser, path):
    """The opened report, a file that asks nobody for anything."""
    return watched(browser, path.as_uri(), "html[data-ready=yes]", ("file:", "data:", "blob:"))


def becomes(page, condition, given=None):
    """The page comes to this by itself, sooner or later: a busy machine may take its time.

    The condition is a function: the policy of a page may allow no evaluation of text.
    """
    page.wait_for_function(condition, arg=given)


def shows(page, selector, text):
    becomes(page, "([s, t]) => document.querySelector(s)?.textContent.includes(t)", [selector, text])


def says(page, selector, texts):
    """These elements come to say exactly this, in this order."""
    becomes(
        page,
        "([s, all]) => [...document.querySelectorAll(s)].map((e) => e.textContent.trim()).join('|') === all.join('|')",
        [selector, texts],
    )


def still(page):
    """Nothing moves any more and all pixels are there."""
    frames(page)  # with the next one begins what was asked for
    becomes(page, "() => !document.querySelector('.stage[aria-busy=true]')")
    frames(page)


def frames(page):
    page.evaluate("""() => new Promise((done) => {
        let left = 4;
        const next = () => (left-- ? requestAnimationFrame(next) : done());
        next();
    })""")


def settled(page, models):
    """The report's case is shown with these models, and nothing moves any more."""
    page.wait_for_selector(f'#case[data-ready$=":{models}"]')
    still(page)


def screen(page, selector, index=0):
    picture = page.locator(selector).nth(index).screenshot()
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


def near(image, colour, tolerance=6):
    """Where the picture has about this colour."""
    return np.abs(image - np.asarray(colour)).max(2) <= tolerance


def hottest(page, palette="viridis", tolerance=3, index=0):
    """Where the stage shows the colour of the highest scores."""
    return near(screen(page, ".stage", index), top_colour(palette), tolerance)


def top_colour(palette):
    return np.rint(np.array(canvas.colours(palette)(255)[:3]) * 255)


def lesion_in(bare):
    """Middle of the region with most dark pixels in the picture of a slide."""
    dark = gaussian_filter((bare.sum(2) < 480).astype(float), 28)
    row, column = np.unravel_index(dark.argmax(), dark.shape)
    return column, row


def slide(page, control, value):
    page.locator(control).evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def place_in(page, tile, first, index=0):
    """Middle of a tile (column, row) inside its stage, where the browser has put the map that begins at `first`."""
    box = page.locator(".stage").nth(index).bounding_box()
    heat = page.locator(".heat").nth(index)
    area, size = heat.bounding_box(), heat.evaluate("e => [e.width, e.height]")
    return [area[a] - box[a] + (tile[i] - first[i] + 0.5) * area[s] / size[i]
            for i, (a, s) in enumerate((("x", "width"), ("y", "height")))]  # fmt: skip


def painted(page, index=0):
    """The map itself, one pixel per tile."""
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
