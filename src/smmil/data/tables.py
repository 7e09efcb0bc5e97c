"""Tables of a study as text with the checks of a manifest, and instance labels (one whole number each, -1 unknown)."""

import json
import os
import shlex
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import pandas as pd

from smmil.errors import DataError, MissingExtra, brief, suggest
from smmil.files import check_csv_width, need_file
from smmil.formats.content import begins_formula

COLUMNS = ("id", "path", "label", "group", "patient", "split", "instance_labels")
SPLITS = ("", "train", "val", "test")
_PATIENT_COLUMNS = ("patient_id", "patientid", "case_id", "case", "subject", "subject_id", "group_id", "patients")
_SIGNS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def _first_few(items: Sequence[str], most: int = 5) -> str:
    """The first items of a list, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


# What pandas, openpyxl and pyarrow were seen to raise on damaged files.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, MemoryError,
               SyntaxError, RuntimeError, AssertionError, zipfile.BadZipFile, zlib.error)  # fmt: skip
_LARGEST_BOOK = 256 << 20
_MOST_CELLS = 5_000_000


@contextmanager
def _table_errors(path: str | Path, absent: str) -> Iterator[None]:
    """Turn what pandas raises on a file into a DataError that names it."""
    try:
        need_file(Path(path))
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {absent}") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: the table is empty; {absent}") from None
    except _UNREADABLE as problem:
        if Path(path).suffix.lower() not in (".parquet", ".xlsx"):
            with suppress(OSError), Path(path).open(encoding="utf-8-sig", errors="replace") as file:
                _refuse_other_sign(path, file.readline(100_000))
        cause = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise DataError(f"{path}: not readable as a table ({cause}); save or copy it again") from None


def read_text_table(path: str | Path, absent: str, columns: Iterable[str] = ()) -> pd.DataFrame:
    """A CSV file with every cell as text, spaces around column names removed, and at least these columns.

    absent  advice when the file is missing
    """
    with _table_errors(path, absent):
        table = _read_csv(path)
    table = table.rename(columns=lambda name: str(name).strip())
    _need_columns(path, table, columns)
    return table


def _read_csv(path: str | Path) -> pd.DataFrame:
    return pd.read_csv(
        check_csv_width(path), dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True
    )


def _read_excel(path: Path, absent: str, columns: Sequence[str]) -> pd.DataFrame:
    """The first sheet of an .xlsx file with every cell as text and at least these columns."""
    with _table_errors(path, absent):
        if path.is_file() and not zipfile.is_zipfile(path):
            raise DataError(f"{path}: no Excel file of today's format (.xlsx), or cut off; save it as .xlsx or .csv")
        try:
            from openpyxl import load_workbook
        except ImportError:
            raise MissingExtra("openpyxl", "tables", f"reading {path.name}") from None
        with zipfile.ZipFile(path) as archive:
            if (size := sum(member.file_size for member in archive.infolist())) > _LARGEST_BOOK:
                raise DataError(f"{path}: would unpack to {size:,} bytes, at most {_LARGEST_BOOK:,}; save it as .csv")
            if any(b"<!DOCTYPE" in archive.read(member) for member in archive.infolist()):  # reads all: checksums
                raise DataError(f"{path}: declares a document type, which no table needs; save it again")
        book = load_workbook(path, read_only=True, data_only=True)
        with closing(book):
            sheet = book.worksheets[0]
            sheet.reset_dimensions()
            last = wide = filled = 0
            for last, row in enumerate(sheet.iter_rows(values_only=True), 1):
                wide, filled = max(wide, len(row)), filled + bool(row)
                if last * wide > _MOST_CELLS or last > 1000 + 10 * filled:
                    raise DataError(
                        f"{path}: {filled:,} filled rows up to row {last:,} and column {wide:,} are no table of "
                        "cases; delete what is far below or right of the table"
                    )
        return _stripped(path, pd.read_excel(path, dtype=str, keep_default_na=False, engine="openpyxl"), columns)


def _need_columns(path: str | Path, table: pd.DataFrame, columns: Iterable[str], options: bool = False) -> None:
    """An error that names the first column that is missing, or the separator used instead of commas.

    options  the command can be told other names of columns (--id-column)
    """
    for column in columns:
        if column not in table:
            names = list(map(str, table.columns))
            _refuse_other_sign(path, "".join(names))
            raise DataError(f"{path}: {_missing_column(column, names, options)}")


_MEANING = {"id": "names the cases", "label": "holds their labels", "path": "says where their files are"}


def _missing_column(column: str, names: Sequence[str], options: bool) -> str:
    """What to do about a column that a table does not have."""
    near = suggest(column, names[:200])
    if column not in _MEANING or near.startswith("did you mean"):
        return f"column {column!r} is missing; {near}"
    or_option = f", or name it with --{column}-column" if options and column != "path" else ""
    has = f"the table has {', '.join(names[:20])}"
    return f"column {column!r} is missing, {has}; rename the one that {_MEANING[column]} to {column}{or_option}"


@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table of cases hold name, label and patient, and labels that are words in the order 0, 1, …

    keep  further columns for the manifest, such as covariates; those of other targets (time, event, label_…) are kept
    """

    id: str = "id"
    label: str = "label"
    patient: str = "patient"
    classes: Sequence[str] | None = None
    keep: Sequence[str] = ()

    def kept(self, path: str | Path, table: pd.DataFrame) -> list[str]:
        """Columns of the table that go into the manifest beside those every manifest has."""
        for name in self.keep:
            if name not in table:
                near = suggest(name, list(map(str, table.columns))[:200])
                raise DataError(f"{path}: there is no column {name!r} (--keep); {near}")
        of_targets = [c for c in table if c in ("time", "event") or str(c).startswith("label_")]
        return [str(c) for c in dict.fromkeys([*of_targets, *self.keep]) if c not in COLUMNS]

    def renamed(self, path: str | Path, table: pd.DataFrame) -> pd.DataFrame:
        """The table with the columns id, label and patient, and with class indices where words were given an order."""
        chosen = {"id": self.id, "label": self.label, "patient": self.patient}
        for ours, theirs in chosen.items():
            if theirs == ours:
                continue
            if theirs not in table:
                near = suggest(theirs, list(map(str, table.columns))[:200])
                raise DataError(f"{path}: there is no column {theirs!r} (--{ours}-column); {near}")
            table = table.drop(columns=[ours, *(["group"] if ours == "patient" else [])], errors="ignore")
        table = table.rename(columns={theirs: ours for ours, theirs in chosen.items()})
        _need_columns(path, table, ("id",), options=True)
        if self.classes is not None:
            _need_columns(path, table, ("label",), options=True)
            table = table.assign(label=class_indices(path, table["label"].str.strip(), self.classes))
        return table


def class_indices(table: str | Path, words: pd.Series, classes: Sequence[str] | None) -> list[str]:
    """Class indices of labels; words need the order of the classes, which cannot be guessed."""
    found = sorted(set(words) - {""})
    if classes is None:
        if not all(_is_index(word) for word in found):
            raise DataError(f"{table}: labels are words ({_first_few(found, 20)}); {_order_of(found)}")
        return [word.removesuffix(".0") for word in words]
    if (unknown := sorted(set(found) - set(classes))) != []:
        raise DataError(
            f"{table}: label {unknown[0]!r} is not one of the classes {', '.join(classes)}; the table has "
            f"{_first_few(found, 20)}"
        )
    order = {word: str(index) for index, word in enumerate(classes)}
    return [order.get(word, "") for word in words]


def _order_of(words: Sequence[str]) -> str:
    """How to say which word is 0 and which is 1; both orders stand there, since only the user knows."""
    if len(words) != 2:
        return "give --class once for every word (in Python classes=[…]), in the order 0, 1, …; only you can say which"
    orders = [" ".join(f"--class {shlex.quote(word)}" for word in pair) for pair in (words, words[::-1])]
    return f"give them in the order negative, positive; only you can say which: {orders[0]}, or {orders[1]}"


def _option_name(name: str) -> str:
    """The option of the command line behind a keyword of a source."""
    return "--class" if name == "classes" else f"--{name.replace('_', '-')}"


def _stripped(path: str | Path, table: pd.DataFrame, columns: Sequence[str], options: bool = False) -> pd.DataFrame:
    """A table of texts that must have these columns, without spaces around their cells."""
    _need_columns(path, table, columns, options)
    return table.assign(**{column: table[column].str.strip() for column in columns})


def _relative(path: Path | None, folder: str | Path) -> str:
    """The path as counted from a folder; empty for None."""
    return "" if path is None else Path(os.path.relpath(path, folder)).as_posix()


def _refuse_other_sign(path: str | Path, names: str) -> None:
    for sign, word in _SIGNS.items():
        if sign in names:
            raise DataError(
                f"{path}: columns are separated by {word} ({sign!r}), not by commas; save the table with commas"
            ) from None


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table with known columns as plain text (whole numbers and labels without '.0', missing as empty)."""
    table = table.rename(columns=lambda c: str(c).strip())
    for column in set(COLUMNS) & set(table.columns):
        cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in table[column]]
        texts = ["" if pd.isna(cell) else str(cell).strip() for cell in cells]
        table[column] = pd.Series(texts, index=table.index, dtype=object)
    if "label" in table:
        table["label"] = [text.removesuffix(".0") if _is_index(text) else text for text in table["label"]]
    return table


def _label_of(text: str, name: str) -> int | None:
    """Class index behind a label's text; None for an empty one."""
    if text == "":
        return None
    if not _is_index(text):
        raise DataError(
            f"{name}: label {brief(text)} is not a class index; write 0..C-1 (of two: 0 = negative, 1 = positive)"
        )
    return int(text.removesuffix(".0"))


def _is_index(text: str) -> bool:
    """Whether a text is a class index, as 1 or, from a spreadsheet, 1.0."""
    whole = text.removesuffix(".0")
    return whole.isascii() and whole.isdigit() and len(whole) < 10


def _table_problems(table: pd.DataFrame, training: bool, target: Sequence[str] | None = None) -> list[str]:
    """Problems of a manifest that can be found without opening a file; target: columns in place of the label."""
    known = _column_problems(table, training, target or ()), _id_problems(table), _split_problems(table)
    return [*chain(*known, _label_problems(table, training) if target is None else ())]


def _column_problems(table: pd.DataFrame, training: bool, target: Sequence[str]) -> Iterator[str]:
    required = ("id", "path", "label") if training and not target else ("id", "path")
    for column in required:
        if column not in table:
            near = get_close_matches(column, map(str, table.columns), n=1)
            yield f"column {column!r} is missing" + (f"; did you mean {near[0]!r}? rename it" if near else "")
    for column in table.columns:
        base, _, number = column.rpartition(".")
        if base in COLUMNS and number.isdigit():
            yield f"column {base!r} is given twice; remove or rename one of them"
            continue
        near = get_close_matches(column.lower(), COLUMNS, n=1, cutoff=0.75)
        if column not in (*COLUMNS, *target) and near and near[0] not in table and near[0] not in required:
            yield f"unknown column {column!r}; did you mean {near[0]!r}? rename it"
        elif column.lower() in _PATIENT_COLUMNS and not {"group", "patient"} & set(table.columns):
            yield f"column {column!r} looks like the patient; rename it to 'group', or bags of one patient may leak"


def _id_problems(table: pd.DataFrame) -> Iterator[str]:
    if (empty := int((table["id"] == "").sum())) > 0:
        yield f"{empty} rows have an empty id; give every bag a name"
    for column in ("id", "group", "patient"):  # they are part of every table smmil writes
        names = [repr(name) for name in table.get(column, ()) if begins_formula(name)]
        if names:
            yield f"{column} {_first_few(names)} would be a formula in a spreadsheet; begin it otherwise"
    if (pathless := table["id"][table["path"] == ""].tolist()) != []:
        yield f"no path for {_first_few(pathless)}"
    if (twice := [i for i, n in Counter(table["id"]).items() if n > 1 and i]) != []:
        yield f"duplicate id: {_first_few(twice)}; every bag needs its own id"
    places: dict[str, list[str]] = {}
    for id_, path in zip(table["id"], table["path"], strict=True):
        places.setdefault(os.path.normpath(path) if path else f"no path for {id_}", []).append(id_)
    if (shared := [f"{path} ({', '.join(ids[:3])})" for path, ids in places.items() if len(set(ids)) > 1]) != []:
        yield f"the same file under several ids: {_first_few(shared)}; a bag must not be in the table twice"


def _split_problems(table: pd.DataFrame) -> Iterator[str]:
    if "split" not in table:
        return
    for word in sorted(set(table["split"]) - set(SPLITS)):
        yield f"unknown split {word!r}; use train, val, test or leave it empty"
    group = "group" if "group" in table else "patient"
    if group in table:
        marked = table[(table["split"] != "") & (table[group] != "")]
        places = marked.groupby(group, sort=True)["split"].agg(lambda s: sorted(set(s)))
        leaks = [f"{g} ({', '.join(p)})" for g, p in places.items() if len(p) > 1]
        if leaks:
            yield f"patient in two splits: {_first_few(leaks)}; keep all bags of a patient together"


def _label_problems(table: pd.DataFrame, training: bool) -> Iterator[str]:
    if "label" not in table:
        return
    words = sorted({text for text in table["label"] if text and not _is_index(text)})
    if words:
        problem = f"labels must be class indices 0..C-1, got {_first_few(list(map(brief, words)))}"
        numbers = any(char.isdigit() for word in words for char in word)
        ask = "write an index for each word (NEGATIVE_WORD = 0, POSITIVE_WORD = 1); which is which only you can say; "
        ask += "smmil prepare --labels and smmil source take them as --class NEGATIVE_WORD --class POSITIVE_WORD"
        yield f"{problem}; {'correct these rows' if numbers else ask}"
        return
    if not training:
        return
    if (unlabelled := table["id"][table["label"] == ""].tolist()) != []:
        yield f"no label for {_first_few(unlabelled)}; add it or leave the rows out"
    classes = sorted({int(text.removesuffix(".0")) for text in table["label"] if text})
    if len(classes) == 1:
        yield f"only one class ({classes[0]}) in the column label; training needs at least two"
    elif classes and classes != list(range(len(classes))):
        yield f"labels must be 0..C-1 without gaps, got {_first_few(list(map(str, classes)))}; renumber them"


def read_instance_labels(path: str | Path) -> np.ndarray:
    """The labels in a .npy file, or in the column `label` of a .csv file, as int64."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (".npy", ".csv"):
        raise DataError(
            f"{path}: instance labels must be .npy or .csv (column 'label'), got {path.suffix or 'no ending'!r}"
        )
    try:
        found: Any = _read_npy(path) if ending == ".npy" else pd.read_csv(check_csv_width(path))
    except FileNotFoundError:
        why = "the column instance_labels of the table names it: correct the path, or leave the column out"
        raise DataError(f"{path}: no such file; {why}") from None
    except (*_UNREADABLE, TokenError) as problem:
        reason = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise DataError(f"{path}: not readable as instance labels ({reason}); write it again") from None
    if ending == ".csv" and "label" not in found:
        raise DataError(f"{path}: there is no column 'label'; {suggest('label', map(str, found.columns))}")
    labels: np.ndarray = found if ending == ".npy" else found["label"].to_numpy()
    if labels.ndim != 1 or labels.dtype.kind not in "iufb":
        raise DataError(f"{path}: expected one number per instance, got {labels.dtype} of shape {labels.shape}")
    values = labels.astype(np.float64)
    wrong = np.flatnonzero(~((values == np.rint(values)) & (values >= -1) & (values < 2**53)))
    if len(wrong):
        raise DataError(f"{path}: row {wrong[0]} is {labels[wrong[0]]}; instance labels are -1 (unknown), 0, 1, …")
    return labels.astype(np.int64)


def read_label_shares(path: str | Path) -> tuple[float, float] | None:
    """Coverage of a file of instance labels and the largest annotated share; None for files that state no shares."""
    path = Path(path)
    if path.suffix.lower() != ".csv":
        return None
    try:
        table = pd.read_csv(check_csv_width(path), keep_default_na=False)
        if not {"share", "about"} <= set(table.columns) or not len(table):
            return None
        coverage = json.loads(str(table["about"].iloc[0])).get("coverage")
        shares = table["share"].to_numpy(np.float64)
    except (*_UNREADABLE, TokenError) as problem:
        reason = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise DataError(f"{path}: not readable as instance labels with shares ({reason}); write it again") from None
    if not ((shares >= 0) & (shares <= 1)).all():
        raise DataError(f"{path}: a share lies outside 0 to 1; write the labels again")
    if not isinstance(coverage, float | int) or not 0 <= coverage <= 1:
        return None
    return float(coverage), float(shares.max())


def _read_npy(path: Path) -> np.ndarray:
    """The array of a .npy file; a map first, since it refuses a size that the file does not have."""
    array = np.load(need_file(path), mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError("an .npz archive under the name .npy")
    return np.array(array)


def _check_instance_labels(name: str, labels: np.ndarray, n: int, y: int | None) -> None:
    """An error when the labels do not fit the bag: wrong number, or a positive instance in a negative bag."""
    if len(labels) != n:
        raise DataError(f"{name}: {len(labels):,} instance labels for {n:,} instances; write the labels again")
    positive = np.flatnonzero(labels > 0)
    if y == 0 and len(positive):
        raise DataError(
            f"{name}: {len(positive):,} positive instances (first: row {positive[0]}) in a bag with label 0; "
            "correct the bag label or the instance labels"
        )
