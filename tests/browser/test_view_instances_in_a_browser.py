"""The viewer's instances in a real browser: inspector, highest scores, slices of a scan, points."""

import numpy as np
import pytest
from support.browser_actions import click_tile, inspected, number_of, open_case, place_on_screen, settled
from support.lesion_cases import scan_case
from support.screens import PIXELS, becomes, near, says, screen, shows, slide, still, top_colour
from support.viewer_study import MODELS, PLACE, features_of, viewed_slide

from smmil.images import open_volume
from smmil.images.volume import PRESETS, window
from smmil.prediction import Prediction


def test_the_inspector_tells_the_numbers_of_the_prediction(page):
    open_case(page, "s1")
    number = click_tile(page, (PLACE[0] + 1, PLACE[1] + 3))
    for i, name in enumerate(MODELS):
        scores = viewed_slide("s1", name).scores[:, 0]
        row = page.locator(f"#inspector tr[data-model='{i}']")
        assert row.locator(".score").inner_text() == f"{scores[number]:.3f}"
        assert row.locator(".rank").inner_text() == f"{(scores > scores[number]).sum() + 1} of {len(scores)}"
        share = np.exp(scores[number]) / np.exp(scores).sum()
        assert float(row.locator(".share").inner_text()) == pytest.approx(share, abs=6e-4, rel=6e-3)
    assert "no lesion" in page.locator(".where").inner_text()
    becomes(page, "() => document.querySelector('.patch-picture img').naturalWidth === 32")
    around = [(PLACE[0] + 1 + a, PLACE[1] + 3 + b) for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    found = page.locator(".others").first.locator("button").evaluate_all("es => es.map(e => +e.dataset.instance)")
    assert sorted(found) == sorted(number_of(viewed_slide("s1", "first"), tile) for tile in around)
    marker = page.locator(".marker").bounding_box()
    stage = page.locator(".stage").bounding_box()
    x, y = place_on_screen(page, (PLACE[0] + 1, PLACE[1] + 3))
    assert marker["x"] - stage["x"] + marker["width"] / 2 == pytest.approx(x, abs=2)
    assert marker["y"] - stage["y"] + marker["height"] / 2 == pytest.approx(y, abs=2)


def test_similar_patches_are_the_nearest_in_feature_space_and_lead_there(page):
    open_case(page, "s1")
    number = click_tile(page, (PLACE[0] + 1, PLACE[1] + 3))  # healthy: which of these are hot depends on the model
    case = viewed_slide("s1", "first")
    rows = features_of(case).astype(float)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    hot = np.argsort(-case.scores[:, 0], kind="stable")[: max(16, case.n // 10)]
    best = sorted((i for i in hot if i != number), key=lambda i: -(rows[i] @ rows[number]))[:6]
    similar = page.locator(".others").nth(1).locator("button")
    assert similar.evaluate_all("es => es.map(e => +e.dataset.instance)") == best
    similar.nth(2).click()
    inspected(page, best[2])
    still(page)
    stage, marker = page.locator(".stage").bounding_box(), page.locator(".marker").bounding_box()
    assert marker["x"] + marker["width"] / 2 == pytest.approx(stage["x"] + stage["width"] / 2, abs=3)
    assert marker["width"] > 25


def test_the_highest_scores_are_one_key_away(page):
    open_case(page, "s1")
    order = np.argsort(-viewed_slide("s1", "first").scores[:, 0], kind="stable")
    assert page.locator("#highest button").evaluate_all("es => es.map(e => +e.dataset.instance)") == order[:9].tolist()
    page.keyboard.press("3")
    inspected(page, order[2])
    page.keyboard.press("Escape")
    becomes(page, "() => !('instance' in document.querySelector('#inspector').dataset)")
    still(page)
    page.locator(".openseadragon-canvas").focus()
    page.keyboard.press("Enter")
    inspected(page, order[2])


def test_a_scan_is_scrolled_and_windowed(page, folder):
    open_case(page, "ct_0001")
    volume = open_volume(folder / "ct" / "scans" / "ct_0001")
    scores = Prediction.load(folder / "first" / "0004.npz").scores[:, 0]
    top = int(scores.argmax())
    seen_at(page, volume, top, "brain")  # a scan opens at its highest slice
    page.locator(".slice-stage").hover()
    page.mouse.wheel(0, 50)
    seen_at(page, volume, top + 1, "brain")
    page.locator(".slice-stage").focus()
    for key, k in (("Home", 0), ("ArrowDown", 1), ("PageDown", 6), ("ArrowUp", 5), ("End", 23)):
        page.keyboard.press(key)
        shows(page, ".slice-words", f"Slice {k + 1} of 24")
    slide(page, "#slice", 9)
    seen_at(page, volume, 8, "brain")
    for name in ("subdural", "bone"):
        page.select_option("#window", name)
        seen_at(page, volume, 8, name)
    page.keyboard.press("Escape")
    page.fill("#window-centre", "35")
    page.fill("#window-width", "50")
    seen_at(page, volume, 8, (35, 50))
    page.click("#highest button >> nth=1")
    second = int(np.argsort(-scores, kind="stable")[1])
    seen_at(page, volume, second, (35, 50))
    shows(page, ".slice-words", f"Slice {second + 1} of 24\nscore {scores[second]:.3f}\nrank 2 of 24\nlesion")
    inspected(page, second)


def seen_at(page, volume, k, preset):
    centre, width = PRESETS[preset] if isinstance(preset, str) else preset
    becomes(page, "t => document.querySelector('.slice').dataset.painted === t", f"{k}:{centre}/{width}")
    grey = window(np.rint(volume.slice_hu(k)), centre, width) * 255
    assert np.abs(slice_on_screen(page) - grey).max() <= 0.51


def slice_on_screen(page):
    width, height = page.locator(".slice").evaluate("e => [e.width, e.height]")
    return np.array(page.locator(".slice").evaluate(PIXELS)).reshape(height, width, 4)[..., 0]


def test_the_strip_shows_score_and_truth_of_every_slice_and_leads_there(page):
    open_case(page, "bare scan")
    image = screen(page, ".strip-stage")
    hot = np.nonzero(near(image, top_colour("viridis")))[1]
    left, right = 56, image.shape[1] - 14
    case = scan_case("bare scan")
    assert np.floor((hot - left) / (right - left) * 36).min() == int(case.scores.argmax())
    truth = np.nonzero(near(image, (0xD9, 0x5F, 0x02)))[1]
    middle = (truth - left) / (right - left) * 36
    assert middle.min() >= 20
    assert middle.max() <= 25
    page.locator(".bars").click(position={"x": left + (right - left) * 7.5 / 36, "y": 50})
    shows(page, ".slice-words", "Slice 8 of 36")
    page.select_option("#right-model", "1")
    settled(page, "bare scan", "0,1")
    says(page, ".strips h3", ["first", "second"])
    shows(page, ".slice-words", "Slice 8 of 36")


def test_cases_without_lattice_or_coordinates_are_shown_as_they_are(page, folder):
    open_case(page, "points")
    case = Prediction.load(folder / "first" / "0006.npz")
    slide(page, "#opacity", 100)
    page.keyboard.press("1")
    inspected(page, case.scores.argmax())
    still(page)
    box = page.locator(".marker").bounding_box()
    stage = page.locator(".stage").bounding_box()
    x, y = (int(box[a] - stage[a] + box[s] / 2) for a, s in (("x", "width"), ("y", "height")))
    assert near(screen(page, ".stage"), top_colour("viridis"), 12)[y, x]
    open_case(page, "loose")
    page.locator(".bars").click(position={"x": 60, "y": 80})
    loose = Prediction.load(folder / "first" / "0007.npz")
    inspected(page, loose.scores.argmax())
