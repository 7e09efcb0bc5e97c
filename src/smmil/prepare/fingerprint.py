"""Whether a source is still the one a bag was made from, without reading gigabytes."""

from pathlib import Path

from smmil.errors import DataError
from smmil.files import digest

_BLOCK = 65536
_BLOCKS = 32


def fingerprint(path: str | Path) -> str:
    """Checksum of a file or folder by sizes and 32 blocks spread over every file; names and dates do not count.

    The header, the end and places between are read, so a file that was scanned, cut or compressed anew differs; a few
    flipped bits elsewhere need not. An .mrxs file counts together with the folder beside it.
    """
    path = Path(path)
    folder = path.with_suffix("") if path.suffix.lower() == ".mrxs" else path
    files = [path] if path.is_file() else []
    if folder.is_dir():
        files += [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
    try:
        return digest(*sorted(_file(file) for file in files))
    except OSError as problem:
        raise DataError(f"{problem.filename or path}: cannot be read ({problem.strerror}); check the file") from None


def _file(path: Path) -> str:
    size = path.stat().st_size
    last = max(0, size - _BLOCK)
    with path.open("rb") as file:
        parts = []
        for place in sorted({last * k // (_BLOCKS - 1) for k in range(_BLOCKS)}):
            file.seek(place)
            parts.append(file.read(_BLOCK))
    return digest(str(size), *parts)
