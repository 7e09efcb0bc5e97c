"""Atomic file writes, digests, and CSV tables that spreadsheets show without computing.

Tables that smmil reads back itself (manifests, labels) are written as they are: an id must come back unchanged.
"""

import csv
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from numbers import Number
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


_MOST_COLUMNS = 20_000
_MOST_CELLS = 20_000_000
_LOOKED_AT = 100


def not_too_wide(path: str | Path) -> Path:
    """The path of a CSV file; a ValueError when it has so many columns that pandas would take minutes over them."""
    with Path(path).open("rb") as file:
        filled = (part for line in file for part in line.splitlines() if part.strip())
        if (most := max((line.count(b",") for line in islice(filled, _LOOKED_AT)), default=0)) > _MOST_COLUMNS:
            raise ValueError(f"{most + 1:,} columns, and at most {_MOST_COLUMNS:,} are read; is this the right file?")
    return Path(path)


def read_parquet(path: str | Path) -> Any:
    """A Parquet table as a DataFrame; checksums and texts are verified, and an absurd size is a ValueError."""
    import pandas as pd
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, page_checksum_verification=True) as file:
        rows, columns = file.metadata.num_rows, file.metadata.num_columns
        if columns > _MOST_COLUMNS or rows * columns > _MOST_CELLS:
            raise ValueError(f"{rows:,} rows of {columns:,} columns; at most {_MOST_CELLS:,} cells are read")
        file.read().validate(full=True)
    return pd.read_parquet(path)


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


# What Excel, LibreOffice and Google Sheets take for the beginning of a formula, also in full width or after blanks.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r]")


def inert(text: str) -> str:
    """The text itself; with ' before it if a spreadsheet would take it for a formula.

    Carriage returns become line feeds: writers of CSV leave them unquoted, and a text could go on in a row of its own.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{lines}" if _FORMULA.match(text) else lines


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, exact: bool = False) -> None:
    """The rows as CSV with inert texts, atomically; without rows there is no file, and one of before is removed.

    exact  texts as they are, for tables that are read back
    """
    cells = [list(row) if exact else [cell(value) for value in row] for row in rows]
    if not cells:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *cells])
    write_text(path, text.getvalue())


def cell(value: Any) -> Any:
    """What to put into a table for people: numbers and gaps as they are, everything else as an inert text."""
    return value if value is None or isinstance(value, Number) else inert(str(value))
