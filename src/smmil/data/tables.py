"""CSV tables as text: one way to read them, and words for what is wrong with them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from smmil.errors import DataError, suggest

_SIGNS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_text_table(path: str | Path, absent: str, **options: Any) -> pd.DataFrame:
    """A CSV file with every cell as text, spaces around column names removed; `absent` says what to do without it."""
    try:
        table = pd.read_csv(
            path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True, **options
        )
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {absent}") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: the table is empty; {absent}") from None
    except (OSError, ValueError, LookupError) as problem:
        told = _other_sign([_first_line(path)]) or f"not readable as a table ({' '.join(str(problem).split())})"
        raise DataError(f"{path}: {told}") from None
    return table.rename(columns=lambda name: str(name).strip())


def need_columns(path: str | Path, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """An error that names the first column that is missing, or the sign that stands where commas should."""
    for column in columns:
        if column not in table:
            names = list(map(str, table.columns))
            told = _other_sign(names) or f"column {column!r} is missing; {suggest(column, names)}"
            raise DataError(f"{path}: {told}")


def _other_sign(names: Iterable[str]) -> str | None:
    joined = "".join(names)
    for sign, word in _SIGNS.items():
        if sign in joined:
            return f"columns are separated by {word} ({sign!r}), not by commas; save the table with commas"
    return None


def _first_line(path: str | Path) -> str:
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
            return file.readline(100_000)
    except OSError:
        return ""
