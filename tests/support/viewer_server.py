"""A real server on a real port, in a thread of the test."""

import http.client
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from smmil.viewer.lifecycle import _bind, _config


class Running:
    def __init__(self, port):
        self.port = port

    def get(self, path, headers=None, connection=None):
        """Status, headers and body; with an open connection that one is used."""
        one = connection or self.connect()
        one.request("GET", path, headers=headers or {})
        answer = one.getresponse()
        result = answer.status, dict(answer.getheaders()), answer.read()
        if connection is None:
            one.close()
        return result

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def send_bytes(self, data):
        """Everything the server says to these bytes until it hangs up or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as wire:
            got = b""
            try:
                wire.sendall(data)
                wire.shutdown(socket.SHUT_WR)
                while piece := wire.recv(65536):
                    got += piece
            except OSError:
                pass
            return got


@contextmanager
def running(app, **options):
    with _bind("127.0.0.1", 0) as listening:
        server = uvicorn.Server(_config(app, log_level="critical", lifespan="off", **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Running(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(10)
