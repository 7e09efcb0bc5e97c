"""The viewer's address and threshold in a real browser: a link means the same for all readers, or says it does not."""

import numpy as np
import pytest
from support.browser_actions import open_case, settled
from support.screens import SIZE, becomes, expected_colours, painted, shows, slide, watched
from support.viewer_study import viewed_slide


def above(page):
    """Threshold and number of instances that reach it, as the pane tells them."""
    cut, count = page.locator(".above").first.inner_text().removeprefix("≥ ").split(": ")
    return float(cut), int(count.split()[0])


def test_the_page_begins_with_the_given_threshold(page):
    open_case(page, "s1")
    case = viewed_slide("s1", "first")
    assert above(page) == (1.5, int((case.scores >= 1.5).sum()))
    assert np.abs(painted(page) - expected_colours(case, threshold=1.5)).max() <= 4
    becomes(page, "() => location.hash.includes('threshold=1.5')")


def test_a_threshold_is_a_score_and_stays_the_same_from_case_to_case_and_reader_to_reader(page, browser):
    open_case(page, "s1")
    slide(page, "#threshold", 700)
    cut, _ = above(page)
    page.fill("#search", "")
    page.locator("#cases li", has_text="s3").click()
    settled(page, "s3")
    assert above(page)[0] == cut
    page.select_option("#scale", "all")
    assert above(page)[0] == cut
    becomes(page, "() => location.hash.includes('scale=all') && location.hash.includes('case=s3')")
    other = browser.new_page(viewport=SIZE)
    other.goto(page.url)
    settled(other, "s3")
    assert above(other) == above(page)
    assert other.locator("#scale").input_value() == "all"
    other.close()


def test_at_the_end_of_the_slider_the_highest_score_stays_and_at_its_beginning_all_do(page):
    open_case(page, "s1")
    slide(page, "#threshold", 1000)
    shows(page, ".above", ": 1 of 332")
    slide(page, "#threshold", 0)
    becomes(page, "() => document.querySelector('.above').textContent === ''")
    becomes(page, "() => location.hash.includes('threshold=off')")
    page.reload()
    settled(page, "s1")
    assert page.locator("#threshold-value").inner_text() == "off"


def test_a_model_beside_is_cut_at_the_same_share_of_its_own_scores(page):
    open_case(page, "s1")
    slide(page, "#threshold", 600)
    cut, _ = above(page)
    page.select_option("#right-model", "1")
    settled(page, "s1", "0,1")
    spans = page.evaluate("() => fetch('/api/cases').then((a) => a.json()).then((a) => a.models.map((m) => m.range))")
    share = (cut - spans[0][0]) / (spans[0][1] - spans[0][0])
    beside = float(page.locator(".above").nth(1).inner_text().removeprefix("≥ ").split(":")[0])
    assert beside == pytest.approx(spans[1][0] + share * (spans[1][1] - spans[1][0]), abs=2e-3)


@pytest.mark.parametrize(
    ("link", "words"),
    [("case=s1&model=tenth", "model tenth is not here"), ("case=s1&beside=tenth", "model tenth is not here"),
     ("case=s1&patch=332", "instance 332 is not in s1, which has 332"),
     ("case=ct_0001&slice=99", "slice 99 is not in")],
)  # fmt: skip
def test_a_link_that_names_what_is_not_there_says_so(browser, url, link, words):
    with watched(browser, f"{url}/#{link}", "#stage[data-ready]", (f"{url}/", f"blob:{url}/")) as page:
        shows(page, "#notice-text", words)
        page.click("#notice-read")
        page.wait_for_selector("#notice", state="hidden")


def test_a_link_to_an_unknown_case_shows_no_other_case(page, url):
    settled(page, "s1")
    page.goto(f"{url}/#case=<b>nobody</b>")
    shows(page, "#notice-text", "case <b>nobody</b> is not among these predictions")
    assert page.locator("#case-title").inner_text() == ""
    assert page.locator(".pane").count() == page.locator("li[aria-selected=true]").count() == 0
    page.reload()
    shows(page, "#notice-text", "nobody")
    page.keyboard.press("n")
    settled(page, "s1")
    assert page.locator("#notice").is_hidden()


def test_slices_are_counted_from_one_in_the_address_and_in_the_inspector(page, url):
    page.goto(f"{url}/#case=ct_0001&slice=7")
    settled(page, "ct_0001")
    shows(page, ".slice-words", "Slice 7 of 24")
    shows(page, "#inspector .where", "slice 7")
    assert "#" not in page.locator("#inspector .where").inner_text()
    page.locator(".slice-stage").focus()
    page.keyboard.press("ArrowDown")
    becomes(page, "() => location.hash.includes('slice=8') && !location.hash.includes('patch')")
    shows(page, "#announcement", "slice 8:")
