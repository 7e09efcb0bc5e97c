"""Atomic file writes, checksums and other checks of files, and CSV tables that spreadsheets show without computing.

Tables that smmil reads back itself (manifests, labels) are written as they are: an id must come back unchanged.
"""

import csv
import hashlib
import io
import json
import math
import mmap
import os
import re
import secrets
import shutil
import socket
import stat
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from itertools import islice
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from smmil.errors import DataError, brief

_MARK = ".smmil-tmp-"
_ABSOLUTE = re.compile(r"(?<![^\s'\"(])/(?:[^\s/'\"]+/)+[^\s/'\":;,()]+")
_FAR = 2  # two paths that share only / or a folder in it, such as /home, lie far from each other
_OWNED = re.compile(rf"{re.escape(_MARK)}([0-9a-f]{{8}})-(\d{{1,10}})-(\d+)-.*", re.DOTALL | re.ASCII)
_PATIENCE_S = 86_400  # after which an untouched file of a process that cannot be asked is a leftover
_LONGEST_NAME = 180
_MOST_BYTES = 1 << 28
# Clocks of file systems are coarse: what was written less than this many nanoseconds ago may change unseen.
_SETTLED = 2 * 10**9
_CHECKED: dict[tuple[object, ...], Any] = {}
_OPENED: ContextVar[dict[Path, Any] | None] = ContextVar("_OPENED", default=None)  # HDF5 files, in `opening_once`
_LARGEST_PACKING = 1100  # times that zlib can make something smaller


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path in the same folder that replaces `path` when the block succeeds.

    The suffix is kept, since some writers choose their format by it. The first write of a process into a folder clears
    it of what killed processes left.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder where a file is to be written; move it away")
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_once(path.parent.absolute(), os.getpid())
    temporary = temporary_path(path)
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


def temporary_path(path: Path) -> Path:
    """A new name next to `path` that says which process it belongs to, for `remove_leftovers`."""
    process = os.getpid()
    owner = f"{_machine()}-{process}-{_own_start(process)}-{secrets.token_hex(4)}"
    return path.with_name(f"{_MARK}{owner}-{path.name[-40:]}")  # a long name must not become too long


def remove_leftovers(folder: str | Path) -> None:
    """Delete temporary files and folders in `folder` whose process has ended; those of living ones stay."""
    for path in Path(folder).glob(f"{_MARK}*"):
        if _in_use(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@cache
def _clear_once(folder: Path, _process: int) -> None:
    remove_leftovers(folder)


def _in_use(path: Path) -> bool:
    """Whether the process that the name of a temporary file tells may still be writing it."""
    owner = _OWNED.fullmatch(path.name)
    if owner is None:
        return False  # of a version that did not tell
    if owner[1] != _machine() or os.name != "posix":  # elsewhere a signal of 0 would end the process
        with suppress(OSError):
            return time.time() - path.stat().st_mtime < _PATIENCE_S
        return False
    try:
        os.kill(int(owner[2]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # of another user
    return _started(int(owner[2])) in (0, int(owner[3])) or owner[3] == "0"


@cache
def _machine() -> str:
    """This machine and, in a container, its own count of processes."""
    with suppress(OSError):
        return digest(socket.gethostname(), os.readlink("/proc/self/ns/pid"))[:8]
    return digest(socket.gethostname())[:8]


@cache
def _own_start(process: int) -> int:
    """When this process began; asked once, and again after a fork."""
    return _started(process)


def _started(process: int) -> int:
    """When a process began, in ticks of the clock; 0 where the system does not tell, -1 when it is dead."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()
        return -1 if state in (b"Z", b"X") else int(fields[18])
    except (OSError, ValueError, IndexError):
        return 0


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file atomically, with sorted keys."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_text(path: str | Path, most: int = _MOST_BYTES) -> str:
    """Read a text of at most `most` bytes; what cannot be read, or is no regular file, is a DataError."""
    path = Path(path)
    try:
        with need_file(path).open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise DataError(f"{path}: larger than {most >> 10:,} kB, which is more than such a file can need")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not readable as text ({problem})") from None


def read_json(path: str | Path, kind: type = object) -> Any:
    """Read a JSON file; what cannot be read, or is not of this kind, is a DataError."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: not readable as JSON ({problem}); write it again") from None
    if not isinstance(content, kind):
        raise DataError(f"{path}: expected a JSON {kind.__name__}, got {brief(content)}; write it again")
    return content


_MOST_COLUMNS = 20_000
_MOST_CELLS = 20_000_000
_LOOKED_AT = 100


def check_csv_width(path: str | Path) -> Path:
    """The path of a CSV file; a ValueError when it has so many columns that pandas would take minutes over them."""
    with need_file(Path(path)).open("rb") as file:
        filled = (part for line in file for part in line.splitlines() if part.strip())
        if (most := max((line.count(b",") for line in islice(filled, _LOOKED_AT)), default=0)) > _MOST_COLUMNS:
            raise ValueError(f"{most + 1:,} columns, and at most {_MOST_COLUMNS:,} are read; is this the right file?")
    return Path(path)


def read_parquet(path: str | Path) -> Any:
    """A Parquet table as a DataFrame; checksums and texts are verified, and an absurd size is a ValueError."""
    try:
        return _verified_parquet(need_file(Path(path)))
    except (TypeError, LookupError, AttributeError, NotImplementedError) as problem:  # types that no one knows
        raise ValueError(f"it cannot be made into a table ({problem})") from None


def _verified_parquet(path: Path) -> Any:
    import pandas as pd
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, page_checksum_verification=True) as file:
        rows, columns = file.metadata.num_rows, file.metadata.num_columns
        if columns > _MOST_COLUMNS or rows * columns > _MOST_CELLS:
            raise ValueError(f"{rows:,} rows of {columns:,} columns; at most {_MOST_CELLS:,} cells are read")
        _compare_footer(file, table := file.read())
    table.validate(full=True)
    frame = pd.read_parquet(path)
    if not set(map(str, frame.columns)) <= set(table.column_names):
        raise ValueError("its footer names columns in two ways; the file is damaged")
    return frame


def _compare_footer(file: Any, table: Any) -> None:
    """The footer of a Parquet file has no checksum, but it gives the numbers of rows and the names more than once."""
    columns = [file.schema.column(n) for n in range(file.metadata.num_columns)]
    groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
    rows_agree = file.metadata.num_rows == table.num_rows == sum(group.num_rows for group in groups)
    for n, column in enumerate(columns):
        chunks = [group.column(n) for group in groups]
        flat = column.max_repetition_level == 0
        rows_agree &= not flat or all(c.num_values == g.num_rows for c, g in zip(chunks, groups, strict=True))
        if any(chunk.path_in_schema != column.path for chunk in chunks):
            raise ValueError(f"its footer names column {brief(column.path)} in two ways; the file is damaged")
    if not rows_agree:
        raise ValueError("the numbers of rows in its footer contradict each other; the file is damaged")


class Pieces(NamedTuple):
    """A part of a digest that comes piece by piece, `nbytes` in all."""

    nbytes: int
    pieces: Iterable[memoryview]


def digest(*parts: bytes | memoryview | str | Pieces) -> str:
    """SHA-256 over the parts in order, each preceded by its length so that borders count."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        size = len(data) if isinstance(data, bytes) else data.nbytes
        total.update(size.to_bytes(8, "little"))
        for piece in data.pieces if isinstance(data, Pieces) else (data,):
            total.update(piece)
    return total.hexdigest()


def need_file(path: Path) -> Path:
    """The path; pipes, sockets and devices are refused: reading them may wait or go on for ever."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: is a pipe, socket or device and is not opened; give a regular file")
    return path


def check_once(path: Path, check: Callable[..., Any], *options: object, opened: Any = None) -> Any:
    """What `check(path, *options)` gives, which raises on damage; called once in this process while nothing changes.

    opened  given to `check` in place of the path: the same file, open already
    """
    found = need_file(path).stat()
    mark = (check, options, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if mark in _CHECKED:
        return _CHECKED[mark]
    answer = check(path if opened is None else opened, *options)
    if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED:
        _CHECKED[mark] = answer
    return answer


# torch lets a file of weights ask for as many zeros as it likes, with memory for all of them.
_ZEROS = re.compile(rb"c(__builtin__|builtins)\nbytearray\n")


def check_torch_archive(path: Path) -> None:
    """Compare the checksums in a `.pt` or `.pth` file; those of old versions are no zip archives and have none."""
    if not zipfile.is_zipfile(path):
        if path.stat().st_size == 0:
            raise DataError("is empty; copy or save it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            _refuse_zeros(content)
        return
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
            raise DataError("its parts claim more than the file can hold; torch does not write such files")
        if (wrong := archive.testzip()) is not None:
            raise DataError(f"{wrong} does not match its checksum, the file is damaged; copy or save it again")
        for name in archive.namelist():
            if name.endswith(".pkl"):
                _refuse_zeros(archive.read(name))


def _refuse_zeros(content: bytes | mmap.mmap) -> None:
    if _ZEROS.search(content):
        raise DataError("asks for a bytearray, which no weights need; save the state_dict() of the model")


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """An HDF5 file open for reading; one that would read from other files is refused before anything is followed.

    Inside `opening_once` a file that is open already is given again.
    """
    kept = _OPENED.get()
    if kept is not None and path in kept:
        yield kept[path]
        return
    import h5py

    file = h5py.File(need_file(path), "r", locking=False)
    try:
        check_once(path, _check_links, opened=file)
        if kept is not None:
            kept[path] = file
        yield file
    finally:
        if kept is None or path not in kept:
            file.close()


@contextmanager
def opening_once() -> Iterator[None]:
    """Inside, `open_hdf5` opens each file once; all of them are closed at the end."""
    kept: dict[Path, Any] = {}
    before = _OPENED.set(kept)
    try:
        yield
    finally:
        _OPENED.reset(before)
        for file in kept.values():
            file.close()


def _check_links(file: Any) -> None:
    """External links, external storage and virtual datasets let an HDF5 file show what lies in any other file."""
    from h5py import h5d, h5l, h5o

    own: list[bytes] = []

    def look(name: bytes, link: Any) -> bytes | None:  # h5py passes no exception through; an answer ends the visit
        own.extend([name] if link.type == h5l.TYPE_HARD else [])
        return None if link.type in (h5l.TYPE_HARD, h5l.TYPE_SOFT) else name

    if (link := file.id.links.visit(look, info=True)) is not None:
        raise DataError(f"{link.decode(errors='replace')!r} is a link into another file; copy the content into it")
    for name in own:
        if isinstance(found := h5o.open(file.id, name), h5d.DatasetID):
            made = found.get_create_plist()
            if made.get_layout() == h5d.VIRTUAL or made.get_external_count():
                shown = name.decode(errors="replace")
                raise DataError(f"{shown!r} lies in other files (virtual or external); copy the content into it")


def check_dataset(found: Any) -> Any:
    """A dataset of an open HDF5 file; one that claims more than the file can hold, or lacks parts, is refused.

    HDF5 reads what was never written as zeros, and gigabytes of them take no space in the file.
    """
    size, chunk, shape = found.nbytes, found.chunks, found.shape
    if chunk is None and found.id.get_storage_size() >= size:
        return found
    name, stored = found.name.lstrip("/"), found.id.get_num_chunks() if chunk else 0
    wanted = math.prod(-(-length // side) for length, side in zip(shape, chunk or shape, strict=True)) if size else 0
    claimed = max(size, stored * math.prod(chunk or ()) * found.dtype.itemsize)
    if claimed > _LARGEST_PACKING * Path(found.file.filename).stat().st_size:
        raise DataError(f"{name} claims {claimed:,} bytes, more than the file can hold; the file is damaged")
    if stored < wanted:
        missing = f"{wanted - stored:,} of {wanted:,} parts were never written and would read as zeros"
        raise DataError(f"{name}: {missing}; extract this case again")
    return found


def file_name(id_: str) -> str:
    """File name for the id of a case: characters that file systems refuse become %XX, long ids are cut."""
    name = re.sub(r'[\x00-\x1f/\\:*?"<>|%]|^\.', lambda m: f"%{ord(m[0]):02X}", id_) or "%00"
    if len(name.encode()) > _LONGEST_NAME:
        name = f"{name.encode()[: _LONGEST_NAME - 20].decode(errors='ignore')}-{digest(id_)[:16]}"
    return name


# What Excel, LibreOffice and Google Sheets take for the beginning of a formula, also in full width or after blanks.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r]")


def escape_formula(text: str) -> str:
    """The text itself; with ' before it if a spreadsheet would take it for a formula.

    Carriage returns become line feeds: writers of CSV leave them unquoted, and a text could go on in a row of its own.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{lines}" if _FORMULA.match(text) else lines


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, exact: bool = False) -> None:
    """The rows as CSV with escaped formulas, atomically; without rows there is no file, and one of before is removed.

    exact  texts as they are, for tables that are read back; in others absolute paths count from the table's folder
    """
    rows = list(rows) if exact else [[_from_here(value, path) for value in row] for row in rows]
    if not rows:
        path.unlink(missing_ok=True)
        return
    write_text(path, table_text(columns, rows, exact=exact))


def table_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, exact: bool = False) -> str:
    """What `write_rows` writes."""
    cells = [list(row) if exact else [cell(value) for value in row] for row in rows]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *cells])
    return text.getvalue()


def _from_here(value: Any, table: Path) -> Any:
    """A text whose absolute paths count from the folder of a table; of paths far away only the name of the file."""
    if not isinstance(value, str):
        return value
    return _ABSOLUTE.sub(lambda found: _relative(found[0], table.absolute().parent), value)


def _relative(path: str, folder: Path) -> str:
    common = Path(os.path.commonpath([path, folder]))
    return os.path.relpath(path, folder) if len(common.parts) > _FAR else os.path.basename(path)


def cell(value: Any) -> Any:
    """What to put into a table for people: numbers and gaps as they are, other values as escaped texts."""
    return value if value is None or isinstance(value, Number) else escape_formula(str(value))
