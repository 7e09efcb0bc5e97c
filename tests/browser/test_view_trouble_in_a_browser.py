"""The viewer when things change under it: a server started again, gone, with damaged or refused images."""

import io
import json

from PIL import Image
from support.browser_actions import settled
from support.browser_checks import check_scale_bar
from support.screens import becomes, shows, still

ANOTHER = "this page belongs to an earlier start of smmil view; reload it"


def answered(page, pattern, change):
    """Answers of the server that fit the pattern arrive changed."""

    def pass_on(route):
        answer = route.fetch()
        content = answer.json()
        change(content)
        route.fulfill(response=answer, body=json.dumps(content))

    page.route(pattern, pass_on)


def test_every_question_names_the_start_of_the_server(careless, url):
    asked = []
    careless.on("request", lambda request: asked.append(request.url))
    answered(careless, "**/api/cases", lambda content: content.update(study="a&b"))
    careless.route("**/*study=*", lambda route: route.continue_(url=route.request.url.split("study=")[0].rstrip("?&")))
    careless.goto(url)
    settled(careless, "s1")
    careless.keyboard.press("1")
    careless.wait_for_selector(".patch-picture img")
    later = [u for u in asked if any(part in u for part in ("/api/case/", "/tiles/", "/thumbnail/", "/patch/"))]
    assert {part for part in ("/api/case/", "/tiles/", "/thumbnail/", "/patch/") if any(part in u for u in later)} == {
        "/api/case/", "/tiles/", "/thumbnail/", "/patch/"}  # fmt: skip
    assert [u for u in later if not u.endswith("study=a%26b")] == []


def test_a_page_of_an_earlier_start_shows_no_data_and_can_be_reloaded(careless, url):
    careless.goto(url)
    settled(careless, "s1")
    careless.route("**/api/case/**", lambda route: route.fulfill(status=409, json={"error": ANOTHER}))
    careless.locator("#cases li", has_text="s2").click()
    shows(careless, "#trouble-text", ANOTHER)
    assert careless.locator("#columns").is_hidden()
    assert careless.locator("#dismiss").is_hidden()
    careless.unroute("**/api/case/**")
    becomes(careless, "() => location.hash.includes('case=s2')")
    assert careless.locator("#try-again").inner_text() == "Reload"
    careless.click("#try-again")
    settled(careless, "s2")
    assert careless.locator("#trouble").is_hidden()


def test_a_case_that_answers_with_another_name_is_not_shown(careless, url):
    careless.goto(url)
    settled(careless, "s1")
    answered(careless, "**/api/case/*", lambda content: content.update(id="somebody else"))
    careless.locator("#cases li", has_text="s2").click()
    shows(careless, "#trouble-text", ANOTHER)
    assert careless.locator("#columns").is_hidden()


def test_a_case_that_does_not_come_leaves_nothing_of_the_case_before(careless, url):
    careless.goto(url)
    settled(careless, "s1")
    careless.keyboard.press("1")
    careless.wait_for_selector("#inspector .where")
    careless.route("**/api/**", lambda route: route.abort())
    careless.locator("#cases li", has_text="s2").click()
    careless.wait_for_selector("#trouble", state="visible")
    assert careless.locator("#case-title").inner_text() == "s2"
    assert "label 0" in careless.locator("#case-facts").inner_text()
    assert "false positive" in careless.locator("#case-facts").inner_text()
    assert careless.locator("li[aria-selected=true] .case-id").inner_text() == "s2"
    assert careless.locator("#highest button, .pane, #inspector .where").count() == 0
    assert careless.locator("#download-section").is_hidden()


def test_damaged_tiles_are_told_when_they_are_met(careless, url):
    words, met = "s1: part of the slide cannot be read", []
    careless.route("**/tiles/**", lambda route: (met.append(1), route.fulfill(status=422, json={"error": words})))
    answered(careless, "**/api/case/*", lambda content: content["notes"].extend([words] if met else []))
    careless.goto(url)
    settled(careless, "s1")
    shows(careless, "#case-notes", words)


def test_images_that_were_refused_are_not_called_missing(careless, url):
    def refuse(content):
        content.update(scan=None, notes=["ct_0001: has other slices than the prediction"])

    answered(careless, "**/api/case/*", refuse)
    careless.goto(f"{url}/#case=ct_0001")
    settled(careless, "ct_0001")
    words = "mages were given but refused: ct_0001: has other slices than the prediction"
    shows(careless, ".slice-stage .empty", f"I{words}")
    shows(careless, "#case-notes", f"i{words}")


def test_cases_that_were_left_out_are_told_beside_the_list(careless, url):
    answered(careless, "**/api/cases", lambda content: content.update(notes=["one file of first was left out"]))
    careless.goto(url)
    shows(careless, "#left-out", "one file of first was left out")


def test_a_click_may_take_its_time(page):
    settled(page, "s1")
    box = page.locator(".heat").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.wait_for_timeout(600)
    page.mouse.up()
    page.wait_for_selector("#inspector .where")


def test_keys_work_on_a_choice_list_unless_they_are_its_own(page):
    settled(page, "s1")
    page.locator("#palette").focus()
    page.keyboard.press("m")
    becomes(page, "() => document.querySelector('#palette').value === 'magma'")
    page.keyboard.press("h")  # goes on with the word, if anything
    assert page.locator("#heat").is_checked()
    page.wait_for_timeout(1100)
    page.keyboard.press("n")
    settled(page, "s2")
    page.keyboard.press("/")
    becomes(page, "() => document.activeElement.id === 'search'")


def test_two_panes_fit_a_small_screen(page):
    page.set_viewport_size({"width": 1280, "height": 720})
    page.select_option("#right-model", "1")
    settled(page, "s1", "0,1")
    for pane in (0, 1):
        box = page.locator(".heat").nth(pane).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    parts = "#case-facts, .pane header, .pane h3, .pane .readout, .tools"
    cut = page.locator(parts).evaluate_all("""(all) => all.filter((e) => e.scrollWidth > e.clientWidth + 1)
        .map((e) => e.className || e.id || e.textContent)""")
    assert cut == []


def test_the_map_shows_that_it_has_the_keyboard(page):
    settled(page, "s1")
    page.locator("#zoom-in").focus()
    still(page)
    page.locator(".openseadragon-canvas").focus()
    page.keyboard.press("Shift")
    ring = page.locator(".stage").first.evaluate(
        "e => [getComputedStyle(e, '::after').borderTopWidth, getComputedStyle(e, '::after').zIndex]"
    )
    assert ring == ["3px", "5"]


def test_the_words_of_the_scale_bar_stand_beside_it(page):
    settled(page, "s1")
    check_scale_bar(page)


def test_tall_small_maps_fit_their_box(careless, url):
    tall = io.BytesIO()
    Image.new("RGB", (40, 400), "red").save(tall, "PNG")
    careless.route("**/thumbnail/**", lambda route: route.fulfill(body=tall.getvalue(), content_type="image/png"))
    careless.goto(url)
    becomes(careless, "() => document.querySelector('.small-map img')?.naturalHeight === 400")
    box, picture = (careless.locator(s).first.bounding_box()["height"] for s in (".small-map", ".small-map img"))
    assert picture <= box
