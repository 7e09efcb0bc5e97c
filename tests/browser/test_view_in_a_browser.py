"""The viewer's map in a real browser: slide, heat map, models and layers."""

import numpy as np
import pytest
from support.browser_actions import open_case, place_on_screen, settled
from support.browser_checks import (
    check_both_follow,
    check_colours_map_and_outline,
    check_the_map_is_the_scores,
    check_zoom_keeps_map_and_slide_together,
)
from support.lesion_cases import TILE
from support.screens import (
    PIXELS,
    becomes,
    expected_colours,
    hottest,
    lesion_in,
    painted,
    says,
    screen,
    shows,
    slide,
    still,
)
from support.viewer_study import PLACE, viewed_slide


def test_the_hottest_cell_lies_over_the_planted_lesion(page):
    """The lesion is found in the pixels of the slide by its dark nuclei, the hottest cell by its colour."""
    open_case(page, "s1")
    slide(page, "#opacity", 0)
    page.locator("#truth").uncheck()
    still(page)
    bare = screen(page, ".stage")
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 999)
    shows(page, ".above", ": 1 of 332")
    hot = hottest(page)
    rows, columns = np.nonzero(hot)
    lesion = lesion_in(bare)
    assert np.hypot(columns.mean() - lesion[0], rows.mean() - lesion[1]) < 1.2 * hot.sum() ** 0.5
    x, y = place_on_screen(page, PLACE)
    assert np.hypot(columns.mean() - x, rows.mean() - y) < 2


def test_the_screen_shows_the_pixels_of_the_slide_where_they_are(page, folder):
    """Moved by any other amount than nothing, the slide's pixels fit those of the screen less well."""
    from PIL import Image

    source = np.asarray(Image.open(folder / "s1.png").convert("RGB")).astype(int)
    open_case(page, "s1")
    page.keyboard.press("h")
    page.keyboard.press("t")
    page.click("#zoom-in")
    still(page)
    bare, box = screen(page, ".stage"), page.locator(".stage").bounding_box()
    x0, y0 = place_on_screen(page, (0, 0))
    per_tile = place_on_screen(page, (1, 0))[0] - x0
    rows, columns = np.mgrid[60 : box["height"] - 60 : 7, 200 : box["width"] - 200 : 7].astype(int)
    x, y = (((v + 0.5 - o) / per_tile + 0.5) * TILE for v, o in ((columns, x0), (rows, y0)))
    inside = (x > 20) & (y > 20) & (x < 748) & (y < 748)
    seen = bare[rows[inside], columns[inside]]
    moves = [(dx, dy) for dx in range(-6, 7) for dy in range(-6, 7)]
    misfit = [
        np.abs(source[(y[inside] + dy).astype(int), (x[inside] + dx).astype(int)] - seen).mean() for dx, dy in moves
    ]
    assert inside.sum() > 1000
    assert min(misfit) < 15
    assert np.abs(moves[int(np.argmin(misfit))]).max() <= 1


def test_every_cell_of_the_map_has_the_colour_of_its_score(page):
    open_case(page, "s1")
    slide(page, "#threshold", 0)
    check_the_map_is_the_scores(page, viewed_slide("s1", "first"))


def test_map_and_slide_stay_together_when_zoomed(page):
    open_case(page, "s1")
    check_zoom_keeps_map_and_slide_together(page, lambda: place_on_screen(page, PLACE))


def test_opacity_threshold_truth_and_colours_change_the_pixels(page):
    open_case(page, "s1")
    case = viewed_slide("s1", "first")
    check_colours_map_and_outline(page, "#palette", place_on_screen(page, PLACE))
    page.click("#use-threshold")
    shows(page, ".above", f"≥ 1.500: {int((case.scores >= 1.5).sum())} of {case.n}")
    assert np.abs(painted(page) - expected_colours(case, "cividis", 1.5)).max() <= 4
    page.select_option("#scale", "all")
    becomes(page, "() => document.querySelector('.high').textContent !== '3.288'")


def test_models_can_be_switched_put_side_by_side_and_swapped(page):
    open_case(page, "s1")
    shows(page, ".score-kind", "attention logit")
    slide(page, "#threshold", 0)
    page.keyboard.press("m")
    settled(page, "s1", "1")
    assert np.abs(painted(page) - expected_colours(viewed_slide("s1", "second"))).max() <= 4
    page.select_option("#right-model", "2")
    settled(page, "s1", "1,2")
    says(page, ".pane h3", ["second", "third"])
    assert np.abs(painted(page, 1) - expected_colours(viewed_slide("s1", "third"))).max() <= 4
    width = [check_both_follow(page, leader, -300) for leader in (0, 1)][1]
    page.keyboard.press("x")
    settled(page, "s1", "2,1")
    says(page, ".pane h3", ["third", "second"])
    assert page.locator(".heat").first.bounding_box()["width"] == pytest.approx(width, abs=1)


def test_other_models_lie_over_the_map_as_lines_or_as_heat(page):
    open_case(page, "s1")
    page.click("#use-threshold")
    page.check("#layer-2")
    page.wait_for_selector(".layer.m2 path")
    third = viewed_slide("s1", "third")
    assert page.locator(".layer.m2 path.over").get_attribute("d").count("M") == border_length(third, 1.5)
    page.select_option("#layers select", "heat")
    page.wait_for_selector("canvas.heat-layer")
    data = np.array(page.locator(".heat-layer").evaluate(PIXELS)).reshape(painted(page).shape)
    assert np.abs(data - expected_colours(third, threshold=1.5)).max() <= 4
    page.uncheck("#layer-2")
    page.wait_for_selector("canvas.heat-layer", state="detached")


def border_length(case, threshold):
    """Number of tile edges between tiles at or above the threshold and everything else."""
    cells = ((case.coords - case.coords.min(0)) // TILE).T
    mask = np.zeros(cells.max(1)[::-1] + 3, dtype=int)
    mask[cells[1] + 1, cells[0] + 1] = case.scores[:, 0] >= threshold
    return int(sum(np.abs(np.diff(mask, axis=axis)).sum() for axis in (0, 1)))
