"""The one boundary around every reader: whatever a damaged file raises leaves as a DataError that names it."""

import pickle
import struct
import tokenize
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smmil.errors import DataError, SmmilError

# What h5py, numpy, torch and zarr raise on damaged files.
_DAMAGE = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
    pickle.UnpicklingError,
    EOFError,
    SyntaxError,
    AssertionError,
    ImportError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    struct.error,
)


@contextmanager
def boundary(path: Path) -> Iterator[None]:
    """Inside, a library may raise what it likes; outside there is one line about `path`."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path column of the manifest") from None
    except SmmilError as problem:
        raise DataError(str(problem) if str(problem).startswith(str(path)) else f"{path}: {problem}") from None
    except _DAMAGE as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"{path}: not readable as a feature file ({reason}); restore or extract it again") from None
