"""Small files of a study: CSV tables as text, and instance labels (one whole number per instance, -1 unknown)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smmil.errors import DataError, suggest

_SIGNS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def first_few(items: Sequence[str], most: int = 5) -> str:
    """The first items of a list, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def read_text_table(path: str | Path, absent: str, **options: Any) -> pd.DataFrame:
    """A CSV file with every cell as text, spaces around column names removed; `absent`: advice if missing."""
    try:
        table = pd.read_csv(
            path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True, **options
        )
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {absent}") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: the table is empty; {absent}") from None
    except (OSError, ValueError, LookupError) as problem:
        reason = _other_sign([_first_line(path)]) or f"not readable as a table ({' '.join(str(problem).split())})"
        raise DataError(f"{path}: {reason}") from None
    return table.rename(columns=lambda name: str(name).strip())


def need_columns(path: str | Path, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """An error that names the first column that is missing, or the separator used instead of commas."""
    for column in columns:
        if column not in table:
            names = list(map(str, table.columns))
            reason = _other_sign(names) or f"column {column!r} is missing; {suggest(column, names)}"
            raise DataError(f"{path}: {reason}")


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


def read_instance_labels(path: str | Path) -> np.ndarray:
    """The labels in a .npy file, or in the column `label` of a .csv file, as int64."""
    path = Path(path)
    readers = {".npy": _from_npy, ".csv": _from_csv}
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: instance labels must be .npy or .csv (column 'label'), got {path.suffix or 'no ending'!r}"
        )
    try:
        labels = readers[path.suffix.lower()](path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the column instance_labels of the manifest") from None
    except (OSError, ValueError, TypeError, EOFError, SyntaxError) as problem:
        reason = " ".join(str(problem).split())
        raise DataError(f"{path}: not readable as instance labels ({reason}); write it again") from None
    return _checked(path, labels)


def _from_npy(path: Path) -> np.ndarray:
    return np.load(path, allow_pickle=False)


def _from_csv(path: Path) -> np.ndarray:
    table = pd.read_csv(path)
    if "label" not in table:
        raise DataError(f"{path}: there is no column 'label'; {suggest('label', map(str, table.columns))}")
    return table["label"].to_numpy()


def _checked(path: Path, labels: np.ndarray) -> np.ndarray:
    if labels.ndim != 1 or labels.dtype.kind not in "iufb":
        raise DataError(f"{path}: expected one number per instance, got {labels.dtype} of shape {labels.shape}")
    values = labels.astype(np.float64)
    wrong = np.flatnonzero(~((values == np.rint(values)) & (values >= -1) & (values < 2**53)))
    if len(wrong):
        raise DataError(f"{path}: row {wrong[0]} is {labels[wrong[0]]}; instance labels are -1 (unknown), 0, 1, …")
    return labels.astype(np.int64)


def check_instance_labels(name: str, labels: np.ndarray, n: int, y: int | None) -> None:
    """An error when the labels do not fit the bag: wrong number, or a positive instance in a negative bag."""
    if len(labels) != n:
        raise DataError(f"{name}: {len(labels):,} instance labels for {n:,} instances; write the labels again")
    positive = np.flatnonzero(labels > 0)
    if y == 0 and len(positive):
        raise DataError(
            f"{name}: {len(positive):,} positive instances (first: row {positive[0]}) in a bag with label 0; "
            "correct the bag label or the instance labels"
        )
