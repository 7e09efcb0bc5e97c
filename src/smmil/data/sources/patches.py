"""Patches in files of their own, as most challenges publish them: cases put together by name or by a table."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.sources import _count_lines, _DownloadedStudy, _read_table, _some
from smmil.data.tables import _relative
from smmil.errors import ConfigError, DataError, brief
from smmil.files import replacing
from smmil.formats.content import begins_formula
from smmil.images.opening import SUFFIXES

_PATTERN = r"(?P<id>.+?)_x(?P<x>\d+)_y(?P<y>\d+)(?:_class(?P<label>-?\d+))?"
_CASES = ("id", "slide", "case", "image", "patient")  # columns that may say which patches make a case; the first counts
_SLIDES = "slides"
_FARTHEST = 10**9  # pixels
_LONGEST_ID = 150  # bytes; a file system allows 255, endings included


def patches(
    root: str | Path,
    out: str | Path,
    *,
    table: str | Path | None = None,
    labels: str | Path | None = None,
    pattern: str | None = None,
    step: int | None = None,
    split: str | Path | None = None,
    seed: int = 0,
    allow_missing: bool = False,
) -> Manifest:
    """Cases of a folder of patch files, and slides/<id>.patches.csv with the place of every patch of each.

    table    CSV with path, x, y, a column of cases (id, slide, case, image or patient), and maybe patient and label;
             None: places are in the file names, as <id>_x<X>_y<Y>_class<C>.png; `root` may be the table itself
    labels   CSV with id and label of every case; None: a case is positive when one of its patches is
    pattern  regular expression for other names (without ending), with the groups id, x, y and maybe
             label and patient; else folders are patients when the names of their cases begin with that of the folder
    step     what one unit of x and y is in pixels, where they count patches
    """
    if Path(root).is_file() and table is None:
        root, table = Path(root).parent, root
    study = _DownloadedStudy("patches", root, "the patch files, or give a table path,x,y,patient", out, allow_missing)
    if table is not None and pattern is not None:
        raise ConfigError("--pattern: is for places in file names, and a table gives them already; leave one out")
    rows = _named(study.root, pattern or _PATTERN, study) if table is None else _listed(study, Path(table))
    rows["x"], rows["y"] = (_scaled(rows, axis, step, table or study.root) for axis in ("x", "y"))
    groups = {str(id_): group for id_, group in rows.groupby("id", sort=True)}
    known = _case_labels(study, labels, groups)
    cases = [_case(study, id_, group, known.get(id_, "")) for id_, group in groups.items()]
    if "patient" not in rows:
        study.notes.append("patients are not known: every case counts as its own patient")
    _note_sizes(study, rows)
    return study.write(study.split(cases, split, seed), patches=len(rows))


def _named(root: Path, pattern: str, study: _DownloadedStudy) -> pd.DataFrame:
    """Patches by the places in their names."""
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise ConfigError(f"--pattern {pattern!r}: no regular expression ({problem})") from None
    if lost := {"id", "x", "y"} - set(compiled.groupindex):
        raise ConfigError(f"--pattern {pattern!r}: has no group {sorted(lost)[0]!r}; write (?P<{sorted(lost)[0]}>…)")
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    found = [(file, match) for file in files if (match := compiled.fullmatch(file.stem)) is not None]
    if not files:
        raise DataError(f"{root}: no pictures here; give the folder of the patch files, or a table of them (--table)")
    if not found:
        example = f", such as {files[0].name}"
        raise DataError(
            f"{root}: none of {len(files)} pictures has a place in its name{example}; expected "
            "<id>_x<X>_y<Y>_class<C>.png; or give a table path,x,y,patient (--table) or the names' form (--pattern)"
        )
    others = {file.name for file in files} - {file.name for file, _ in found}
    study.notes += _count_lines([("pictures have no place in their name and were left out", others)])
    rows = pd.DataFrame([{"path": file, **match.groupdict(default="")} for file, match in found], dtype=object)
    folders = [file.relative_to(root).parts[0] if file.parent != root else "" for file, _ in found]
    begins = [folder and id_.startswith(folder) for folder, id_ in zip(folders, rows["id"], strict=True)]
    if "patient" not in rows and all(begins):
        rows = rows.assign(patient=folders)
        study.notes.append(f"patients are the folders, {len(set(folders))} of them: their cases bear their names")
    return rows.drop(columns="label") if "label" in rows and (rows["label"] == "").all() else rows


def _listed(study: _DownloadedStudy, table: Path) -> pd.DataFrame:
    """Patches of a table; its paths count from the folder of patches or, if they are not there, from the table."""
    rows = _read_table(table, "path", "x", "y")
    column = next((name for name in _CASES if name in rows), None)
    if column is None:
        raise DataError(f"{table}: no column says which patches make a case; name it {', '.join(_CASES)}")
    rows = rows.assign(id=rows[column])
    # a name too long for any file is none, where Path.is_file raises
    places = [next((f for f in (study.root / p, table.parent / p) if os.path.isfile(f)), None) for p in rows["path"]]
    lost = [brief(name) for name, place in zip(rows["path"], places, strict=True) if place is None]
    study.missing = study.refuse(_count_lines([(f"patches of {table.name}", lost)]))
    kept = rows.assign(path=pd.Series(places, rows.index, dtype=object))[[place is not None for place in places]]
    if kept.empty:
        raise DataError(f"{table}: none of its {len(rows):,} patches is there; give the folder their paths count from")
    return kept[[name for name in ("id", "path", "x", "y", "label", "patient") if name in kept]]


def _scaled(rows: pd.DataFrame, axis: str, step: int | None, where: str | Path) -> np.ndarray:
    values = pd.to_numeric(rows[axis], errors="coerce").to_numpy(np.float64)
    if step is not None and step < 1:
        raise ConfigError(f"--step must be at least one pixel, got {step}")
    fits = (values == np.rint(values)) & (values >= 0) & (values * (step or 1) <= _FARTHEST)
    if len(wrong := np.flatnonzero(~fits)):
        named, value = rows["path"].iloc[wrong[0]], rows[axis].iloc[wrong[0]]
        raise DataError(f"{where}: {axis} of {named} is {brief(value)}; expected pixels from 0 to {_FARTHEST:,}")
    return values.astype(np.int64) * (step or 1)


def _case_labels(study: _DownloadedStudy, labels: str | Path | None, groups: dict[str, pd.DataFrame]) -> dict[str, str]:
    """Label of every case: as given, or whether one of its patches is positive; empty where nothing is known."""
    if labels is not None:
        table = _read_table(labels, "id", "label")
        known = dict(zip(table["id"], table["label"], strict=True))
        if lost := set(groups) - set(known):
            raise DataError(f"{labels}: no row for {len(lost)} cases ({_some(lost)}); add them")
        return known
    study.notes.append("a case is positive when one of its patches has a label above 0; give --labels to say otherwise")
    found = {}
    for id_, group in groups.items():
        words = pd.to_numeric(group["label"], errors="coerce") if "label" in group else pd.Series(dtype=float)
        found[id_] = "1" if (words > 0).any() else "0" if len(words) and (words == 0).all() else ""
    return found


def _case(study: _DownloadedStudy, id_: str, rows: pd.DataFrame, label: str) -> dict[str, str]:
    """Write the table of one case, and give its row."""
    if "/" in id_ or "\\" in id_ or id_.startswith(".") or not id_.isprintable() or begins_formula(id_):
        raise DataError(f"{study.root}: case {brief(id_)} cannot name a file; rename it in the table or the files")
    if len(id_.encode()) > _LONGEST_ID:
        raise DataError(f"{study.root}: case {brief(id_)} is too long to name a file; at most {_LONGEST_ID} bytes are")
    place = study.out / _SLIDES / f"{id_}.patches.csv"
    columns = [name for name in ("path", "x", "y", "label") if name in rows]
    ordered = rows.sort_values(["y", "x"], kind="stable")
    with replacing(place) as temporary:
        ordered[columns].assign(path=[_relative(p, place.parent) for p in ordered["path"]]).to_csv(
            temporary, index=False, lineterminator="\n"
        )
    people = sorted(set(rows["patient"])) if "patient" in rows else []
    if len(people) > 1:
        raise DataError(
            f"{study.root}: case {id_!r} has patches of {len(people)} patients ({_some(people)}); divide it"
        )
    return {"id": id_, "path": study.place(place), "label": label, **({"patient": people[0]} if people else {})}


def _note_sizes(study: _DownloadedStudy, rows: pd.DataFrame) -> None:
    counts: Sequence[int] = rows.groupby("id").size().tolist()
    study.notes.append(f"{len(rows):,} patches, {min(counts):,} to {max(counts):,} in a case")
