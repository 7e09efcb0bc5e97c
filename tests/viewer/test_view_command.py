"""Starting and stopping `smmil view`, and what it says when it cannot."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import nibabel
import numpy as np
import pandas as pd
import pydicom
import pytest
import typer
from support.export_makers import lesion_box
from support.viewer_cases import client_of, small_study
from typer.testing import CliRunner

from smmil.cli.view import view
from smmil.errors import ConfigError, MissingExtra
from smmil.viewer.lifecycle import _address_to_open, _bind, serve

app = typer.Typer()
app.command()(view)


@pytest.fixture
def folder(tmp_path):
    small_study(tmp_path).close()
    return tmp_path


def started(folder, *more):
    code = "import typer; from smmil.cli.view import view; typer.run(view)"
    command = [sys.executable, "-c", code, str(folder / "predictions"), "--slides", str(folder / "slides"), *more]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(folder)}
    return subprocess.Popen(
        [*command, "--no-open", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip


def until_address(process):
    """What it says, up to its address; a library may have something to say first on a new machine."""
    lines = [process.stdout.readline()]
    while lines[-1] and "http://" not in lines[-1]:
        lines.append(process.stdout.readline())
    return lines


def test_it_listens_on_this_machine_alone_answers_and_stops_cleanly_on_ctrl_c(folder):
    process = started(folder)
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        line = until_address(process)[-1]
        url = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
        deadline = time.monotonic() + 30
        with urllib.request.urlopen(f"{url}api/cases", timeout=30) as answer:
            assert b'"id":"one"' in answer.read()
        assert list(folder.glob("smmil-view-*"))
        if sys.platform == "linux":  # where every 127.x.x.x is this machine, and a server on all addresses would answer
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", int(url[:-1].rpartition(":")[2])), timeout=5)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[0]
        assert time.monotonic() < deadline + 30
    finally:
        timer.cancel()
        process.kill()
    assert process.returncode == 0
    assert "Traceback" not in rest
    assert "stopped" in rest
    assert not list(folder.glob("smmil-view-*"))


def test_a_prediction_that_cannot_be_read_is_named_in_the_terminal_and_the_others_are_shown(folder):
    broken = folder / "predictions" / "a" / "000.npz"
    broken.write_bytes(broken.read_bytes()[:-50])
    process = started(folder)
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        lines = until_address(process)
        with urllib.request.urlopen(f"{re.search(r'http://127.0.0.1:[0-9]+/', lines[-1])[0]}api/cases", timeout=30):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        timer.cancel()
        process.kill()
    assert [line.startswith(f"left out: {broken}: ") for line in lines[-2:]] == [True, False], lines


def test_bound_to_all_addresses_it_prints_a_token_and_wants_it(folder):
    process = started(folder, "--host", "0.0.0.0")
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        line = until_address(process)[-1]
        port, token = re.search(r"http://[^:]+:(\d+)/\?token=(\S{40,})", line).groups()
        url = f"http://127.0.0.1:{port}/api/cases"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=30)
        known = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(known, timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[0]
    finally:
        timer.cancel()
        process.kill()
    assert token not in rest  # no log of requests


def test_a_port_in_use_and_a_host_that_is_not_here_are_said_in_words(folder):
    with _bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: .*--port"):
            _bind("127.0.0.1", port)
    for host in ("no.such.host.invalid", "203.0.113.7", "é" * 80):
        with pytest.raises(ConfigError, match=rf"^--host {host}: .*127\.0\.0\.1"):
            _bind(host, 0)
    for wrong in (-1, 70_000):
        with pytest.raises(ConfigError, match="65535"):
            _bind("127.0.0.1", wrong)
    with pytest.raises(ConfigError, match="max-cache-mb"):
        serve([folder / "predictions"], port=0, max_cache_mb=0)


def test_answers_do_not_wait_for_the_receipt_of_the_last_one():
    with _bind("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # the condition on which asyncio sets TCP_NODELAY


def test_the_address_to_open_is_one_a_browser_understands():
    assert _address_to_open("127.0.0.1", 8000, None) == "http://127.0.0.1:8000/"
    assert _address_to_open("::1", 80, None) == "http://[::1]:80/"
    assert re.fullmatch(r"http://[^/]+:5/\?token=t", _address_to_open("0.0.0.0", 5, "t"))


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_which_to_install(folder, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"smmil\[view\]"):
        serve([folder / "predictions"], port=0)


def test_the_help_teaches_by_example():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for word in ("smmil view runs/first --slides slides/", "--bags", "--host", "token", "Ctrl-C", "research use"):
        assert word in shown


def test_importing_the_viewer_loads_neither_torch_nor_a_web_server():
    code = (
        "import sys, smmil.viewer, smmil.cli.view; print(sorted({'torch', 'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_downloads_are_the_exports_with_the_threshold_that_was_set(tmp_path):
    import io
    import json

    client = client_of(small_study(tmp_path, "leica"))
    table = pd.read_csv(io.BytesIO(client.get("/export/0/0/csv?threshold=0.5").content))
    hot = table[table["positive"]]
    left, top, right, bottom = lesion_box("leica")
    assert (hot["x"].min(), hot["y"].min(), hot["x"].max() + 32, hot["y"].max() + 32) == (left, top, right, bottom)
    shapes = json.loads(client.get("/export/0/0/geojson?threshold=0.5").content)
    assert len(shapes["features"]) > 80  # tiles and the region above the threshold
    assert client.get("/export/0/1/tiff").content[:4] in (b"II*\0", b"II+\0", b"MM\0*")
    assert client.get("/export/0/0/dicom-pm").status_code == 404  # the slide is no DICOM
    assert client.get("/export/1/1/csv").status_code == 404  # the second model does not know the scan


def test_downloads_of_a_scan_keep_its_geometry(tmp_path):
    client = client_of(small_study(tmp_path))
    assert client.get("/api/case/1").json()["exports"] == ["csv", "parquet", "png", "nifti", "dicom-seg", "dicom-pm"]
    (tmp_path / "a.nii.gz").write_bytes(client.get("/export/1/0/nifti").content)
    heat = np.asarray(nibabel.load(tmp_path / "a.nii.gz").dataobj)
    assert heat.shape == (7, 9, 6)
    assert np.nanmax(heat) == 3.0
    missing = client.get("/export/1/0/dicom-seg")
    assert missing.status_code == 400
    assert "threshold" in missing.json()["error"]
    (tmp_path / "a.dcm").write_bytes(client.get("/export/1/0/dicom-seg?threshold=1").content)
    assert pydicom.dcmread(tmp_path / "a.dcm").Modality == "SEG"
    assert client.get("/api/case/1").json()["exports_need_threshold"] == ["dicom-seg"]
