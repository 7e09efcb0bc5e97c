"""CSV tables that people open in a spreadsheet: every cell is shown as it is, none is computed.

Tables that smmil reads back itself (manifests, labels) are written as they are: an id must come back unchanged.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

from smmil.files import write_text

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
