"""SHA256SUMS: one line per file of a package, as the program sha256sum writes and checks it."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from smmil.errors import DataError
from smmil.files import write_text

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([\w][\w.-]*)")


def write_sums(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    write_text(folder / SUMS, "".join(f"{_sum(folder / name)}  {name}\n" for name in names))


def check_sums(folder: Path, needed: Iterable[str], ours: Iterable[str]) -> None:
    """An error unless every listed file is there and unchanged; of `ours`, none may be there without being listed."""
    listed = _listed(folder / SUMS)
    missing = [name for name in needed if name not in listed]
    unlisted = [name for name in ours if name not in listed and (folder / name).exists()]
    if missing or unlisted:
        raise DataError(f"{folder / SUMS}: does not list {(missing or unlisted)[0]}; {_AGAIN}")
    for name, wanted in listed.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder}: {name} is missing; {_AGAIN}")
        if _sum(folder / name) != wanted:
            raise DataError(f"{folder / name}: is not the file that was packaged (its checksum differs); {_AGAIN}")


_AGAIN = "copy the package again, or renew SHA256SUMS if you changed it on purpose"


def _listed(path: Path) -> dict[str, str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"{path.parent}: no {SUMS} here; give a folder written by smmil package") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path}: not readable as text ({problem}); {_AGAIN}") from None
    found = [_LINE.fullmatch(line) for line in lines]
    wrong = [line for line, match in zip(lines, found, strict=True) if match is None]
    if wrong:
        raise DataError(f"{path}: got {wrong[0][:80]!r}, expected lines of sha256sum; {_AGAIN}")
    return {match[2]: match[1] for match in found if match is not None}


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
