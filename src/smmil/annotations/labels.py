"""Labels of CT slices as RSNA 2019 publishes them, truth lost to a coverage, and the error boundary of all readers."""

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.parsers.expat import ExpatError

import numpy as np
import pandas as pd

from smmil.errors import DataError, MissingExtra, SmmilError
from smmil.files import check_csv_width, need_file, replacing

# Text is held in memory as a whole; the largest published annotation files have some 20 MB.
_LARGEST_TEXT = 512 * 2**20
_DAMAGE = (
    *(OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError),
    *(EOFError, SyntaxError, AssertionError, struct.error, zlib.error, ExpatError),
)


@contextmanager
def annotation_errors(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a library raises into one DataError that names the file."""
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


def _read_bytes(path: Path) -> bytes:
    """The content of a text file of sensible size."""
    if (size := need_file(path).stat().st_size) > _LARGEST_TEXT:
        raise DataError(f"{size:,} bytes; an annotation has at most {_LARGEST_TEXT:,}")
    return need_file(path).read_bytes()


ANY = "any"


def read_slice_labels(path: str | Path) -> pd.DataFrame:
    """0 or 1 for every slice (index: its SOPInstanceUID) and every subtype (columns, `any` among them)."""
    path = Path(path)
    with annotation_errors(path, "RSNA's table of slice labels"):
        texts = {"ID": str, "Label": str}
        table = pd.read_csv(check_csv_width(path), dtype=texts, keep_default_na=False, encoding="utf-8-sig")
        for column in ("ID", "Label"):
            if column not in table:
                raise DataError(f"column {column!r} is missing; expected ID,Label")
        return _by_slice(table)


def _by_slice(table: pd.DataFrame) -> pd.DataFrame:
    """Labels by slice and subtype; a row given twice counts once, contradicting and missing labels are refused."""
    names = table["ID"].str.strip().str.rpartition("_")
    labels = table["Label"].str.strip().map({"0": 0, "1": 1})
    wrong = np.flatnonzero(labels.isna() | (names[0] == "") | (names[2] == ""))
    if len(wrong):
        shown = f"{table['ID'].iloc[wrong[0]]!r}, {table['Label'].iloc[wrong[0]]!r}"
        raise DataError(f"row {wrong[0] + 1} is {shown[:120]}; expected ID_<slice>_<subtype> and 0 or 1")
    parsed = pd.DataFrame({"slice": names[0], "subtype": names[2], "label": labels.astype(np.int8)}).drop_duplicates()
    twice = parsed.duplicated(["slice", "subtype"])
    if twice.any():
        row = parsed[twice].iloc[0]
        raise DataError(f"{row['slice']}_{row['subtype']} is given both as 0 and as 1; keep one row")
    spread = parsed.pivot(index="slice", columns="subtype", values="label")
    if spread.empty or ANY not in spread:
        raise DataError(f"no rows for the subtype {ANY!r}; expected ID_<slice>_{ANY}")
    incomplete = spread.index[spread.isna().any(axis=1)]
    if len(incomplete):
        raise DataError(f"{len(incomplete)} slices lack a subtype, such as {incomplete[0]!r}; download it again")
    return spread.astype(np.int8)


def labels_in_order(table: pd.DataFrame, slices: Iterable[str], subtypes: Iterable[str] = (ANY,)) -> np.ndarray:
    """1 for every slice that has one of the subtypes, in the order of `slices`."""
    slices, subtypes = list(slices), list(subtypes)
    for subtype in subtypes:
        if subtype not in table:
            raise DataError(f"no subtype {subtype!r}; there are {', '.join(map(str, table.columns))}")
    missing = [name for name in slices if name not in table.index]
    if missing:
        raise DataError(f"no label for {len(missing)} of {len(slices)} slices, such as {missing[0]!r}")
    return table.loc[slices, subtypes].to_numpy().max(axis=1).astype(np.int8)


def write_slice_labels(path: str | Path, table: pd.DataFrame) -> None:
    """The labels of some slices in the published form, atomically."""
    with replacing(path) as temporary:
        rows = table.rename_axis("slice").reset_index().melt(id_vars="slice", var_name="subtype", value_name="Label")
        rows = rows.sort_values(["slice", "subtype"], kind="stable")
        named = pd.DataFrame({"ID": rows["slice"] + "_" + rows["subtype"].astype(str), "Label": rows["Label"]})
        named.to_csv(temporary, index=False, lineterminator="\n")


_KEEP = 0.95  # share of the positive cases that a proposed coverage leaves a positive instance


def lost_truth(
    positive: int, lost: int, largest: Sequence[float] = (), coverage: float | None = None, keep: float = _KEEP
) -> str | None:
    """How many positive cases hold no positive instance, and what coverage would help, in words; None: all hold one.

    positive  number of positive cases with known instance labels      lost  those without a positive instance
    largest   of each case with a share of annotation: the largest share of one of its instances
    """
    if not lost:
        return None
    at = "" if coverage is None else f" at a coverage of {coverage:g}"
    text = f"{lost} of {positive} positive cases keep no positive instance{at}: nothing can be localized in them"
    if not largest or coverage is None:
        return text
    marked = [share for share in largest if share > 0]  # where nothing is annotated, no coverage helps
    better = proposed_coverage(marked, keep)
    if better is not None and better < coverage:
        kept = f"would leave one in {sum(share > better for share in marked)} of {len(largest)}"
        text += f"; a coverage of {better:g} {kept} (smmil prepare --coverage {better:g})"
    empty = len(largest) - len(marked)
    return f"{text}; in {empty} nothing is annotated at all, and no coverage helps" if empty else text


def proposed_coverage(largest: Sequence[float], keep: float = _KEEP) -> float | None:
    """The largest coverage, to two digits, at which this share of the cases has an instance with more; None: none has.

    A case has one exactly where the largest share of its instances exceeds the coverage: the coverage must lie below
    the k-th largest of these shares, k being that share of the cases, rounded up.
    """
    ordered = sorted(largest, reverse=True)
    needed = math.ceil(keep * len(ordered) - 1e-9)
    if not needed or ordered[needed - 1] <= 0:
        return None
    edge = ordered[needed - 1]
    step = 10.0 ** min(-2, math.floor(math.log10(edge)) - 1)
    return round((math.ceil(edge / step - 1e-9) - 1) * step, 12)
