"""Commands in processes of their own, which die by SIGKILL at a chosen write or moment."""

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

# Seconds of epochs; files remembered by their time of change, where reading them took long.
CLOCKS = ("timing.csv", "digests.json", ".smmil-checked.json")
PROCESSES = multiprocessing.get_context("forkserver")
# What the commands import on their way, loaded once, so that each process begins at once. The one list of a test
# process: whoever sets another replaces it, for everybody.
PROCESSES.set_forkserver_preload([
    "smmil.cli", "smmil.train.run", "smmil.models.sm_ap", "smmil.models.clam", "smmil.prepare.pipeline",
    "sklearn.metrics", "sklearn.model_selection", "smmil.experiments.runner", "smmil.report.document",
    "smmil.exports.batch", "smmil.packaging", "torch._dynamo", "smmil.formats.convert",
    "smmil.foreign_weights.convert", "smmil.evaluate.folders", "matplotlib.pyplot",
])  # fmt: skip


def perform(words, folder, deadly, path):
    """Run `smmil WORDS` in a folder; before the `deadly`th step of a write (to sync, to replace) the process dies.

    How many steps there were is written to the file `steps`, and every use of the network to the file `network`.
    """
    sys.addaudithook(lambda event, given: _note_network(folder, event, given))
    sys.path[:] = path
    os.chdir(folder)
    tempfile.tempdir = str(folder / "tmp")
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    count = 0

    def counted(step):
        def call(*given, **named):
            nonlocal count
            count += 1
            if count == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*given, **named)

        return call

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    from smmil.cli import main

    sys.argv = ["smmil", *words]
    try:
        main()
    finally:
        (folder / "steps").write_text(str(count))


def _note_network(folder, event, given):
    """Called by Python before connections, messages and questions for names; sockets of the file system are none."""
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        if event == "socket.connect" and isinstance(given[1], (str, bytes)):
            return
        with (folder / "network").open("a") as file:
            file.write(f"{event} {given}\n")


def ask(folder):
    """Ask for an address under the watch of `perform`."""
    sys.addaudithook(lambda event, given: _note_network(folder, event, given))
    socket.getaddrinfo("localhost", 80)


def start(words, folder, deadly=None):
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    process = PROCESSES.Process(target=perform, args=(words, folder, deadly, list(sys.path)))
    process.start()
    return process


def finish(words, folder):
    """Run to the end without disturbance; the seconds it took and the steps it made."""
    begin = time.monotonic()
    process = start(words, folder)
    process.join()
    assert process.exitcode == 0, (folder / "log").read_text()
    assert not (folder / "network").exists(), (folder / "network").read_text()
    return time.monotonic() - begin, int((folder / "steps").read_text())


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but those with clock times; where it names the folder itself, the name is left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in CLOCKS)
    return {str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"") for path in files}


def leftovers(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in (*folder.rglob(".smmil-tmp-*"), *(folder / "tmp").iterdir())]
