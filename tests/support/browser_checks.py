"""What report and viewer promise alike, and how it is checked on the screen of either."""

import numpy as np
import pytest

from support.screens import expected_colours, hottest, near, painted, screen, slide, still

PALETTES = ("viridis", "magma", "cividis")


def check_the_map_is_the_scores(page, case):
    expected = expected_colours(case)
    assert (painted(page)[..., 3] == expected[..., 3]).all()
    assert np.abs(painted(page) - expected).max() <= 4


def check_colours_map_and_outline(page, choice, place):
    """Colours change the pixel of the hottest tile; the keys h and t take map and outline away."""
    x, y = (int(v) for v in place)
    slide(page, "#opacity", 100)
    for palette in PALETTES:
        page.locator(choice).select_option(palette)
        assert hottest(page, palette, 6)[y, x], palette
    page.keyboard.press("h")
    assert not hottest(page, palette, 6)[y, x]
    page.keyboard.press("h")
    outline = near(screen(page, ".stage"), (255, 255, 255), 2).sum()
    page.keyboard.press("t")
    assert near(screen(page, ".stage"), (255, 255, 255), 2).sum() < outline / 2


def check_zoom_keeps_map_and_slide_together(page, place):
    """One step nearer, the hottest tile is 1.5 times as wide and where it belongs; `place` tells where that is now."""
    slide(page, "#opacity", 100)
    slide(page, "#threshold", 999)
    before = hottest(page)
    bar = page.locator(".scale-bar").inner_text(), page.locator(".scale-bar").bounding_box()["width"]
    page.click("#zoom-in")
    still(page)
    after = hottest(page)
    assert after.sum() == pytest.approx(before.sum() * 2.25, rel=0.1)
    x, y = place()
    assert after[int(y), int(x)]
    assert (page.locator(".scale-bar").inner_text(), page.locator(".scale-bar").bounding_box()["width"]) != bar
    page.keyboard.press("0")
    still(page)
    assert hottest(page).sum() == pytest.approx(before.sum(), rel=0.1)


def check_scale_bar(page):
    """The words stand beside the bar: however short it gets, they are never wider than what they measure."""
    bar, words = page.locator(".scale-bar").bounding_box(), page.locator(".scale-bar span").bounding_box()
    assert words["x"] >= bar["x"] + bar["width"]
    assert bar["height"] < words["height"]


def check_both_follow(page, leader, turns):
    """The wheel over one pane moves both alike; gives the width of their maps."""
    page.locator(".stage").nth(leader).hover(position={"x": 150, "y": 200})
    page.mouse.wheel(0, turns)
    still(page)
    maps = [page.locator(".heat").nth(i).bounding_box() for i in (0, 1)]
    stages = [page.locator(".stage").nth(i).bounding_box() for i in (0, 1)]
    for side in ("width", "height"):
        assert maps[0][side] == pytest.approx(maps[1][side], abs=1)
    assert maps[0]["x"] - stages[0]["x"] == pytest.approx(maps[1]["x"] - stages[1]["x"], abs=1)
    return maps[0]["width"]
