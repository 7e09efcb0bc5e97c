"""What browser tests share: how Chromium is started, and what a screen shows."""

import io
import shutil

import numpy as np
from PIL import Image

from smmil.maps import canvas

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--force-color-profile=srgb"]  # fmt: skip


def settled(page, models):
    page.wait_for_selector(f'#case[data-ready$=":{models}"]')
    page.wait_for_timeout(250)


def screen(page, selector, index=0):
    picture = page.locator(selector).nth(index).screenshot()
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)


def near(image, colour, tolerance=6):
    """Where the picture has about this colour."""
    return np.abs(image - np.asarray(colour)).max(2) <= tolerance


def top_colour(palette):
    return np.rint(np.array(canvas.colours(palette)(255)[:3]) * 255)


def slide(page, control, value):
    page.locator(control).evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )
