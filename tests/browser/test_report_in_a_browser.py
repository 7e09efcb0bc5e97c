"""The report in a real browser: what a reader does, and what the screen then shows."""

import numpy as np
import pytest
from support.browser_checks import (
    check_both_follow,
    check_colours_map_and_outline,
    check_scale_bar,
    check_the_map_is_the_scores,
    check_zoom_keeps_map_and_slide_together,
)
from support.lesion_cases import META, TILE, save_all, scan_case, slide_case, write_slide_picture
from support.screens import (
    EVIL,
    becomes,
    hottest,
    lesion_in,
    near,
    place_in,
    read_report,
    says,
    screen,
    settled,
    shows,
    slide,
    top_colour,
)

from smmil.report import write_report

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


@pytest.fixture
def page(browser, report):
    with read_report(browser, report) as opened:
        yield opened


def open_case(page, name, models="0"):
    page.fill("#search", name)
    page.locator("#case-table tbody tr", has_text=name).first.click()
    settled(page, models)


def place_on_screen(page):
    """Middle of the hottest tile on the stage."""
    return place_in(page, PLACE, slide_case("s1", 1, place=PLACE).coords.min(0) / TILE)


def test_the_hottest_cell_lies_over_the_planted_lesion(page):
    """The lesion is found in the picture of the slide by its dark nuclei, the hottest cell by its colour."""
    open_case(page, "s1")
    slide(page, "#opacity", 0)
    page.locator("#truth").uncheck()
    bare = screen(page, ".stage")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 999)
    shows(page, ".above", "1 of")
    hot = hottest(page)
    rows, columns = np.nonzero(hot)
    centre = columns.mean(), rows.mean()
    # s1.png: level-0 pixel (x, y) is pixel (x, y); its picture is cut and scaled, so the place is sought by content
    expected = lesion_in(bare)
    tile = hot.sum() ** 0.5
    assert np.hypot(centre[0] - expected[0], centre[1] - expected[1]) < 1.2 * tile


def test_every_cell_of_the_map_has_the_colour_of_its_score(page):
    open_case(page, "s1")
    page.select_option("#scale", "case")
    settled(page, "0")
    check_the_map_is_the_scores(page, slide_case("s1", 1, p=0.2, place=PLACE, noise=0.4))


def test_map_and_picture_stay_together_when_zoomed(page):
    open_case(page, "s1")
    check_scale_bar(page)
    check_zoom_keeps_map_and_slide_together(page, lambda: place_on_screen(page))


def test_opacity_threshold_truth_and_colours_change_the_pixels(page):
    open_case(page, "s1")
    check_colours_map_and_outline(page, "#controls select.palette", place_on_screen(page))
    page.click("#use-threshold")
    case = slide_case("s1", 1, p=0.2, place=PLACE, noise=0.4)
    shows(page, ".above", f"≥ 1.500: {(case.scores >= 1.5).sum()} of {case.n}")


def test_two_models_side_by_side_share_their_zoom(page):
    open_case(page, "s1")
    page.select_option("#right-model", "1")
    settled(page, "0,1")
    says(page, ".pane h3", ["first", "second"])
    slide(page, "#opacity", 100)
    for leader in (0, 1):
        assert check_both_follow(page, leader, -400) > 600
    page.select_option("#left-model", "1")
    settled(page, "1")
    says(page, ".pane h3", ["second"])


def first_cases(page, *names):
    """The table comes to begin with these cases."""
    becomes(
        page,
        """names => [...document.querySelectorAll('#case-table tbody th')].slice(0, names.length)
           .map((e) => e.textContent).join('|') === names.join('|')""",
        list(names),
    )


def test_worst_mistakes_first_then_sorted_and_filtered(page):
    ids = "#case-table tbody th"
    first_cases(page, "s1", "s2")
    page.click('button[data-key="p"]')
    first_cases(page, "s3", "scan")
    page.click('button[data-key="p"]')
    first_cases(page, EVIL)
    assert page.locator("th.column-p").get_attribute("aria-sort") == "ascending"
    page.select_option("#outcome-filter", "false negative")
    says(page, ids, ["s1"])
    shows(page, "#count", "1 of 5 cases")
    page.select_option("#outcome-filter", "")
    page.select_option("#label-filter", "0")
    says(page, ids, [EVIL, "s2"])
    page.fill("#search", "切")
    says(page, ids, [EVIL])
    page.fill("#search", "nobody")
    page.wait_for_selector("#nothing", state="visible")


def test_small_maps_are_painted_when_they_come_into_sight(page):
    page.locator("#case-table tbody tr").last.scroll_into_view_if_needed()
    page.wait_for_selector("#case-table tbody tr:last-child canvas[data-painted=viridis]")
    row = "#case-table tbody tr:has-text('s1') canvas"
    page.locator(row).scroll_into_view_if_needed()
    page.wait_for_selector(f"{row}[data-painted=viridis]")
    assert near(screen(page, row), top_colour("viridis")).sum() > 5


def test_a_case_without_lesion_stays_pale_until_its_own_scale_is_chosen(page):
    row = "#case-table tbody tr:has-text('s2') canvas"
    page.locator(row).scroll_into_view_if_needed()
    page.wait_for_selector(f"{row}[data-scale=all]")
    assert near(screen(page, row), top_colour("viridis")).sum() == 0
    open_case(page, "s2")
    assert page.locator("#scale").input_value() == "all"
    page.select_option("#scale", "case")
    page.keyboard.press("Escape")
    page.wait_for_selector(f"{row}[data-scale=case]")
    assert near(screen(page, row), top_colour("viridis")).sum() > 5


def test_everything_can_be_done_with_the_keyboard(page):
    page.locator("#case-table tbody tr").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settled(page, "0")
    says(page, "#case-title", ["s2"])
    page.keyboard.press("p")
    says(page, "#case-title", ["s1"])
    page.wait_for_selector('#case[data-ready$="0:0"]')
    page.keyboard.press("c")
    becomes(page, "() => document.querySelector('#controls select.palette').value === 'cividis'")
    page.keyboard.press("Escape")
    page.wait_for_selector("#case", state="hidden")
    becomes(page, "() => document.activeElement.dataset.case === '0'")


def test_a_scan_is_shown_as_a_strip(page):
    open_case(page, "scan")
    slide(page, "#opacity", 100)
    image = screen(page, ".stage")
    hot = np.nonzero(near(image, top_colour("viridis")))[1].mean()
    left, right = 56, image.shape[1] - 14
    assert 20 <= (hot - left) / (right - left) * 36 <= 25
    page.locator(".bars").hover(position={"x": left + (right - left) * 22.5 / 36, "y": 100})
    shows(page, ".readout", "slice 23 ")  # counted from 1, as in the viewer
    shows(page, ".readout", "lesion")


def test_light_and_dark(page):
    def brightness():
        return screen(page, "h2 >> nth=0").mean()

    page.evaluate("document.documentElement.dataset.theme = 'light'")
    light = brightness()
    page.click("#theme")
    assert brightness() < 90 < 180 < light
