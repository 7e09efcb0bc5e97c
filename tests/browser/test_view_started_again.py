"""A server that really stops, and another that really starts on its port, while the page is open in a browser."""

import pytest
from support.browser_actions import settled
from support.lesion_cases import save_all, slide_case
from support.screens import becomes, shows
from support.viewer_study import served

from smmil.viewer.data import ViewerData

EARLIER = "this page belongs to an earlier start of smmil view; reload it"


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """What is served first, and what after: another case before them, or other predictions under the same names."""
    folder = tmp_path_factory.mktemp("again")
    both = [slide_case("s1", 1, p=0.2), slide_case("s2", 2, y=0, p=0.7)]
    shifted = [slide_case("s0", 5, p=0.1), *both]
    changed = [slide_case("s1", 1, p=0.9), slide_case("s2", 2, y=0, p=0.3)]
    for name, several in {"before": both, "shifted": shifted, "changed": changed}.items():
        (folder / name).mkdir()
        save_all(folder / name, several)
    return lambda name: ViewerData.read([folder / name])


def opened_before_the_stop(page, study):
    """A page on s1 whose server has gone since; gives the port that is free now."""
    with served(study) as (address, _):
        page.goto(address)
        settled(page, "s1")
        becomes(page, "() => location.hash.includes('case=s1')")
    return int(address.rsplit(":", 1)[1])


def asks_to_reload(page):
    shows(page, "#trouble-text", EARLIER)
    becomes(page, "() => document.querySelector('#columns').hidden && document.querySelector('#dismiss').hidden")
    assert page.locator("#try-again").inner_text() == "Reload"
    becomes(page, "() => location.hash.includes('case=s2')")  # the address is written a little later
    page.click("#try-again")


def test_a_server_that_stopped_is_told_and_another_on_its_port_is_not_taken_for_it(careless, studies):
    port = opened_before_the_stop(careless, studies("before"))
    careless.locator("#cases li", has_text="s2").click()
    shows(careless, "#trouble-text", "The server does not answer.")
    assert careless.locator("#case-title").inner_text() == "s2"
    assert careless.locator(".pane").count() == 0
    with served(studies("shifted"), port):
        careless.click("#try-again")
        asks_to_reload(careless)
        settled(careless, "s2")
        becomes(careless, "() => document.querySelectorAll('.case-id').length === 3")


@pytest.mark.parametrize(("after", "outcome"), [("shifted", "false positive"), ("changed", "true negative")])
def test_a_page_that_did_not_notice_the_new_server_shows_nothing_of_it_until_it_is_reloaded(
    careless, studies, after, outcome
):
    port = opened_before_the_stop(careless, studies("before"))
    with served(studies(after), port):
        careless.locator("#cases li", has_text="s2").click()
        asks_to_reload(careless)
        settled(careless, "s2")
        assert careless.locator("#trouble").is_hidden()
        assert outcome in careless.locator("#case-facts").inner_text()
