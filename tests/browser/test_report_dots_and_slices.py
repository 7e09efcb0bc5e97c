"""Nuclei and scans in a real browser: dots over the lesion, and the slice under the hand."""

import numpy as np
import pytest
from browser.screens import CHROMIUM, FLAGS, near, screen, settled, slide, top_colour
from report.lesion_cases import META, SIDE, TILE, save_all, scan_case, write_slide_picture

from smmil.frame import Frame
from smmil.prediction import Prediction
from smmil.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
nibabel = pytest.importorskip("nibabel", reason="needs nibabel: pip install 'smmil[ct]'")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")

PLACE = (14, 8)
WIDE = 13


def nuclei(name, seed=0, n=600):
    """Points anywhere; the hottest one is the middle of the lesion."""
    rng = np.random.default_rng((5, seed))
    middle = (np.array(PLACE) + 0.5) * TILE
    xy = np.vstack([middle - WIDE / 2, rng.uniform(150, SIDE * TILE - 160, (n - 1, 2))])
    lesion = np.hypot(*(xy + WIDE / 2 - middle).T) < 2.6 * TILE
    scores = np.where(np.arange(n) == 0, 9.0, 2.0 * lesion + rng.normal(size=n) * 0.4)
    return Prediction(name, [0.9], scores, coords=xy, frame=Frame((WIDE, WIDE), (0.5, 0.5), "um"), y=1,
                      y_inst=lesion.astype(int), meta=META)  # fmt: skip


def bright_scan(path):
    """A scan whose slice k has the brightness of 2 k Hounsfield units."""
    hu = np.broadcast_to(2 * np.arange(36), (48, 48, 36)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(hu, np.diag([-1.0, -1.0, 5.0, 1.0])), path)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for seed, name in enumerate(("first", "second")):
        (folder / name).mkdir()
        save_all(folder / name, [nuclei("nuclei", seed), nuclei("bare", seed), scan_case("scan")])
    (folder / "images").mkdir()
    write_slide_picture(folder / "images" / "nuclei.png", 1, place=PLACE)
    bright_scan(folder / "images" / "scan.nii.gz")
    write_report([folder / "first", folder / "second"], folder / "r.html", slides=folder / "images", resamples=0)
    return folder / "r.html"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser, report):
    opened = browser.new_page(viewport={"width": 1366, "height": 768})
    trouble = []
    opened.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda problem: trouble.append(str(problem)))
    opened.goto(report.as_uri())
    opened.wait_for_selector("html[data-ready=yes]")
    yield opened
    opened.close()
    assert trouble == []


def open_case(page, name):
    page.fill("#search", name)
    page.locator("#case-table tbody tr").first.click()
    settled(page, "0")


def middle_of(where):
    rows, columns = np.nonzero(where)
    return columns.mean(), rows.mean()


def dark_place(bare):
    """Middle of the region with most dark pixels: the lesion of the slide's picture."""
    from scipy.ndimage import gaussian_filter

    dark = gaussian_filter((bare.sum(2) < 480).astype(float), 28)
    row, column = np.unravel_index(dark.argmax(), dark.shape)
    return column, row


def test_the_hottest_dot_lies_over_the_planted_lesion_and_stays_there_when_zoomed(page):
    open_case(page, "nuclei")
    page.locator("#truth").uncheck()
    slide(page, "#opacity", 0)
    expected = dark_place(screen(page, ".stage"))
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 1000)
    hot = near(screen(page, ".stage"), top_colour("viridis"), 3)
    # a disc as wide as a nucleus on the screen: 13 of about 550 level-0 pixels over 636 pixels
    assert 60 < hot.sum() < 400
    assert np.hypot(*np.subtract(middle_of(hot), expected)) < 45
    assert "1 of 600" in page.locator(".above").inner_text()
    page.click("#zoom-in")
    page.wait_for_timeout(700)
    zoomed = near(screen(page, ".stage"), top_colour("viridis"), 3)
    assert zoomed.sum() == pytest.approx(2.25 * hot.sum(), rel=0.2)
    height, width = hot.shape
    away = np.subtract(middle_of(hot), (width / 2, height / 2))
    np.testing.assert_allclose(np.subtract(middle_of(zoomed), (width / 2, height / 2)), 1.5 * away, atol=3)


def test_hovering_a_dot_reads_its_instance_and_the_note_says_what_dots_are(page):
    open_case(page, "nuclei")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 1000)
    page.locator("#truth").uncheck()
    x, y = middle_of(near(screen(page, ".stage"), top_colour("viridis"), 3))
    page.locator(".stage").hover(position={"x": float(x), "y": float(y)})
    assert page.locator(".readout").inner_text() == "score 9.000 · rank 1 of 600 · lesion"
    assert "600 instances on no lattice" in page.locator("#case-notes").inner_text()


def test_dots_without_a_picture_say_so_and_show_truth_and_second_model(page):
    open_case(page, "bare")
    assert "no picture: no slide of this name was found" in page.locator("#case-notes").inner_text()
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    ringed = near(screen(page, ".stage"), (255, 255, 255), 2).sum()
    page.keyboard.press("t")
    assert ringed > 100
    assert near(screen(page, ".stage"), (255, 255, 255), 2).sum() < ringed / 5
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 1000)
    places = [middle_of(near(screen(page, ".stage", i), top_colour("viridis"), 3)) for i in (0, 1)]
    np.testing.assert_allclose(*places, atol=1)


def brightness(page, index=0):
    shown = screen(page, ".slice", index)
    height, width = shown.shape[:2]
    return shown[2 * height // 5 : 3 * height // 5, 2 * width // 5 : 3 * width // 5].mean()


def test_the_slice_under_the_hand_is_shown(page):
    open_case(page, "scan")
    assert page.locator(".slice").get_attribute("data-slice") == "20"  # the hottest one
    assert brightness(page) == pytest.approx(40 / 80 * 255, abs=5)
    box = page.locator(".bars").bounding_box()
    left, right = 56, box["width"] - 14
    page.locator(".bars").hover(position={"x": left + (right - left) * 31.5 / 36, "y": 100})
    assert page.locator(".slice").get_attribute("data-slice") == "31"
    assert brightness(page) == pytest.approx(62 / 80 * 255, abs=5)
    assert page.locator(".slice-view figcaption").inner_text().startswith("slice 31 · score")
    page.locator(".bars").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".slice").get_attribute("data-slice") == "30"


def test_both_models_show_the_same_slice(page):
    open_case(page, "scan")
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    page.locator(".bars").nth(1).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert [page.locator(".slice").nth(i).get_attribute("data-slice") for i in (0, 1)] == ["23", "23"]
    assert brightness(page, 0) == pytest.approx(46 / 80 * 255, abs=5)
