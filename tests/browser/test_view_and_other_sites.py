"""Pages of other sites in the same browser: they can link to the viewer, but read, show and frame nothing of it."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.browser_actions import settled
from support.lesion_cases import save_all, slide_case
from support.screens import SIZE, becomes
from support.viewer_study import served

from smmil.viewer.data import ViewerData

TOKEN = "a-token-of-this-test"
ROUTES = ["/", "/api/cases", "/api/case/0", "/api/case/0/coords", "/thumbnail/0.png", "/export/0/0/csv",
          "/static/view.css"]  # fmt: skip
# Everything a page can do to get hold of an address; gives the ways that gave it anything.
TRY_ALL = """async (url) => {
    const load = (kind, how) => new Promise((done) => {
        const part = Object.assign(document.createElement(kind), how);
        part.onload = () => done(true);
        part.onerror = () => done(false);
        document.body.append(part);
    });
    const asked = (how) => fetch(url, how).then((answer) => answer.text()).then(() => true, () => false);
    const ways = {
        read: asked({ credentials: 'include' }), blind: asked({ mode: 'no-cors', credentials: 'include' }),
        image: load('img', { src: url }), shared: load('img', { crossOrigin: 'use-credentials', src: url }),
        script: load('script', { src: url }), style: load('link', { rel: 'stylesheet', href: url }),
    };
    const got = [];
    for (const [name, way] of Object.entries(ways)) if (await way) got.push(name);
    return got;
}"""


class Listening:
    """Stands before the viewer and notes what it was asked and whether the cookie came along."""

    def __init__(self, app):
        self.app, self.asked = app, []

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            cookie = any(name == b"cookie" for name, _ in scope["headers"])
            self.asked.append((scope["path"], scope["query_string"].decode(), cookie))
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """A viewer that needs a token: its address, and what it is asked."""
    folder = tmp_path_factory.mktemp("sites")
    save_all(folder, [slide_case("s1", 1, p=0.2)])
    heard = []

    def around(app):
        heard.append(Listening(app))
        return heard[0]

    with served(ViewerData.read([folder]), around=around, host="0.0.0.0", token=TOKEN) as (address, _):
        yield address, heard[0].asked


class _Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><p>elsewhere")

    def log_message(self, *_):
        pass


@contextmanager
def elsewhere():
    """A site of somebody else: the port it answers at."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def context(browser):
    opened = browser.new_context(viewport=SIZE)
    yield opened
    opened.close()


@pytest.fixture(params=["localhost", "127.0.0.1"])
def strange(request, context):
    """A page of another site (localhost), and of another port of the same one, to which cookies are sent."""
    with elsewhere() as port:
        page = context.new_page()
        page.goto(f"http://{request.param}:{port}/")
        yield page


def enter(context, address):
    """A reader who has opened the viewer with its token and may see everything now."""
    page = context.new_page()
    page.goto(f"{address}/?token={TOKEN}")
    settled(page, "s1")
    assert TOKEN not in page.url
    return page


def test_the_viewers_own_page_gets_everything(context, viewer):
    own = enter(context, viewer[0])
    got = {route: set(own.evaluate(TRY_ALL, viewer[0] + route)) for route in ROUTES}
    assert all({"read", "blind"} <= ways for ways in got.values())
    assert {"image", "shared"} <= got["/thumbnail/0.png"]
    assert "style" in got["/static/view.css"]


def test_a_page_of_another_site_gets_nothing(context, viewer, strange):
    address, asked = viewer
    enter(context, address)
    mark = f"from={strange.url.split('//')[1].rstrip('/')}"
    got = {route: strange.evaluate(TRY_ALL, f"{address}{route}?{mark}") for route in ROUTES}
    assert got == {route: [] for route in ROUTES}
    heard = [(path, cookie) for path, query, cookie in asked if query == mark]
    assert {path for path, _ in heard} == set(ROUTES)  # it was asked indeed
    assert any(cookie for _, cookie in heard) == ("localhost" not in strange.url)


def test_a_frame_on_another_site_stays_empty(context, viewer, strange):
    enter(context, viewer[0])
    strange.evaluate(
        """(url) => { document.body.append(Object.assign(document.createElement('iframe'), { src: url })); }""",
        viewer[0],
    )
    becomes(strange, "() => document.querySelector('iframe').contentDocument === null")  # not about:blank any more
    (frame,) = strange.main_frame.child_frames
    frame.wait_for_load_state()
    assert frame.url.startswith("chrome-error:")
    assert frame.locator("#stage").count() == 0


def test_a_link_on_another_site_opens_the_viewer_but_gives_no_hold_of_it(context, viewer, strange):
    strange.evaluate(
        """(url) => {
            const button = Object.assign(document.createElement('button'), { textContent: 'open' });
            button.onclick = () => { window.held = window.open(url); };
            document.body.append(button);
        }""",
        f"{viewer[0]}/?token={TOKEN}",
    )
    with context.expect_page() as waiting:
        strange.click("button")
    settled(waiting.value, "s1")  # the cookie came with the link
    becomes(strange, "() => window.held.closed")
    assert waiting.value.evaluate("() => window.opener") is None
