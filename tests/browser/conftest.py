"""A running viewer and a page of it, for all its browser tests."""

import pytest
from browser.reading import SIZE
from browser.screens import CHROMIUM, FLAGS
from browser.viewing import served, write_study


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("view")


@pytest.fixture(scope="session")
def url(folder):
    """Where the viewer answers."""
    pytest.importorskip("starlette", reason="needs the viewer: pip install 'smmil[view]'")
    pytest.importorskip("uvicorn", reason="needs the viewer: pip install 'smmil[view]'")
    from smmil.viewer.study import Study

    wishes = write_study(folder)
    with served(Study.read(wishes.pop("places"), threshold=1.5, **wishes)) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser, url):
    """The opened viewer; at the end nothing may have gone wrong and nothing may have left the machine."""
    opened = browser.new_page(viewport=SIZE)
    trouble, asked = [], []
    opened.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda problem: trouble.append(str(problem)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(url)
    opened.wait_for_selector("#stage[data-ready]")
    yield opened
    assert opened.title() != "broken"
    opened.close()
    assert trouble == []
    assert [address for address in asked if not address.startswith((f"{url}/", f"blob:{url}/"))] == []


@pytest.fixture
def careless(browser, url):
    """A page on which answers may fail: only the program's own mistakes count."""
    opened = browser.new_page(viewport=SIZE)
    trouble = []
    opened.on("pageerror", lambda problem: trouble.append(str(problem)))
    yield opened
    opened.close()
    assert trouble == []
