"""The report in a real browser: what a reader does, and what the screen then shows."""

import numpy as np
import pytest
from browser.screens import CHROMIUM, FLAGS, near, screen, settled, slide, top_colour
from report.lesion_cases import META, TILE, save_all, scan_case, slide_case, write_slide_picture

from smmil.maps import canvas
from smmil.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")

EVIL = "<img src=x onerror=\"document.title='broken'\">'\"& ü 切片"
PLACE = (14, 8)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two models on the same slides; `wrong` misses the lesion of s1 by far."""
    folder = tmp_path_factory.mktemp("report")
    models = {"first": {"noise": 0.4}, "second": {"noise": 0.4, "smooth": True}}
    for name, how in models.items():
        (folder / name).mkdir()
        cases = [slide_case("s1", 1, p=0.2, place=PLACE, meta={**META, "model": name}, **how),
                 slide_case("s2", 2, y=0, p=0.7, **how), slide_case("s3", 3, p=0.95, **how),
                 slide_case(EVIL, 4, y=0, p=0.1, **how), scan_case("scan")]  # fmt: skip
        save_all(folder / name, cases)
    (folder / "slides").mkdir()
    write_slide_picture(folder / "slides" / "s1.png", 1, place=PLACE)
    out = folder / "report.html"
    write_report([folder / n for n in models], out, slides=folder / "slides", threshold=1.5, resamples=50)
    return out


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser, report):
    """The opened report; at the end nothing may have gone wrong and nothing may have left the machine."""
    opened = browser.new_page(viewport={"width": 1366, "height": 768})
    trouble, asked = [], []
    opened.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda problem: trouble.append(str(problem)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(report.as_uri())
    opened.wait_for_selector("html[data-ready=yes]")
    yield opened
    assert opened.title() != "broken"
    opened.close()
    assert trouble == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def open_case(page, name, models="0"):
    page.fill("#search", name)
    page.locator("#case-table tbody tr").first.click()
    settled(page, models)


def place_on_screen(page, tile, index=0):
    """Middle of a tile (column, row) on the stage, from the viewer's own geometry: where the picture shows it."""
    box = page.locator(".stage").nth(index).bounding_box()
    heat = page.locator(".heat").nth(index)
    area = heat.bounding_box()
    size = heat.evaluate("e => [e.width, e.height]")
    first = first_tile()
    return (area["x"] - box["x"] + (tile[0] - first[0] + 0.5) * area["width"] / size[0],
            area["y"] - box["y"] + (tile[1] - first[1] + 0.5) * area["height"] / size[1])  # fmt: skip


def first_tile():
    return slide_case("s1", 1, place=PLACE).coords.min(0) / TILE


def test_the_hottest_cell_lies_over_the_planted_lesion(page):
    """The lesion is found in the picture of the slide by its dark nuclei, the hottest cell by its colour."""
    open_case(page, "s1")
    slide(page, "#opacity", 0)
    page.locator("#truth").uncheck()
    bare = screen(page, ".stage")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 999)
    hot = near(screen(page, ".stage"), top_colour("viridis"), 3)
    rows, columns = np.nonzero(hot)
    centre = columns.mean(), rows.mean()
    # s1.png: level-0 pixel (x, y) is pixel (x, y); its picture is cut and scaled, so the place is sought by content
    expected = lesion_in(bare)
    tile = hot.sum() ** 0.5
    assert np.hypot(centre[0] - expected[0], centre[1] - expected[1]) < 1.2 * tile
    assert "1 of" in page.locator(".above").inner_text()


def lesion_in(bare):
    """Middle of the region with most dark pixels in a slide picture."""
    from scipy.ndimage import gaussian_filter

    dark = gaussian_filter((bare.sum(2) < 480).astype(float), 28)
    row, column = np.unravel_index(dark.argmax(), dark.shape)
    return column, row


def test_every_cell_of_the_map_has_the_colour_of_its_score(page):
    open_case(page, "s1")
    read = "e => Array.from(e.getContext('2d').getImageData(0, 0, e.width, e.height).data)"
    case = slide_case("s1", 1, p=0.2, place=PLACE, noise=0.4)
    cells = ((case.coords - case.coords.min(0)) // TILE).T
    width, height = cells.max(1) + 1
    painted = np.array(page.locator(".heat").evaluate(read)).reshape(height, width, 4)
    low, high = np.percentile(case.scores, (2, 98))
    place = np.clip(np.rint((case.scores[:, 0] - low) / (high - low) * 255), 0, 255).astype(int)
    expected = np.zeros((height, width, 4))
    expected[cells[1], cells[0]] = np.rint(canvas.colours("viridis")(place) * 255)
    assert (painted[..., 3] == expected[..., 3]).all()
    assert np.abs(painted - expected).max() <= 4


def test_map_and_picture_stay_together_when_zoomed(page):
    open_case(page, "s1")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 999)
    before = near(screen(page, ".stage"), top_colour("viridis"), 3)
    bar = page.locator(".scale-bar").inner_text(), page.locator(".scale-bar").bounding_box()["width"]
    page.click("#zoom-in")
    page.wait_for_timeout(700)
    after = near(screen(page, ".stage"), top_colour("viridis"), 3)
    assert after.sum() == pytest.approx(before.sum() * 2.25, rel=0.1)
    x, y = place_on_screen(page, PLACE)
    assert after[int(y), int(x)]
    assert (page.locator(".scale-bar").inner_text(), page.locator(".scale-bar").bounding_box()["width"]) != bar
    page.keyboard.press("0")
    page.wait_for_timeout(700)
    assert near(screen(page, ".stage"), top_colour("viridis"), 3).sum() == pytest.approx(before.sum(), rel=0.1)


def test_opacity_threshold_truth_and_colours_change_the_pixels(page):
    open_case(page, "s1")
    x, y = (int(v) for v in place_on_screen(page, PLACE))
    slide(page, "#opacity", 100)
    for palette in ("viridis", "magma", "cividis"):
        page.locator("#controls select.palette").select_option(palette)
        assert near(screen(page, ".stage"), top_colour(palette))[y, x], palette
    page.keyboard.press("h")
    assert not near(screen(page, ".stage"), top_colour("cividis"))[y, x]
    page.keyboard.press("h")
    outline = near(screen(page, ".stage"), (255, 255, 255), 2).sum()
    page.keyboard.press("t")
    assert near(screen(page, ".stage"), (255, 255, 255), 2).sum() < outline / 2
    page.click("#use-threshold")
    assert page.locator(".above").inner_text().startswith("≥ 1.500:")
    shown = int(page.locator(".above").inner_text().split(":")[1].split()[0])
    assert shown == (slide_case("s1", 1, p=0.2, place=PLACE, noise=0.4).scores >= 1.5).sum()


def test_two_models_side_by_side_share_their_zoom(page):
    open_case(page, "s1")
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    assert page.locator(".pane h3").all_inner_texts() == ["first", "second"]
    slide(page, "#opacity", 100)
    for leader in (0, 1):
        stage = page.locator(".stage").nth(leader)
        stage.hover(position={"x": 150, "y": 200})
        page.mouse.wheel(0, -400)
        page.wait_for_timeout(800)
        boxes = [page.locator(".heat").nth(i).bounding_box() for i in (0, 1)]
        stages = [page.locator(".stage").nth(i).bounding_box() for i in (0, 1)]
        for side in ("width", "height"):
            assert boxes[0][side] == pytest.approx(boxes[1][side], abs=1)
        assert boxes[0]["x"] - stages[0]["x"] == pytest.approx(boxes[1]["x"] - stages[1]["x"], abs=1)
        assert boxes[0]["width"] > 600
    page.select_option("#left-model", "1")
    settled(page, "1")
    assert page.locator(".pane h3").all_inner_texts() == ["second"]


def test_worst_mistakes_first_then_sorted_and_filtered(page):
    ids = page.locator("#case-table tbody th")
    assert ids.all_inner_texts()[:2] == ["s1", "s2"]
    page.click('button[data-key="p"]')
    assert ids.all_inner_texts()[:2] == ["s3", "scan"]
    page.click('button[data-key="p"]')
    assert ids.all_inner_texts()[0] == EVIL
    assert page.locator("th.column-p").get_attribute("aria-sort") == "ascending"
    page.select_option("#outcome-filter", "false negative")
    assert ids.all_inner_texts() == ["s1"]
    assert page.locator("#count").inner_text() == "1 of 5 cases"
    page.select_option("#outcome-filter", "")
    page.select_option("#label-filter", "0")
    assert sorted(ids.all_inner_texts()) == sorted([EVIL, "s2"])
    page.fill("#search", "切")
    assert ids.all_inner_texts() == [EVIL]
    page.fill("#search", "nobody")
    assert page.locator("#nothing").is_visible()


def test_small_maps_are_painted_when_they_come_into_sight(page):
    page.locator("#case-table tbody tr").last.scroll_into_view_if_needed()
    page.wait_for_selector("#case-table tbody tr:last-child canvas[data-painted=viridis]")
    row = page.locator("#case-table tbody tr", has_text="s1").locator("canvas")
    row.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    assert near(screen(page, "#case-table tbody tr:has-text('s1') canvas"), top_colour("viridis")).sum() > 5


def test_everything_can_be_done_with_the_keyboard(page):
    page.locator("#case-table tbody tr").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settled(page, "0")
    becomes(page, "document.querySelector('#case-title').textContent === 's2'")
    page.keyboard.press("p")
    becomes(page, "document.querySelector('#case-title').textContent === 's1'")
    page.wait_for_selector('#case[data-ready$="0:0"]')
    page.keyboard.press("c")
    becomes(page, "document.querySelector('#controls select.palette').value === 'cividis'")
    page.keyboard.press("Escape")
    page.wait_for_selector("#case", state="hidden")
    becomes(page, "document.activeElement.dataset.case === '0'")


def becomes(page, condition):
    """The page comes to this by itself, sooner or later: a busy machine may take its time."""
    page.wait_for_function(condition)


def test_a_scan_is_shown_as_a_strip(page):
    open_case(page, "scan")
    slide(page, "#opacity", 100)
    image = screen(page, ".stage")
    hot = np.nonzero(near(image, top_colour("viridis")))[1].mean()
    left, right = 56, image.shape[1] - 14
    assert 20 <= (hot - left) / (right - left) * 36 <= 25
    page.locator(".bars").hover(position={"x": left + (right - left) * 22.5 / 36, "y": 100})
    assert "slice 22" in page.locator(".readout").inner_text()
    assert "lesion" in page.locator(".readout").inner_text()


def test_light_and_dark(page):
    def brightness():
        return screen(page, "h2 >> nth=0").mean()

    page.evaluate("document.documentElement.dataset.theme = 'light'")
    light = brightness()
    page.click("#theme")
    assert brightness() < 90 < 180 < light
