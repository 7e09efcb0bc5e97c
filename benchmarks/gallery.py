"""The pictures of docs/gallery.md, from the folder of a demo: screens of report and viewer, maps and an export.

    smmil demo --out smmil-demo
    python benchmarks/gallery.py smmil-demo        needs playwright and Chromium; writes docs/gallery/*.png

Cases are chosen by name (the first positive one), not by success. Pictures have 128 colours, to stay small.
"""

import argparse
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image, ImageDraw

from smmil.exports import export
from smmil.images import open_slide
from smmil.prediction import load_predictions

OUT = Path(__file__).resolve().parents[1] / "docs" / "gallery"
SIZE = {"width": 1200, "height": 760}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def save(image: Image.Image, path: Path) -> None:
    """A PNG of 128 colours, at most 1200 pixels wide."""
    image.thumbnail((1200, 1200))
    image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)
    print(f"{path.name}: {image.size[0]} x {image.size[1]}, {path.stat().st_size // 1000} kB")


@contextmanager
def viewer(models: list[Path], images: Path) -> Iterator[str]:
    """The address of smmil view while the block runs."""
    words = [*map(str, models), "--slides", str(images), "--port", "0", "--no-open"]
    process = subprocess.Popen([sys.executable, "-m", "smmil", "view", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(found[0] for line in process.stdout if (found := re.search(r"http://\S+/", line)))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def screen(browser: Any, address: str, *steps: Any, height: int = SIZE["height"]) -> Image.Image:
    """What a page shows when its pictures have come to rest; each step is done to the page before."""
    page = browser.new_page(viewport={**SIZE, "height": height})
    page.goto(address)
    page.wait_for_timeout(1500)
    for step in steps:
        step(page)
        page.wait_for_timeout(1500)
    taken = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    return taken


def first_positive(folder: Path) -> Any:
    return next(p for p in load_predictions(folder) if p.y == 1)


def qupath(prediction: Any, slide: Path, threshold: float, folder: Path) -> Image.Image:
    """The exported GeoJSON over the slide, tiles and regions in the colours that QuPath gives them."""
    file = folder / f"{prediction.id}.geojson"
    export(prediction, "geojson", file, image=slide, threshold=threshold)
    with open_slide(slide) as opened:
        small = opened.thumbnail(700)
    picture = Image.fromarray(small.image).convert("RGBA")
    layer = Image.new("RGBA", picture.size)
    draw = ImageDraw.Draw(layer)
    tiles_first = sorted(
        json.loads(file.read_text())["features"], key=lambda f: f["properties"]["objectType"] != "tile"
    )
    for feature in tiles_first:
        ring = [(x / small.scale, y / small.scale) for x, y in feature["geometry"]["coordinates"][0]]
        colour = tuple(feature["properties"]["classification"]["color"])
        region = feature["properties"]["objectType"] == "annotation"
        draw.polygon(ring, fill=None if region else (*colour, 50), outline=(*colour, 255), width=5 if region else 1)
    return Image.alpha_composite(picture, layer)


def draw(demo: Path, out: Path) -> None:
    """All pictures of the gallery."""
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    slides, scans = ([base / "predictions" / name for name in ("abmil", "sm_ap")] for base in (demo, demo / "ct"))
    slide, scan = first_positive(slides[1]), first_positive(scans[1])
    save(Image.open(demo / "maps" / f"{slide.id}.png"), out / "truth.png")
    threshold = json.loads((demo / "metrics.json").read_text())["sm_ap"]["threshold"]["value"]
    with TemporaryDirectory() as folder:
        image = demo / "data" / "slides" / f"{slide.id}.svs"
        save(qupath(slide, image, threshold, Path(folder)), out / "qupath.png")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        report = (demo / "report.html").resolve().as_uri()
        save(screen(browser, report), out / "report.png")
        row = f"#case-table tbody tr:has-text('{slide.id}')"
        both = [lambda page: page.locator(row).first.click(), lambda page: page.select_option("#right-model", "1")]
        save(screen(browser, report, *both), out / "compare.png")
        with viewer(slides, demo / "data" / "slides") as url:
            save(screen(browser, f"{url}#case={slide.id}&model=sm_ap&opacity=0.45"), out / "view-slide.png")
        with viewer(scans, demo / "ct" / "data" / "scans") as url:
            hot = int(scan.scores.ravel().argmax()) + 1
            place = f"{url}#case={scan.id}&model=sm_ap&slice={hot}&planes=yes"
            save(screen(browser, place), out / "view-scan.png")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="folder of smmil demo")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    draw(given.demo, given.out)
