"""The one boundary around every reader of annotations: whatever a damaged file raises leaves as a DataError."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.parsers.expat import ExpatError

from smmil.errors import DataError, MissingExtra, SmmilError

# Text is held in memory as a whole; the largest published annotation files have some 20 MB.
LARGEST_TEXT = 512 * 2**20
_DAMAGE = (
    *(OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError),
    *(EOFError, SyntaxError, AssertionError, struct.error, zlib.error, ExpatError),
)


@contextmanager
def explained(path: Path, what: str) -> Iterator[None]:
    """Inside, a library may raise what it likes; outside there is one line that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the column annotation") from None
    except MissingExtra:
        raise
    except SmmilError as problem:
        raise DataError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except _DAMAGE as problem:
        reason = " ".join(str(problem).split())[:200] or type(problem).__name__
        raise DataError(f"{path}: not readable as {what} ({reason}); copy or export it again") from None


def read_bytes(path: Path) -> bytes:
    """The content of a text file of sensible size."""
    if (size := path.stat().st_size) > LARGEST_TEXT:
        raise DataError(f"{size:,} bytes; an annotation has at most {LARGEST_TEXT:,}")
    return path.read_bytes()
