"""Public data sets: from a downloaded folder to the table that `smmil prepare --labels` takes.

One module per data set, named like it, with a function of that name; what they share is here: files by name, missing
files, splits, and the table that is written.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.splits import make_splits
from smmil.data.tables import _first_few, _option_name, _relative, _stripped, as_text, read_text_table
from smmil.errors import ConfigError, DataError, check_choice
from smmil.files import digest, need_file, write_json

NAMES = ("camelyon16", "panda", "rsna_ich", "crchisto", "folder", "patches")
TABLE, ABOUT = "labels.csv", "source.json"
OWN_SPLIT = "own: drawn by smmil, grouped by patient, stratified by label"
_IDS = ("id", "image_id", "bag_name", "scan", "slide_id", "name", "bag", "wsi_name", "wsi", "slide", "bag_id")
_SPLIT = ("split", "partition", "set", "subset")
_PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
_PARTS |= {"test": "test", "testing": "test"}
Rows = list[dict[str, str]]


def write_source(name: str, root: str | Path, out: str | Path, **options: Any) -> Manifest:
    """Check a downloaded data set and write `out`/labels.csv and `out`/source.json; gives the table.

    The columns are those of a manifest, with `path` naming the image, and annotation, annotation_kind,
    annotation_complete where they are known.
    """
    check_choice(name, NAMES, "data set")
    source: Callable[..., Manifest] = getattr(import_module(f"smmil.data.sources.{name}"), name)
    taken = signature(source).parameters
    known = [option for option in taken if option not in ("root", "out")]
    for option in options:
        if option not in known:
            words = ", ".join(map(_option_name, known))
            raise ConfigError(f"{_option_name(option)}: is not for the data set {name}, which takes {words}")
    if "table" in known and taken["table"].default is Parameter.empty and "table" not in options:
        raise ConfigError(f"data set {name}: give the table id,label of its images with --table")
    return source(root, out, **options)


def _some(items: Collection[str], most: int = 5) -> str:
    """The first names in alphabetical order, and how many more there are."""
    return _first_few(sorted(items), most)


def _count_lines(lists: Iterable[tuple[str, Collection[str]]]) -> list[str]:
    """One line for each kind of case that occurs: its number and the first names."""
    return [f"{len(names)} {kind} ({_some(names)})" for kind, names in lists if names]


def _need_folder(root: str | Path, expected: str) -> Path:
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder that holds {expected}")
    return root


def _by_stem(folder: Path, endings: Sequence[str], pattern: str = ".*") -> dict[str, Path]:
    """Files below a folder by their name without ending (those that match `pattern`, in small letters with one).

    Two of one name are refused with both places.
    """
    found: dict[str, Path] = {}
    for path in sorted(p for p in folder.rglob("*") if p.name.lower().endswith(tuple(endings)) and p.name[0] != "."):
        name = path.name[: -max(len(e) for e in endings if path.name.lower().endswith(e))]
        stem = name if pattern == ".*" else name.lower()
        if not re.fullmatch(pattern, stem):
            continue
        if stem in found:
            raise DataError(f"{path}: the same name as {found[stem]}; keep one of them")
        found[stem] = path
    return found


def _read_table(path: str | Path, *columns: str) -> pd.DataFrame:
    """A CSV table as text with at least these columns."""
    return _stripped(path, read_text_table(path, "it belongs to the data set, download it"), columns)


def _read_parts(path: str | Path) -> dict[str, str]:
    """train, val or test of every id in a split file: a column of ids (id, image_id, bag_name …) and a column split.

    Capitals and spaces in the names of columns, endings .npy of ids and rows that repeat another do not matter.
    """
    table = _read_table(path)
    table = table.rename(columns=lambda name: str(name).strip().lower())
    column, part = (next((name for name in names if name in table), "") for names in (_IDS, _SPLIT))
    if not column or not part:
        lost = f"no column of ids; name it {' or '.join(_IDS[:3])}" if not column else "column 'split' is missing"
        raise DataError(f"{path}: {lost}; the table has {_first_few(list(map(str, table.columns)))}")
    parts: dict[str, str] = {}
    for id_, word in zip(table[column].str.strip(), table[part].str.strip().str.lower(), strict=True):
        if word not in _PARTS:
            raise DataError(f"{path}: split {word!r} of {id_!r}; expected train, val or test")
        if parts.setdefault(id_ := id_.removesuffix(".npy"), _PARTS[word]) != _PARTS[word]:
            raise DataError(f"{path}: {id_!r} is in {parts[id_]} and in {_PARTS[word]}; keep it in one")
    return parts


class _DownloadedStudy:
    """A downloaded data set on its way to a table: where both lie, and what is missing or worth knowing."""

    def __init__(self, name: str, root: str | Path, expected: str, out: str | Path, allow_missing: bool):
        self.name, self.out, self.allow_missing = name, Path(out), allow_missing
        self.root = _need_folder(root, expected)
        self.missing: list[str] = []
        self.notes: list[str] = []
        self.split_origin = "official"

    def place(self, path: Path | None) -> str:
        """The path as it stands in the table, counted from there; empty for None."""
        return _relative(path, self.out)

    def refuse(self, missing: list[str]) -> list[str]:
        """Refuse an incomplete data set with one error that lists what is missing; or, if allowed, give that list."""
        if missing and not self.allow_missing:
            raise DataError(
                f"{self.root}: incomplete: {'; '.join(missing)}; download the rest, or go on without (--allow-missing)"
            )
        return missing

    def split(self, rows: Rows, split: str | Path | None, seed: int) -> Rows:
        """The rows with their part.

        A split file decides which cases take part. Without one a test set is drawn; folds are left to training.
        """
        if split is None:
            self.split_origin = f"{OWN_SPLIT}, seed {seed}"
            table = Manifest(pd.DataFrame(rows, dtype=object), name=str(self.root))
            test = set(make_splits(table, folds=1, seed=seed)[0].test)
            return [row | {"split": "test" if row["id"] in test else "train"} for row in rows]
        file, parts, known = Path(split), _read_parts(split), {row["id"] for row in rows}
        self.split_origin = f"given: {file.name} ({digest(need_file(file).read_bytes())[:16]})"
        if lost := set(parts) - known:
            self.notes += self.refuse([f"{len(lost)} cases of {file.name} are not there: {_some(lost)}"])
        if unused := known - set(parts):
            self.notes.append(f"{len(unused)} cases are not in {file.name} and were left out: {_some(unused)}")
        chosen = [row | {"split": parts[row["id"]]} for row in rows if row["id"] in parts]
        if not chosen:
            raise DataError(f"{split}: none of its {len(parts)} ids is in the data set, which has {_some(known, 3)}")
        return chosen

    def write(self, rows: Rows, **about: Any) -> Manifest:
        """Write labels.csv (checked as a manifest; split_origin says where its splits come from) and source.json."""
        if not rows:
            raise DataError(f"{self.root}: no case is left: the table has no rows, or names none of the images here")
        table = as_text(pd.DataFrame(rows, dtype=object).fillna("").assign(split_origin=self.split_origin))
        manifest = Manifest(table, self.out, str(self.out / TABLE))
        manifest.check_table(training=False)
        facts = {"source": self.name, "cases": len(rows), "split": self.split_origin}
        write_json(self.out / ABOUT, {**facts, "missing": self.missing, "notes": self.notes, **about})
        manifest.write(self.out / TABLE)
        return Manifest.read(self.out / TABLE)
