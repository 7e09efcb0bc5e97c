"""The manifest of a study: a table with file, label, patient and split of every bag, and the checks before training."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from smmil.bag import Bag
from smmil.data import tables
from smmil.data.tables import COLUMNS, _first_few, _table_problems, read_instance_labels, read_text_table
from smmil.errors import DataError, suggest
from smmil.files import digest, read_parquet, replacing
from smmil.formats import read_bag

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
        table = tables.as_text(_read_table(path))
        if {"id", "label"} <= set(table.columns) and "path" not in table:
            raise DataError(
                f"{path}: column 'path' is missing: this is a table of labels, and a manifest also says where each bag "
                f"is; smmil prepare IMAGES --labels {path.name} --out study writes one"
            )
        tables._need_columns(path, table, ("id", "path"))
        if table.empty:
            raise DataError(f"{path}: the table has no rows; add one row per bag")
        return cls(table, path.parent, str(path))

    def write(self, path: str | Path) -> None:
        """Write the table as CSV or Parquet, atomically. Paths are written as they are: keep the file in `folder`."""
        path = Path(path)
        with replacing(path) as temporary:
            if path.suffix.lower() == ".parquet":
                self.table.to_parquet(temporary, index=False, write_page_checksum=True)
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
        return {i: tables._label_of(text, self.name) for i, text in self._column("label").items()}

    @cached_property
    def groups(self) -> dict[str, str]:
        """Patient of every bag; the bag's own id where no patient is given."""
        return {i: g or i for i, g in self._column("group" if "group" in self.table else "patient").items()}

    @cached_property
    def splits(self) -> dict[str, str]:
        """Value of the column `split`: train, val, test or empty."""
        return self._column("split")

    @cached_property
    def n_classes(self) -> int:
        return max((y for y in self.labels.values() if y is not None), default=0) + 1

    @cached_property
    def _paths(self) -> dict[str, str]:
        return self._column("path")

    @cached_property
    def _label_files(self) -> dict[str, str]:
        return self._column("instance_labels")

    def _column(self, name: str) -> dict[str, str]:
        """A column by id, with empty texts where the table does not have it."""
        return dict(zip(self.ids, self.table[name] if name in self.table else [""] * len(self), strict=True))

    def _known(self, id_: str) -> str:
        if id_ not in self._paths:
            raise DataError(f"{self.name}: there is no bag {id_!r}; {suggest(id_, self.ids[:10000])}")
        return id_

    def path_of(self, id_: str) -> Path:
        return self.folder / self._paths[self._known(id_)]

    def instance_labels_of(self, id_: str) -> Path | None:
        file = self._label_files[self._known(id_)]
        return self.folder / file if file else None

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
        tables._check_instance_labels(str(path or self.path_of(id_)), labels, bag.n, self.labels[id_])
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
        self._refuse(_table_problems(self.table, training))

    def check_files(self, progress: Progress | None = None) -> None:
        """Read every bag once: files present and sound, one feature width, instance labels that fit."""
        self._refuse(self._missing_files())
        problems: list[str] = []
        widths: dict[int, str] = {}
        for done, id_ in enumerate(self.ids, 1):
            try:
                widths.setdefault(self.bag(id_).x.shape[1], id_)
            except DataError as problem:
                problems.append(str(problem))
            if progress is not None:
                progress(done, len(self))
        if len(widths) > 1:
            listed = ", ".join(f"{width} ({widths[width]})" for width in sorted(widths))
            problems.append(f"bags of different feature width: {listed}; use one encoder for all")
        self._refuse(problems)

    def check(self, progress: Progress | None = None, *, training: bool = True) -> None:
        """`check_table`, then `check_files`."""
        self.check_table(training=training)
        self.check_files(progress)

    def _missing_files(self) -> list[str]:
        """One problem listing the bag and label files that do not exist."""
        wanted = [self.path_of(i) for i in self.ids]
        wanted += [p for i in self.ids if (p := self.instance_labels_of(i)) is not None]
        missing = [str(p) for p in wanted if not p.exists()]
        if not missing:
            return []
        return [f"{len(missing)} files are missing: {_first_few(missing)}; paths count from {self.folder}"]

    def _refuse(self, problems: list[str]) -> None:
        """One DataError with all problems (ten are spelled out), or nothing when there are none."""
        if len(problems) == 1:
            raise DataError(f"{self.name}: {problems[0]}")
        if problems:
            listed = "".join(f"\n  - {p}" for p in problems[:_LISTED])
            more = f"\n  and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
            raise DataError(f"{self.name}: {len(problems)} problems{listed}{more}")


def describe_manifest(path: str | Path) -> dict[str, Any]:
    """Summary of a manifest as plain JSON values, with its problems as warnings."""
    manifest = Manifest.read(path)
    table = manifest.table
    groups = Counter(manifest.groups.values())
    return {
        "file": str(path),
        "bags": len(manifest),
        "labels": _counted(table["label"]) if "label" in table else None,
        "groups": len(groups),
        "groups_with_several_bags": sum(n > 1 for n in groups.values()),
        "splits": _counted(table["split"]) if "split" in table else None,
        "instance_labels": sum(bool(manifest.instance_labels_of(i)) for i in manifest.ids),
        "other_columns": [c for c in table.columns if c not in COLUMNS],
        "warnings": _table_problems(table, training=True) + manifest._missing_files(),
    }


def _read_table(path: Path) -> pd.DataFrame:
    wanted = "give a .csv or .parquet table with the columns id, path, label"
    if path.suffix.lower() == ".csv":
        return read_text_table(path, wanted)
    if (path / "manifest.csv").is_file():
        raise DataError(f"{path}: is a folder; give the table in it, {path / 'manifest.csv'}")
    if path.suffix.lower() != ".parquet":
        raise DataError(f"{path}: a manifest is a .csv or .parquet file")
    with tables._table_errors(path, wanted):
        return tables.as_text(read_parquet(path))


def _counted(words: Any) -> dict[str, int]:
    return {str(word) or "empty": n for word, n in sorted(Counter(words).items())}
