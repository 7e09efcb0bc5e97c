"""Weights are fetched only when asked for, from a server that speaks like the hub, on loopback."""

import hashlib
import json
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.hub_weights import random_state, transformers_shapes
from support.tiny_encoders import tiles
from typer.testing import CliRunner

from smmil.cli import app
from smmil.cli.prepare import _fetch_once
from smmil.encoders import encoder_info, fetch_weights, find_weights, load_encoder, table
from smmil.errors import ConfigError, DataError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO, FILE = "lab/small", "model.safetensors"


@dataclass
class Hub:
    """What the server has and does, and what it was asked."""

    content: bytes
    commit: str = COMMIT
    stated: str | None = None
    break_after: int | None = None
    gate: int | None = None
    token: str | None = None
    history: tuple[str, ...] = ()
    ranges: list[str | None] = field(default_factory=list)
    address: str = ""
    moved: str = ""
    asked_by: list[str | None] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        server = self.server.hub
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            etag = server.stated or hashlib.sha256(server.content).hexdigest()
            entry = {"rfilename": FILE, "size": len(server.content), "blobId": "b", "lfs": {
                "sha256": etag, "size": len(server.content), "pointerSize": 134}}  # fmt: skip
            asked = path.partition("/revision/")[2]
            commit = asked if asked in server.history else server.commit
            self._send(200, json.dumps({"id": REPO, "sha": commit, "siblings": [entry]}).encode(), body)
        elif path == f"/{REPO}/resolve/{server.commit}/{FILE}":
            self._file(server, body)
        else:
            self._send(404, b"", body, {"X-Error-Code": "EntryNotFound"})

    def _file(self, server, body):
        if server.gate and self.headers.get("authorization") != f"Bearer {server.token}":
            self._send(server.gate, b"", body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"})
            return
        etag = server.stated or hashlib.sha256(server.content).hexdigest()
        facts = {"ETag": f'"{etag}"', "X-Linked-Etag": f'"{etag}"', "X-Repo-Commit": server.commit,
                 "X-Linked-Size": str(len(server.content)), "Accept-Ranges": "bytes"}  # fmt: skip
        content, status = server.content, 200
        if body and server.moved:
            self._send(302, b"", body, {"Location": server.moved})
            return
        if body:
            server.asked_by.append(self.headers.get("authorization"))
            asked = self.headers.get("range")
            server.ranges.append(asked)
            if asked:
                start = int(asked.removeprefix("bytes=").partition("-")[0])
                if start >= len(content):
                    self._send(416, b"", body)
                    return
                facts["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                content, status = content[start:], 206
        self._send(status, content, body, facts, server.break_after if body else None)

    def _send(self, status, content, body, facts=None, stop=None):
        self.send_response(status)
        for name, value in (facts or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[:stop])
            if stop is not None:
                self.wfile.flush()
                self.connection.close()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A small network of the row phikon-v2 in the layout of transformers."""
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("hub") / FILE
    save_file(random_state(transformers_shapes(None, 16, 17, 0, False, True)), path)
    return path.read_bytes()


def started(content):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.hub = Hub(content, address=f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def served(weights, monkeypatch, tmp_path):
    """The hub, a row whose weights lie there, and an empty folder of weights."""
    server = started(weights)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", server.hub.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.hub.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setenv("SMMIL_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    sizes = {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.5}
    row = replace(
        encoder_info("phikon-v2"), name="small", hub=REPO, files=(f"lab--small/{FILE}",), revision=None, pixels=64,
        dim=32, build={"init_values": 1.0, **sizes}, gate="approval",
    )  # fmt: skip
    monkeypatch.setitem(table._BY_NAME, "small", row)
    yield server.hub
    server.shutdown()
    server.server_close()


def test_weights_are_fetched_once_recorded_and_used(served, tmp_path):
    path = fetch_weights("small")
    assert path == tmp_path / "weights" / "lab--small" / FILE
    record = json.loads(path.with_name("fetched.json").read_text())
    assert record["revision"] == COMMIT
    assert record["sha256"] == hashlib.sha256(served.content).hexdigest()
    assert record["licence"] == encoder_info("small").licence
    assert fetch_weights("small") == path
    assert len(served.ranges) == 1  # the second call transfers nothing
    encoder = load_encoder("small", device="cpu")
    assert encoder.encode(tiles(2, 64)).shape == (2, 32)
    facts = encoder.provenance()
    assert (facts["commit"], facts["gate"], facts["name"]) == (COMMIT, "approval", "small")
    assert encoder.id == f"small@{facts['revision']}"


def test_an_interrupted_transfer_goes_on_where_it_stopped(served):
    served.break_after = half = len(served.content) // 2
    with pytest.raises(DataError, match=r"could not be fetched \(.* broke after .* which goes on where it stopped"):
        fetch_weights("small")
    assert find_weights(encoder_info("small")) is None
    served.break_after = None
    told = []
    path = fetch_weights("small", on_bytes=lambda *numbers: told.append(numbers))
    assert path.read_bytes() == served.content
    assert served.ranges == [None, f"bytes={half}-"]
    assert told[-1] == (len(served.content), len(served.content))
    assert sorted(file.name for file in path.parent.iterdir()) == ["fetched.json", FILE]


@pytest.mark.parametrize("more", [0, 10])
def test_a_part_that_is_whole_or_longer_is_fetched_anew(served, tmp_path, more):
    """The process was killed before the last step, or two of them went on with one part."""
    mark = hashlib.sha256(served.content).hexdigest()[:16]
    part = tmp_path / "weights" / "lab--small" / f"{FILE}.{mark}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(served.content + b"x" * more)
    assert fetch_weights("small").read_bytes() == served.content
    assert len(served.ranges) == 2
    assert not part.exists()


def test_the_token_is_for_the_hub_alone(served):
    other = started(served.content)
    served.moved = f"{other.hub.address}/{REPO}/resolve/{COMMIT}/{FILE}"
    assert fetch_weights("small", token="secret").read_bytes() == served.content
    assert other.hub.asked_by == [None]
    other.shutdown()
    other.server_close()


def test_an_address_that_is_no_network_is_refused(served, monkeypatch, tmp_path):
    import huggingface_hub

    class Elsewhere:
        location = tmp_path.as_uri()

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: Elsewhere)
    with pytest.raises(DataError, match="no address of the network"):
        fetch_weights("small")


def test_a_wrong_checksum_is_refused_and_the_file_removed(served):
    served.stated = "0" * 64
    with pytest.raises(DataError, match=r"checksum .* 0000000000000000… is stated; removed"):
        fetch_weights("small")
    assert find_weights(encoder_info("small")) is None


@pytest.mark.parametrize("status", [401, 403])
def test_gated_weights_say_where_to_ask_and_a_token_opens_them(served, status):
    served.gate, served.token = status, "secret"
    with pytest.raises(DataError, match=rf"does not let you in \({status}\); ask for access on huggingface"):
        fetch_weights("small")
    assert fetch_weights("small", token="secret").is_file()


def test_weights_that_changed_on_the_hub_or_here_are_refused(served):
    path = fetch_weights("small")
    served.commit = "f" * 40
    with pytest.raises(DataError, match="now has other weights than were fetched"):
        fetch_weights("small")
    path.write_bytes(served.content[:-1] + b"x")
    with pytest.raises(DataError, match="changed since it was fetched"):
        load_encoder("small", device="cpu")


def test_a_newer_commit_on_the_hub_does_not_move_what_was_fetched(served):
    path = fetch_weights("small")
    served.history, served.commit = (COMMIT,), "f" * 40
    assert fetch_weights("small") == path
    assert json.loads(path.with_name("fetched.json").read_text())["revision"] == COMMIT


def test_a_pinned_row_asks_for_its_commit_alone(served, monkeypatch):
    monkeypatch.setitem(table._BY_NAME, "small", replace(encoder_info("small"), revision=COMMIT))
    assert fetch_weights("small").is_file()
    assert json.loads(find_weights(encoder_info("small")).with_name("fetched.json").read_text())["revision"] == COMMIT


def test_without_a_network_the_error_is_one_line_with_the_command(served, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"could not be fetched .* put lab--small/model.safetensors into"):
        fetch_weights("small")
    words = r"no weights; put lab--small/model\.safetensors into .*, or run `smmil encoders fetch small` where there is"
    with pytest.raises(DataError, match=words + r" a network \(ask for access to huggingface\.co/lab/small"):
        load_encoder("small", device="cpu")
    assert not served.ranges  # loading never asks


def test_single_files_are_compared_with_the_checksum_in_their_name(served, monkeypatch, tmp_path):
    good = hashlib.sha256(b"weights").hexdigest()[:8]
    (tmp_path / "net.pth").write_bytes(b"weights")
    address = (tmp_path / "net.pth").as_uri()
    for mark, fits in ((good, True), ("00000000", False)):
        row = replace(encoder_info("resnet18"), name="one", files=(f"net-{mark}.pth",), url=address)
        monkeypatch.setitem(table._BY_NAME, "one", row)
        if fits:
            assert fetch_weights("one").read_bytes() == b"weights"
        else:
            with pytest.raises(DataError, match="00000000… is stated"):
                fetch_weights("one")


def test_what_has_no_address_is_not_fetched():
    with pytest.raises(ConfigError, match="cannot be fetched by name"):
        fetch_weights("efficientnet-lite0")


def test_the_verb_lists_shows_and_fetches(served):
    run = CliRunner().invoke
    listed = run(app, ["encoders"], env={"COLUMNS": "160"}).output
    assert "virchow2" in listed
    assert "CC-BY-NC-ND-4.0" in listed
    shown = run(app, ["encoders", "virchow2"]).output
    assert "--tile-um 112" in shown
    assert "class token ++ mean of patches" in shown
    assert "not here; smmil encoders fetch virchow2" in shown
    fetched = run(app, ["encoders", "fetch", "small"])
    assert fetched.exit_code == 0
    assert FILE in fetched.output
    with pytest.raises(ConfigError, match="no name"):
        run(app, ["encoders", "fetch"], catch_exceptions=False)


def test_prepare_fetches_what_is_missing_and_nothing_else(served, tmp_path):
    for _ in range(2):
        _fetch_once("small", None)
    assert len(served.ranges) == 1
    _fetch_once("efficientnet-lite0", None)
    with pytest.raises(ConfigError, match="--fetch: the weights are given"):
        _fetch_once("small", tmp_path)
