"""Clients that begin a request and do not finish it are hung up on; all others are served as before."""

import socket
import time

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.viewer_server import running

PATIENCE = 0.4
HALF = {
    "nothing": b"",
    "part of a line": b"GET /api/ca",
    "headers without end": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: ",
    "a body that does not come": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nab",
    "a second request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /api",
}


def slow(_):
    time.sleep(4 * PATIENCE)
    return PlainTextResponse("slow")


@pytest.fixture(scope="module")
def server():
    routes = [Route("/", lambda _: PlainTextResponse("quick"), methods=["GET", "POST"]), Route("/slow", slow)]
    with running(Starlette(routes=routes), patience=PATIENCE, timeout_keep_alive=60) as running_server:
        yield running_server


def hung_up_after(wire, drip=b"", at_most=8):
    """Seconds until the server hangs up; a byte of `drip` is sent every tenth of a second."""
    start = time.monotonic()
    wire.settimeout(0.1)
    while time.monotonic() - start < at_most:
        try:
            if wire.recv(65536) == b"":
                break
        except TimeoutError:
            wire.send(drip)
        except OSError:
            break
    return time.monotonic() - start


@pytest.mark.parametrize("drip", [b"", b"a"], ids=["silent", "dripping"])
@pytest.mark.parametrize("half", HALF)
def test_a_half_sent_request_does_not_hold_the_server(server, half, drip):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        wire.sendall(HALF[half])
        assert hung_up_after(wire, drip) < 5


@pytest.mark.slow
def test_the_patience_of_smmil_view_itself_is_some_twenty_seconds():
    with running(Starlette()) as server, socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        wire.sendall(HALF["headers without end"])
        assert 5 < hung_up_after(wire, at_most=30) < 25


def test_a_slow_answer_is_waited_for(server):
    assert server.get("/slow")[2] == b"slow"


def test_a_connection_in_use_stays_open(server):
    connection = server.connect()
    connection.connect()
    wire = connection.sock
    for _ in range(6):
        time.sleep(PATIENCE / 2)
        assert server.get("/", connection=connection)[2] == b"quick"
    assert connection.sock is wire
    connection.close()
