"""A browser, a running viewer and a page of it, for all browser tests.

Browser tests mostly wait: `make test` takes the files of EVERY_RUN, `make test-pages` (and CI) all of them.
"""

from pathlib import Path

import pytest
from support.screens import CHROMIUM, FLAGS, SIZE, watched
from support.viewer_study import served, write_study

HERE = Path(__file__).parent
EVERY_RUN = {"test_report_in_a_browser.py", "test_view_in_a_browser.py", "test_promise_in_a_browser.py"}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.path.name not in EVERY_RUN:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("view")


@pytest.fixture(scope="session")
def wishes(folder):
    """What to serve, for Study.read."""
    pytest.importorskip("starlette", reason="needs the viewer: pip install 'smmil[view]'")
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'smmil[view]'")
    return {**write_study(folder), "threshold": 1.5}


@pytest.fixture(scope="session")
def url(wishes):
    """Where the viewer answers."""
    from smmil.viewer.data import ViewerData

    with served(ViewerData.read(**wishes)) as (address, _):
        yield address


@pytest.fixture(scope="package")
def browser():
    """One Chromium for all browser tests of a process, gone before other tests run: its driver occupies the event loop.

    Every page has a context of its own: cookies, storage and caches of one test are not those of another.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser, url):
    with watched(browser, url, "#stage[data-ready]", (f"{url}/", f"blob:{url}/")) as opened:
        yield opened


@pytest.fixture
def careless(browser):
    """A page on which answers may fail: only the program's own mistakes count."""
    opened = browser.new_page(viewport=SIZE)
    trouble = []
    opened.on("pageerror", lambda problem: trouble.append(str(problem)))
    yield opened
    opened.close()
    assert trouble == []
