"""The manifest of a study: a table with file, label, patient and split of every bag, and the checks before training."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from smmil.bag import Bag
from smmil.data.tables import check_instance_labels, first_few, need_columns, read_instance_labels, read_text_table
from smmil.errors import DataError, suggest
from smmil.files import digest, replacing
from smmil.formats import read_bag
from smmil.formats.content import begins_formula

COLUMNS = ("id", "path", "label", "group", "patient", "split", "instance_labels")
SPLITS = ("", "train", "val", "test")
_PATIENT_COLUMNS = ("patient_id", "patientid", "case_id", "case", "subject", "subject_id", "group_id", "patients")
Progress = Callable[[int, int], None]
_LISTED = 10


@dataclass(frozen=True, eq=False)
class Manifest:
    """Table of the bags of a study. Text columns are kept as written; paths are relative to `folder`.

    id, path          text, unique id (leading zeros are kept); path of the bag file
    label             class index 0..C-1; may be absent or empty when nothing is trained
    group             patient: bags of one patient never sit in two splits; `patient` is read as group; default: the id
    split             train, val, test or empty
    instance_labels   optional .npy or .csv with one label per instance
    """

    table: pd.DataFrame
    folder: Path = Path(".")
    name: str = "manifest"

    @classmethod
    def read(cls, path: str | Path) -> "Manifest":
        """Read a CSV or Parquet file; `check_table` and `check_files` examine its content."""
        path = Path(path)
        table = as_text(_read_table(path))
        if {"id", "label"} <= set(table.columns) and "path" not in table:
            raise DataError(
                f"{path}: column 'path' is missing: this is a table of labels, and a manifest also says where each bag "
                f"is; smmil prepare IMAGES --labels {path.name} --out study writes one"
            )
        need_columns(path, table, ("id", "path"))
        if table.empty:
            raise DataError(f"{path}: the table has no rows; add one row per bag")
        return cls(table, path.parent, str(path))

    def write(self, path: str | Path) -> None:
        """Write the table as CSV or Parquet, atomically. Paths are written as they are: keep the file in `folder`."""
        path = Path(path)
        with replacing(path) as temporary:
            if path.suffix.lower() == ".parquet":
                self.table.to_parquet(temporary, index=False)
            else:
                self.table.to_csv(temporary, index=False, lineterminator="\n")

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.table["id"])

    @cached_property
    def labels(self) -> dict[str, int | None]:
        """Class index of every bag; None where the table has none."""
        return dict(zip(self.ids, [label_of(v, self.name) for v in self._column("label")], strict=True))

    @cached_property
    def groups(self) -> dict[str, str]:
        """Patient of every bag; the bag's own id where no patient is given."""
        given = self._column("group" if "group" in self.table else "patient")
        return {i: g or i for i, g in zip(self.ids, given, strict=True)}

    @cached_property
    def splits(self) -> dict[str, str]:
        """Value of the column `split`: train, val, test or empty."""
        return dict(zip(self.ids, self._column("split"), strict=True))

    @cached_property
    def n_classes(self) -> int:
        return max((y for y in self.labels.values() if y is not None), default=0) + 1

    @cached_property
    def _paths(self) -> dict[str, str]:
        return dict(zip(self.ids, self.table["path"], strict=True))

    @cached_property
    def _sidecars(self) -> dict[str, str]:
        return dict(zip(self.ids, self._column("instance_labels"), strict=True))

    def _column(self, name: str) -> list[str]:
        return list(self.table[name]) if name in self.table else [""] * len(self)

    def _known(self, id_: str) -> str:
        if id_ not in self._paths:
            raise DataError(f"{self.name}: there is no bag {id_!r}; {suggest(id_, self.ids[:10000])}")
        return id_

    def path_of(self, id_: str) -> Path:
        return self.folder / self._paths[self._known(id_)]

    def instance_labels_of(self, id_: str) -> Path | None:
        sidecar = self._sidecars[self._known(id_)]
        return self.folder / sidecar if sidecar else None

    def bag(self, id_: str, *, verify: bool = True, instance_labels: bool = True) -> Bag:
        """Read one bag with its label and instance labels; a label file wins over labels inside the bag file.

        verify           compare the stored checksum        instance_labels  False: none, and label files stay closed
        """
        y = self.labels[id_]
        bag = read_bag(self.path_of(id_), verify=verify, instance_labels=instance_labels)
        y_inst = self._instance_labels(id_, bag) if instance_labels else None
        return replace(bag, id=id_, y=y, y_inst=y_inst)

    def _instance_labels(self, id_: str, bag: Bag) -> Tensor | None:
        """Instance labels from the label file, else from the bag file; checked against the bag and its label."""
        path = self.instance_labels_of(id_)
        if path is not None:
            labels = read_instance_labels(path)
        elif bag.y_inst is not None:
            labels = bag.y_inst.numpy()
        else:
            return None
        check_instance_labels(str(path or self.path_of(id_)), labels, bag.n, self.labels[id_])
        return torch.from_numpy(labels)

    def select(self, ids: Iterable[str]) -> "Manifest":
        """The rows with these ids, in this order."""
        rows = self.table.set_index("id", drop=False).loc[[self._known(i) for i in ids]]
        return Manifest(rows.reset_index(drop=True), self.folder, self.name)

    def digest(self) -> str:
        """Checksum of the content of the table, independent of the order of rows and columns."""
        ordered = self.table[sorted(self.table.columns)].astype(str)
        return digest(*ordered.columns, *sorted("\x1f".join(row) for row in ordered.itertuples(index=False, name=None)))

    def check_table(self, *, training: bool = True) -> None:
        """Check the table without opening a bag; one error lists all problems."""
        raise_all(self.name, table_problems(self.table, training))

    def check_files(self, progress: Progress | None = None) -> None:
        """Read every bag once: files present and sound, one feature width, instance labels that fit."""
        raise_all(self.name, _missing_files(self))
        raise_all(self.name, _file_problems(self, progress))

    def check(self, progress: Progress | None = None, *, training: bool = True) -> None:
        """`check_table`, then `check_files`."""
        self.check_table(training=training)
        self.check_files(progress)


def describe_manifest(path: str | Path) -> dict[str, Any]:
    """Summary of a manifest as plain JSON values, with its problems as warnings."""
    manifest = Manifest.read(path)
    table = manifest.table
    groups = Counter(manifest.groups.values())
    missing = _missing_files(manifest)
    return {
        "file": str(path),
        "bags": len(manifest),
        "labels": _counted(table["label"]) if "label" in table else None,
        "groups": len(groups),
        "groups_with_several_bags": sum(n > 1 for n in groups.values()),
        "splits": _counted(table["split"]) if "split" in table else None,
        "instance_labels": sum(bool(manifest.instance_labels_of(i)) for i in manifest.ids),
        "other_columns": [c for c in table.columns if c not in COLUMNS],
        "warnings": table_problems(table, training=True) + missing,
    }


def _read_table(path: Path) -> pd.DataFrame:
    wanted = "give a .csv or .parquet table with the columns id, path, label"
    if path.suffix.lower() == ".csv":
        return read_text_table(path, wanted)
    if (path / "manifest.csv").is_file():
        raise DataError(f"{path}: is a folder; give the table in it, {path / 'manifest.csv'}")
    if path.suffix.lower() != ".parquet":
        raise DataError(f"{path}: a manifest is a .csv or .parquet file")
    try:
        return pd.read_parquet(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {wanted}") from None
    except (OSError, ValueError, LookupError) as problem:
        raise DataError(f"{path}: not readable as a table ({' '.join(str(problem).split())})") from None


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The table with known columns as plain text (whole numbers and labels without '.0', missing as empty)."""
    table = table.rename(columns=lambda c: str(c).strip())
    for column in set(COLUMNS) & set(table.columns):
        table[column] = pd.Series([_as_text(v) for v in table[column]], index=table.index, dtype=object)
    if "label" in table:
        table["label"] = [text.removesuffix(".0") if is_index(text) else text for text in table["label"]]
    return table


def _as_text(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def label_of(text: str, name: str) -> int | None:
    """Class index behind a label's text; None for an empty one."""
    if text == "":
        return None
    if not is_index(text):
        raise DataError(
            f"{name}: label {text!r} is not a class index; write 0..C-1 (for two classes: 0 = negative, 1 = positive)"
        )
    return int(text.removesuffix(".0"))


def is_index(text: str) -> bool:
    """Whether a text is a class index, as 1 or, from a spreadsheet, 1.0."""
    whole = text.removesuffix(".0")
    return whole.isascii() and whole.isdigit()


def raise_all(name: str, problems: list[str]) -> None:
    """One DataError with all problems (ten are spelled out), or nothing when there are none."""
    if not problems:
        return
    if len(problems) == 1:
        raise DataError(f"{name}: {problems[0]}")
    listed = "".join(f"\n  - {p}" for p in problems[:_LISTED])
    more = f"\n  and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    raise DataError(f"{name}: {len(problems)} problems{listed}{more}")


def table_problems(table: pd.DataFrame, training: bool) -> list[str]:
    """Problems that can be found without opening a file."""
    found = [*_column_problems(table, training), *_id_problems(table), *_split_problems(table)]
    return found + list(_label_problems(table, training))


def _column_problems(table: pd.DataFrame, training: bool) -> Iterator[str]:
    required = ("id", "path", "label") if training else ("id", "path")
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
        if column not in COLUMNS and near and near[0] not in table and near[0] not in required:
            yield f"unknown column {column!r}; did you mean {near[0]!r}? rename it"
        elif column.lower() in _PATIENT_COLUMNS and not {"group", "patient"} & set(table.columns):
            yield f"column {column!r} looks like the patient; rename it to 'group', or bags of one patient may leak"


def _id_problems(table: pd.DataFrame) -> Iterator[str]:
    if (empty := int((table["id"] == "").sum())) > 0:
        yield f"{empty} rows have an empty id; give every bag a name"
    yield from _formula_problems(table)
    if (pathless := table["id"][table["path"] == ""].tolist()) != []:
        yield f"no path for {first_few(pathless)}"
    if (twice := [i for i, n in Counter(table["id"]).items() if n > 1 and i]) != []:
        yield f"duplicate id: {first_few(twice)}; every bag needs its own id"
    places: dict[str, list[str]] = {}
    for id_, path in zip(table["id"], table["path"], strict=True):
        places.setdefault(os.path.normpath(path) if path else f"no path for {id_}", []).append(id_)
    if (shared := [f"{path} ({', '.join(ids[:3])})" for path, ids in places.items() if len(set(ids)) > 1]) != []:
        yield f"the same file under several ids: {first_few(shared)}; a bag must not be in the table twice"


def _formula_problems(table: pd.DataFrame) -> Iterator[str]:
    """Ids and patients that a spreadsheet would compute: they are part of every table smmil writes."""
    for column in ("id", "group", "patient"):
        names = [repr(name) for name in table[column] if begins_formula(name)] if column in table else []
        if names:
            yield f"{column} {first_few(names)} would be a formula in a spreadsheet; begin it otherwise"


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
            yield f"patient in two splits: {first_few(leaks)}; keep all bags of a patient together"


def _label_problems(table: pd.DataFrame, training: bool) -> Iterator[str]:
    if "label" not in table:
        return
    words = sorted({text for text in table["label"] if text and not is_index(text)})
    if words:
        problem = f"labels must be class indices 0..C-1, got {first_few(list(map(repr, words)))}"
        numbers = any(char.isdigit() for word in words for char in word)
        mapping = ", ".join(f"{word} = {i}" for i, word in enumerate(words[:5]))
        yield f"{problem}; correct these rows" if numbers else f"{problem}; map them, such as {mapping}"
        return
    if not training:
        return
    if (unlabelled := table["id"][table["label"] == ""].tolist()) != []:
        yield f"no label for {first_few(unlabelled)}; add it or leave the rows out"
    classes = sorted({int(text.removesuffix(".0")) for text in table["label"] if text})
    if len(classes) == 1:
        yield f"only one class ({classes[0]}) in the column label; training needs at least two"
    elif classes and classes != list(range(len(classes))):
        yield f"labels must be 0..C-1 without gaps, got {first_few(list(map(str, classes)))}; renumber them"


def _missing_files(manifest: "Manifest") -> list[str]:
    """One problem listing the bag and label files that do not exist."""
    wanted = [manifest.path_of(i) for i in manifest.ids]
    wanted += [p for i in manifest.ids if (p := manifest.instance_labels_of(i)) is not None]
    missing = [str(p) for p in wanted if not p.exists()]
    if not missing:
        return []
    return [f"{len(missing)} files are missing: {first_few(missing)}; paths count from {manifest.folder}"]


def _file_problems(manifest: "Manifest", progress: Progress | None = None) -> list[str]:
    """Problems found by reading every bag with its instance labels."""
    problems, widths = [], {}
    for done, id_ in enumerate(manifest.ids, 1):
        try:
            widths[id_] = manifest.bag(id_).x.shape[1]
        except DataError as problem:
            problems.append(str(problem))
        if progress is not None:
            progress(done, len(manifest))
    return problems + _width_problems(widths)


def _width_problems(widths: dict[str, int]) -> list[str]:
    if len(set(widths.values())) < 2:
        return []
    example = {width: id_ for id_, width in reversed(widths.items())}
    listed = ", ".join(f"{width} ({example[width]})" for width in sorted(example))
    return [f"bags of different feature width: {listed}; use one encoder for all"]


def _counted(words: Any) -> dict[str, int]:
    return {str(word) or "empty": n for word, n in sorted(Counter(words).items())}
