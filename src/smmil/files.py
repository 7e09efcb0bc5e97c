"""Atomic file writing, JSON, digests and file names of cases."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smmil.errors import DataError

_MARK = ".smmil-tmp-"
_LONGEST_NAME = 180


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path in the same folder that replaces `path` when the block succeeds.

    The suffix is kept, since some writers choose their format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_MARK}{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: str | Path) -> None:
    """Delete temporary files that a killed process left in `folder`."""
    for path in Path(folder).glob(f"{_MARK}*"):
        path.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file atomically, with sorted keys."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; what cannot be read is a DataError."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not readable as JSON ({problem}); write it again") from None


def digest(*parts: bytes | memoryview | str) -> str:
    """SHA-256 over the parts in order, each preceded by its length so that borders count."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        total.update(size.to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def file_name(id_: str) -> str:
    """File name for the id of a case: characters that file systems refuse become %XX, long ids are cut."""
    name = re.sub(r'[\x00-\x1f/\\:*?"<>|%]|^\.', lambda m: f"%{ord(m[0]):02X}", id_) or "%00"
    if len(name.encode()) > _LONGEST_NAME:
        name = f"{name.encode()[: _LONGEST_NAME - 20].decode(errors='ignore')}-{digest(id_)[:16]}"
    return name
