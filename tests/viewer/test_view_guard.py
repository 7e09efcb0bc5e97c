"""Who may look: the token, the cookie, the host name; and the headers that keep a browser careful."""

import re

import pytest
from support.viewer_cases import Client, client_of, small_study

from smmil.viewer.guard import _allowed_hosts, _is_loopback
from smmil.viewer.server import _create_app

TOKEN = "s3cret-token"
ADDRESSES = ["/", "/static/view.css", "/api/cases", "/api/case/0", "/api/case/0/coords", "/api/case/0/scores/0",
             "/api/case/0/truth", "/api/case/0/instance/0", "/tiles/0/9/0_0.jpg", "/patch/0/0.jpg", "/slice/1/0",
             "/export/0/0/csv", "/thumbnail/0.png"]  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    study = small_study(tmp_path_factory.mktemp("guarded"))
    yield study
    study.close()


def test_every_address_answers_on_this_machine_without_a_token(study):
    client = client_of(study)
    assert [client.get(path).status_code for path in ADDRESSES] == [200] * len(ADDRESSES)


def test_with_a_token_every_address_is_closed_to_those_who_do_not_know_it(study):
    client = client_of(study, host="0.0.0.0", token=TOKEN)
    wrong = ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é"]
    for path in [*ADDRESSES, "/nothing"]:
        assert client.get(path).status_code == 401
        for guess in wrong:
            for headers in ({"authorization": f"Bearer {guess}"}, {"cookie": f"smmil_view_x={guess}; token={guess}"}):
                assert client.get(path, headers=headers).status_code == 401
    for guess in ["", "x", TOKEN[:-1], TOKEN + "x", "%00", "&token=" + TOKEN[:-1]]:
        assert client.get(f"/?token={guess}").status_code == 401
    assert client.get(f"/api/cases?token={TOKEN}").status_code == 401


def test_the_token_is_sent_once_and_becomes_a_cookie_no_script_can_read(study):
    client = client_of(study, host="0.0.0.0", token=TOKEN)
    first = client.get(f"/?token={TOKEN}")
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert re.search("; HttpOnly", cookie)
    assert re.search("; SameSite=Lax", cookie)
    pair = cookie.split(";")[0]
    for path in ADDRESSES:
        for headers in (
            {"cookie": pair},
            {"cookie": f'odd={{"a":1}}; {pair}; b'},
            {"authorization": f"Bearer {TOKEN}"},
        ):
            assert client.get(path, headers=headers).status_code == 200


def test_the_token_never_stays_in_the_address(study):
    client = client_of(study, host="0.0.0.0", token=TOKEN)
    cookie = {"cookie": client.get(f"/?token={TOKEN}").headers["set-cookie"].split(";")[0]}
    for path in (f"/?token={TOKEN}", "/?token=old", "/?token="):
        again = client.get(path, headers=cookie)
        assert (again.status_code, again.headers["location"]) == (303, "/")
    assert "set-cookie" not in client.get("/?token=old", headers=cookie).headers
    free = client_of(study).get("/?token=of-another-start")
    assert (free.status_code, free.headers["location"]) == (303, "/")
    assert "set-cookie" not in free.headers
    assert client.get("/", headers=cookie).status_code == 200


def test_two_servers_on_one_machine_do_not_overwrite_each_others_cookie(study):
    cookies = [client_of(study, host="0.0.0.0", token=t).get(f"/?token={t}").headers["set-cookie"] for t in "ab"]
    assert cookies[0].split("=")[0] != cookies[1].split("=")[0]


def test_a_web_site_that_points_its_name_at_this_machine_is_refused(study):
    app = _create_app(study)
    for host in ("127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "localhost.", "[::1]:8000"):
        assert Client(app, host).get("/api/cases").status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8000", "", " ",
                 "127.0.0.1 evil", "127.0.0.1@evil", "127.0.0.1/evil", "192.168.0.7", "0.0.0.0", "[::1", "::1", None,
                 "127.0.0.1:8000:9", "127.0.0.1\0"):  # fmt: skip
        assert Client(app, host).get("/api/cases").status_code == 400


def test_bound_elsewhere_that_name_is_served_and_bound_everywhere_any_number(study):
    there = _create_app(study, host="viewer.lab", token=TOKEN)
    everywhere = _create_app(study, host="0.0.0.0", token=TOKEN)
    known = {"authorization": f"Bearer {TOKEN}"}
    ask = lambda app, host: Client(app, host).get("/api/cases", headers=known).status_code  # noqa: E731
    assert [ask(there, h) for h in ("viewer.lab:80", "VIEWER.LAB", "other.lab", "10.0.0.1")] == [200, 200, 400, 400]
    assert [ask(everywhere, h) for h in ("10.0.0.1:8000", "[fe80::1]", "other.lab")] == [200, 200, 400]


def test_two_host_headers_are_one_too_many(study):
    import asyncio

    statuses = []

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    lines = [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": lines}
    asyncio.run(_create_app(study)(scope, None, send))
    assert statuses == [400]


def test_only_addresses_of_this_machine_count_as_loopback():
    assert all(map(_is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(_is_loopback, ("0.0.0.0", "::", "192.168.1.2", "10.0.0.1", "example.org", "127.0.0.1.org", "")))
    assert _allowed_hosts("127.0.0.1") == {"127.0.0.1", "localhost", "::1"}


def test_every_answer_keeps_the_browser_careful(study):
    closed = client_of(study, host="0.0.0.0", token=TOKEN)
    client = client_of(study)
    answers = [client.get(path) for path in [*ADDRESSES, "/nothing", "/api/case/99"]] + [closed.get("/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cache-control"] in ("no-store", "private, no-cache")


def test_a_web_socket_gets_no_answer(study):
    import asyncio

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(_create_app(study)({"type": "websocket", "path": "/", "headers": []}, None, send))
    assert sent == []


def test_the_page_and_its_parts_come_from_a_fixed_table(study):
    client = client_of(study)
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in re.findall(r'(?:src|href)="/?static/([^"]+)"', page.text):
        assert client.get(f"/static/{name}").status_code == 200, name
    assert client.get("/static/openseadragon.min.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert client.get("/static/report_table.js").status_code == 404  # the report's own, not shared
