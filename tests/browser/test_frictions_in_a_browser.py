"""Scans as radiologists look at them, and interpolated maps, in a real browser."""

import numpy as np
import pytest
from support.browser_actions import settled
from support.screens import PIXELS, becomes, read_report, shows, slide
from support.viewer_study import viewed_slide

from smmil.images.volume import open_volume, window
from smmil.maps import canvas
from smmil.maps.raster import finer, rasterize
from smmil.report import write_report

SCAN = "ct_0001"


@pytest.fixture(scope="module")
def volume(folder, wishes):
    return open_volume(folder / "ct" / "scans" / SCAN)


def pixels(page, selector):
    """The canvas as numbers (rows, columns, 4)."""
    element = page.locator(selector)
    wide, high = element.evaluate("e => [e.width, e.height]")
    return np.array(element.evaluate(PIXELS)).reshape(high, wide, 4)


def test_a_scan_is_read_with_arrows_sides_hounsfield_units_and_planes(page, volume):
    page.evaluate("id => { location.hash = `#case=${id}&slice=9&planes=yes`; }", SCAN)
    settled(page, SCAN)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowDown")  # nothing was clicked
    becomes(page, "() => document.querySelector('.slice').dataset.painted?.startsWith('9:')")
    assert page.locator(".slice-stage > .sides span").all_inner_texts() == ["R", "L", "A", "P"]
    row, column = 30, 41
    box = page.locator(".slice").bounding_box()
    _, rows, columns = volume.shape
    page.mouse.move(box["x"] + (column + 0.5) / columns * box["width"], box["y"] + (row + 0.5) / rows * box["height"])
    shows(page, ".voxel", f"{round(float(volume.slice_hu(9)[row, column]))} HU")
    bar = page.locator(".slice-stage .scale-bar")
    millimetres = float(bar.inner_text().split()[0])
    wide_mm = columns * volume.spacing_mm[0]
    assert bar.evaluate("e => parseFloat(e.style.width)") / box["width"] == pytest.approx(
        millimetres / wide_mm, rel=1e-3
    )
    for axis, at, wanted in (("row", row, volume.hu[::-1, row]), ("column", column, volume.hu[::-1, :, column])):
        becomes(
            page, "([axis, at]) => document.querySelector(`[data-axis=${axis}]`).dataset.at === String(at)", [axis, at]
        )
        shades = np.rint(window(wanted, 40, 80) * 255)
        becomes_equal(page, f"[data-axis={axis}]", shades)
    names = page.locator(".plane figcaption").all_inner_texts()
    assert names == [f"coronal · row {row + 1}", f"sagittal · column {column + 1}"]
    assert page.locator(".plane .sides").nth(1).locator("span").all_inner_texts() == ["A", "P", "S", "I"]
    page.keyboard.press("v")
    page.wait_for_selector(".plane", state="detached")


def becomes_equal(page, selector, shades):
    """All slices come, sooner or later."""
    for _ in range(100):
        found = pixels(page, selector)[..., 0]
        if found.shape == shades.shape and np.abs(found - shades).max() <= 1:
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{selector} does not show the plane")


def test_an_interpolated_map_keeps_the_scores_of_its_patches_and_says_so(page):
    settled(page, "s1")
    slide(page, "#threshold", 0)
    blocks = pixels(page, ".cover > .heat")
    assert not page.locator("#between").is_checked()
    page.keyboard.press("i")
    shows(page, ".between-words", "interpolated between patches of 16 µm")
    image, extent = rasterize(viewed_slide("s1", "first"))
    low, high, _ = canvas.limits_of(image[~np.isnan(image)], None)
    wanted = canvas.colours("viridis")((finer(image, extent, 8) - low) / (high - low))
    fine = pixels(page, ".cover > .heat")
    inside = ~np.isnan(image).repeat(8, 0).repeat(8, 1)
    assert ((fine[..., 3] > 0) == inside).all()  # nothing where no patch is
    assert np.abs(fine[..., :3] - 255 * wanted[..., :3])[inside].max() <= 4
    page.keyboard.press("i")
    becomes(page, "() => document.querySelector('.between-words').textContent === ''")
    assert (pixels(page, ".cover > .heat") == blocks).all()


def test_arrows_move_a_map_before_any_click(page):
    settled(page, "s1")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("+")
    page.wait_for_function("() => location.hash.includes('view=')")
    before = page.evaluate("location.hash")
    page.keyboard.press("ArrowRight")
    becomes(page, "before => location.hash !== before", before)


def test_the_report_shows_sides_and_millimetres_and_takes_arrows_at_once(browser, wishes, tmp_path):
    write_report(wishes["places"][:1], tmp_path / "r.html", slides=wishes["slides"], resamples=0)
    with read_report(browser, tmp_path / "r.html") as page:
        page.locator("#case-table tbody tr", has_text=SCAN).click()
        page.wait_for_selector("#case[data-ready]")
        assert page.locator(".slice-box .sides span").all_inner_texts() == ["R", "L", "A", "P"]
        assert page.locator(".slice-box .scale-bar").inner_text().endswith(" mm")
        first = int(page.locator(".slice-box .slice").get_attribute("data-slice"))
        page.keyboard.press("ArrowRight")
        becomes(page, "n => document.querySelector('.slice-box .slice').dataset.slice === String(n)", first + 1)
        assert page.locator("#between").is_hidden()
