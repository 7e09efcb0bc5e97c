"""The viewer's cases in a real browser: list, keys, links, downloads, hostile names, answers that do not come."""

import numpy as np
import pytest
from support.browser_actions import inspected, listed, open_case, settled
from support.lesion_cases import TILE
from support.screens import EVIL, SIZE, becomes, screen, shows, still
from support.viewer_study import viewed_slide


def test_worst_mistakes_first_then_sorted_searched_and_filtered(page):
    becomes(
        page, "() => [...document.querySelectorAll('.case-id')].map((e) => e.textContent).join().startsWith('s1,s2,')"
    )
    page.select_option("#sort", "high")
    becomes(page, "() => document.querySelector('.case-id').textContent === 's3'")
    page.select_option("#sort", "low")
    becomes(page, "n => document.querySelector('.case-id').textContent === n", EVIL)
    page.select_option("#sort", "id")
    becomes(page, "() => document.querySelectorAll('.case-id')[7].textContent === 's3'")
    page.select_option("#outcome-filter", "false negative")
    listed(page, ["s1"])
    shows(page, "#count", "1 of 8 cases")
    page.select_option("#outcome-filter", "")
    page.select_option("#kind-filter", "scan")
    listed(page, ["bare scan", "ct_0001"])
    page.select_option("#kind-filter", "")
    page.select_option("#label-filter", "0")
    page.fill("#search", "切")
    listed(page, [EVIL])
    page.fill("#search", "nobody")
    page.wait_for_selector("#nothing", state="visible")


def test_small_maps_load_and_show_heat(page):
    becomes(page, "() => document.querySelector('#cases li:nth-child(2) img')?.naturalWidth > 20")
    picture = screen(page, "#cases li:nth-child(2) .small-map")
    assert picture.reshape(-1, 3).std(0).max() > 20


def test_everything_can_be_done_with_the_keyboard(page):
    page.keyboard.press("/")
    page.keyboard.type("s")
    page.keyboard.press("Tab")
    page.locator("#cases li[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    settled(page, "s2")
    page.keyboard.press("p")
    settled(page, "s1")
    page.keyboard.press("c")
    becomes(page, "() => document.querySelector('#palette').value === 'cividis'")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#keys", state="hidden")
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, a')].filter((e) =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || e.title || e.labels?.length))
        .map((e) => e.outerHTML)""")
    assert nameless == []


def test_a_link_brings_another_reader_to_the_same_place(page, browser):
    open_case(page, "s1")
    page.keyboard.press("m")
    settled(page, "s1", "1")
    page.keyboard.press("2")
    case = viewed_slide("s1", "second")
    number = np.argsort(-case.scores[:, 0], kind="stable")[1]
    x, y = case.coords[number] + TILE // 2
    becomes(page, "text => location.hash.includes(text)", f"view={x}%2C{y}%2C")
    still(page)
    marker, address = page.locator(".marker").bounding_box(), page.url
    other = browser.new_page(viewport=SIZE)
    other.goto(address)
    settled(other, "s1", "1")
    inspected(other, number)
    there = other.locator(".marker").bounding_box()
    assert [there[k] for k in ("x", "y", "width")] == pytest.approx([marker[k] for k in ("x", "y", "width")], abs=3)
    other.close()
    page.fill("#search", "")
    page.locator("#cases li", has_text="s3").click()
    settled(page, "s3", "1")
    becomes(page, "() => location.hash.includes('case=s3')")
    page.go_back()
    settled(page, "s1", "1")


def test_hostile_ids_are_only_text(page):
    open_case(page, EVIL)
    assert page.locator("#case-title").inner_text() == EVIL
    assert page.locator("img[src='x']").count() == 0
    becomes(page, "() => location.hash.includes('onerror')")
    page.reload()
    settled(page, EVIL)
    with page.expect_download() as waiting:
        page.click("#downloads button[data-format=csv]")
    assert not set(waiting.value.suggested_filename) & set('<>"/\\')


def test_downloads_take_the_threshold_of_the_screen(page):
    import json

    open_case(page, "s1")
    page.click("#use-threshold")
    shows(page, "#download-words", "1.500")
    with page.expect_download() as waiting:
        page.click("#downloads button[data-format=geojson]")
    content = json.loads(waiting.value.path().read_text(encoding="utf-8"))
    tiles = content["features"] if isinstance(content, dict) else content
    assert len(tiles) > viewed_slide("s1", "first").n  # the tiles and at least one region above the threshold


def test_light_and_dark(page):
    page.evaluate("() => { document.documentElement.dataset.theme = 'light'; }")
    light = screen(page, ".case-head").mean()
    page.click("#theme")
    assert screen(page, ".case-head").mean() < 90 < 180 < light


def test_a_server_that_is_gone_is_told_calmly_and_asked_again(careless, url):
    careless.goto(url)
    settled(careless, "s1")
    careless.route("**/api/**", lambda route: route.abort())
    careless.locator("#cases li", has_text="s2").click()
    careless.wait_for_selector("#trouble", state="visible")
    shows(careless, "#trouble-text", "smmil view")
    careless.unroute("**/api/**")
    careless.click("#try-again")
    settled(careless, "s2")
    assert careless.locator("#trouble").is_hidden()


def test_an_error_of_the_server_is_told_in_its_own_words(careless, url):
    words = "s1.svs: <b>damaged</b>; copy it again"
    careless.route("**/api/case/*/instance/*", lambda route: route.fulfill(status=422, json={"error": words}))
    careless.goto(url)
    settled(careless, "s1")
    careless.keyboard.press("1")
    careless.wait_for_selector("#trouble", state="visible")
    assert careless.locator("#trouble-text").inner_text() == words
    careless.click("#dismiss")
    careless.wait_for_selector("#trouble", state="hidden")


def test_without_its_token_the_page_says_what_to_do(careless, url):
    careless.route("**/api/cases", lambda route: route.fulfill(status=401, json={"error": "a token is needed"}))
    careless.goto(url)
    shows(careless, "#trouble-text", "open the link")
