"""The folder downloads are written to on their way out; what a killed viewer left behind is swept away."""

import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

from smmil.files import digest

_NAME = re.compile(r"smmil-view-([0-9a-f]{8})-([0-9]{1,10})-.+", re.ASCII)


def scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    """An empty folder whose name holds the machine and the process it belongs to; those of dead processes go."""
    sweep(Path(tempfile.gettempdir()))
    return tempfile.TemporaryDirectory(prefix=f"smmil-view-{_machine()}-{os.getpid()}-")


def sweep(folder: Path) -> None:
    """Delete the folders of viewers of ours that run no more; processes of other machines cannot be asked."""
    if os.name != "posix":
        return  # only there can a process be asked whether it lives without a library
    for entry in folder.glob("smmil-view-*"):
        found = _NAME.fullmatch(entry.name)
        if found is not None and found[1] == _machine() and not _lives(int(found[2])) and _is_ours(entry):
            shutil.rmtree(entry, ignore_errors=True)


def _machine() -> str:
    """Containers may share a folder for temporary files, but count their processes on their own."""
    return digest(socket.gethostname())[:8]


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _is_ours(entry: Path) -> bool:
    try:
        return entry.is_dir() and not entry.is_symlink() and entry.stat().st_uid == os.getuid()
    except OSError:
        return False
