"""Five hundred hostile strings in every place of every address: nothing outside the table, never a crash."""

import itertools
import json
import random
from urllib.parse import quote

import pytest
from support.viewer_cases import client_of, small_study

SECRET = b"TOP-SECRET-CONTENT"
PATHS = {
    "/static/{}": ["view.css"],
    "/api/case/{}": ["0"],
    "/api/case/{}/coords": ["0"],
    "/api/case/{}/scores/{}": ["0", "0"],
    "/api/case/{}/truth": ["0"],
    "/api/case/{}/instance/{}": ["0", "1"],
    "/tiles/{}/{}/{}": ["0", "9", "0_0.jpg"],
    "/patch/{}/{}": ["0", "1.jpg"],
    "/slice/{}/{}": ["1", "1"],
    "/thumbnail/{}": ["0.png"],
    "/export/{}/{}/{}": ["0", "0", "csv"],
    "/{}": ["api"],
    "/api/{}": ["cases"],
}
QUERIES = [
    ("/patch/0/1.jpg", "size"),
    ("/api/case/0/instance/1", "model"),
    ("/export/0/0/csv", "threshold"),
    ("/api/cases", "anything"),
    ("/api/case/0", "study"),
    ("/", "token"),
]
REFUSED = {"token": (303,), "study": (409,)}


def hostile(tmp_path):
    """At least 500 strings, each once, that mean nothing in any table."""
    secret = str(tmp_path / "secret.txt")
    rng = random.Random(0)
    up = ["../", "..\\", "%2e%2e/", "%2e%2e%2f", "..%2f", "%252e%252e%252f", "..%c0%af", "..;/", "....//", "%2e%2e%5c",
          "..%00/", "%u002e%u002e/", "．．/", "‥/", "..%ef%bc%8f"]  # fmt: skip
    targets = ["etc/passwd", "secret.txt", "predictions/a/000.npz", "page.html", "windows/win.ini", "one.svs"]
    found = [step * depth + target for step in up for depth in (1, 3, 8) for target in targets]
    found += [secret, f"file://{secret}", f"//{secret}", secret.replace("/", "\\"), quote(secret, safe=""),
              "/etc/passwd", "\\\\host\\share", "C:\\boot.ini", "~root", "/proc/self/environ"]  # fmt: skip
    found += ["\0", "%00", "0%00", "0\0.jpg", "1%00.jpg", "0%0d%0aSet-Cookie:a=b", "\r\nHost: evil", "0\n", "0%20",
              " 0", "+0", "0+", "0%09", "%0a", "0;0", "0,0", "0|1", "0&1", "0#", "0?", "*", "**", "."]  # fmt: skip
    found += ["-1", "-0", "00", "01", "1e0", "0x0", "0b1", "1_0", "1.0", "٠", "１", "²", "Ⅷ", "𝟘", "०", "NaN", "inf",
              "-inf", "nan", "1e999", "None", "null", "true", "[]", "{}", "0.0", "999999999", "4294967296",
              "18446744073709551616", "9" * 40, "9" * 5000, "-" + "9" * 50, "1" + "0" * 300]  # fmt: skip
    found += [f"{a}_{b}.jpg" for a, b in itertools.product(["-1", "99", "1e1", "a", "", "٣", "9" * 30], repeat=2)]
    found += [f"{name}.{ending}" for name in ("label", "macro", "thumbnail", "0", "page") for ending in
              ("png.exe", "JPG", "svs", "npz", "py", "json", "html.bak", "dcm")]  # fmt: skip
    found += ["label", "macro", "associated", "properties", "__class__", "__proto__", "constructor", "server.py",
              "__init__.py", "../server.py", ".git", ".env", "favicon.ico", "robots.txt", "docs"]  # fmt: skip
    found += ["' OR '1'='1", "1; DROP TABLE cases;--", "1 UNION SELECT 1", '" OR ""="', "admin'--", "%27%20OR%201%3D1"]
    found += ["{{7*7}}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "{0.__class__}", "%s%s%n", "{}", "$(id)", "`id`", "|id",
              "${jndi:ldap://x/a}", "{{config}}", "%7b%7b7*7%7d%7d"]  # fmt: skip
    found += ["<script>alert(1)</script>", "%3Cscript%3Ealert(1)%3C/script%3E", "<img src=x onerror=alert(1)>",
              "\"><svg onload=alert(1)>", "javascript:alert(1)", "';alert(1);//", "<!--", "]]>"]  # fmt: skip
    found += ["é" * 50, "🙂", "\u202e0", "\ufeff0", "a\u0301", "\ud7ff", "%ff%fe", "%f0%28%8c%28", "%c0%80", "%", "%%",
              "%g1", "%1", "A" * 10_000, "%41" * 3000, "a/" * 500, "/" * 200, "?" * 50]  # fmt: skip
    letters = "0123456789./\\%_-<>'\"{}$;:?#&=+ \0é猫"
    while len(set(found)) < 520:
        found.append("".join(rng.choices(letters, k=rng.randint(3, 24))) + "~")
    return list(dict.fromkeys(found))


def wire(text):
    """As a careless client sends it: percent signs as they are, the rest encoded where HTTP has no letter for it."""
    return quote(text, safe="/%.:;,&=+$!*'()~@\\|<>{}[]\"#^`?-_").replace("?", "%3F").replace("#", "%23").encode()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("attacked")
    study = small_study(tmp_path)
    for place in (tmp_path, tmp_path / "slides", tmp_path / "predictions" / "a"):
        (place / "secret.txt").write_bytes(SECRET)
    yield tmp_path, client_of(study)
    study.close()


def assert_harmless(answer, request):
    assert answer.status_code in (200, 303, 400, 404, 405, 409, 422), (request, answer.status_code)
    assert SECRET not in answer.content, request
    assert b"root:" not in answer.content, request
    assert "set-cookie" not in answer.headers, request
    assert answer.headers.get("location", "/") == "/", request
    assert not any("\r" in v or "\n" in v for v in answer.headers.values()), request


def test_there_are_five_hundred_strings(tmp_path):
    assert len(hostile(tmp_path)) >= 500


@pytest.mark.parametrize("path", PATHS)
def test_no_hostile_string_in_a_path_is_answered_with_content(attacked, path):
    tmp_path, client = attacked
    usual = PATHS[path]
    for place in range(len(usual)):
        requests = []
        for text in hostile(tmp_path):
            parts = [good.encode() for good in usual]
            parts[place] = wire(text)
            requests.append((_filled(path, parts), b""))
        for request, answer in zip(requests, client.all(requests), strict=True):
            assert_harmless(answer, request)
            assert answer.status_code == 404, request
            assert set(json.loads(answer.content)) == {"error"}
            assert b"<" not in answer.content, request


def test_no_hostile_string_in_a_query_does_harm(attacked):
    tmp_path, client = attacked
    good = {path: client.get(path).content for path, _ in QUERIES}
    for path, name in QUERIES:
        # the number of digits decides whether one of them may be a threshold; the answer is then our own CSV
        requests = [(path.encode(), name.encode() + b"=" + wire(text)) for text in hostile(tmp_path)]
        for request, answer in zip(requests, client.all(requests), strict=True):
            assert_harmless(answer, request)
            assert answer.status_code in REFUSED.get(name, (200, 400)), request
            if answer.status_code == 200 and name != "threshold":
                assert answer.content == good[path], request


def _filled(path, parts):
    pieces = path.encode().split(b"{}")
    return b"".join(itertools.chain(*itertools.zip_longest(pieces, parts, fillvalue=b"")))


def test_an_address_with_more_behind_it_is_another_address(attacked):
    _, client = attacked
    for path in ("/", "/api/cases", "/api/case/0", "/tiles/0/9/0_0.jpg", "/thumbnail/0.png", "/export/0/0/csv"):
        for more in (b"%0a", b"%0d%0a", b"%00", b"%20", b"/", b"//", b"/.", b"%2f", b";", b".html", b"%c2%85"):
            assert client.raw(path.encode() + more).status_code == 404, (path, more)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_only_reading_is_answered(attacked, method):
    _, client = attacked
    for path in ("/", "/api/cases", "/tiles/0/9/0_0.jpg", "/nothing"):
        answer = client.get(path, method=method)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert client.get("/api/cases", method="HEAD").status_code == 200


def test_raw_garbage_on_the_wire_does_not_stop_the_server(attacked):
    from support.viewer_server import running

    tmp_path, client = attacked
    with running(client.app) as server:
        for text in hostile(tmp_path)[::6]:
            line = b"GET /tiles/0/9/" + text.encode("utf-8", "replace") + b" HTTP/1.1\r\n"
            answer = server.send_bytes(line + b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert not answer.startswith(b"HTTP/1.1 5"), text
            assert SECRET not in answer
            assert b"200 OK" not in answer.split(b"\r\n")[0], text
        for garbage in (b"\0" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000):
            assert not server.send_bytes(garbage + b"\r\n\r\n").startswith(b"HTTP/1.1 5")
        assert server.get("/api/cases")[0] == 200
