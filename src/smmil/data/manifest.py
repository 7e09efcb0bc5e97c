"""The table of a study: one row per bag with its file, label, patient and split."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from smmil.bag import Bag
from smmil.data import checks
from smmil.data.instance_labels import check_instance_labels, read_instance_labels
from smmil.data.tables import need_columns, read_text_table
from smmil.errors import DataError, suggest
from smmil.files import digest, replacing
from smmil.formats import read_bag


@dataclass(frozen=True, eq=False)
class Manifest:
    """Bags of a study. Text columns are kept as written; paths count from `folder`.

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
        """The manifest in a CSV or Parquet file; what it says is examined by `check_table` and `check_files`."""
        path = Path(path)
        table = checks.as_text(_read_table(path))
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
        return dict(zip(self.ids, [checks.label_of(v, self.name) for v in self._column("label")], strict=True))

    @cached_property
    def groups(self) -> dict[str, str]:
        """Patient of every bag; the bag's own id where no patient is given."""
        given = self._column("group" if "group" in self.table else "patient")
        return {i: g or i for i, g in zip(self.ids, given, strict=True)}

    @cached_property
    def splits(self) -> dict[str, str]:
        """What the column `split` says: train, val, test or empty."""
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

    def bag(self, id_: str, *, verify: bool = True) -> Bag:
        """One bag, read from its file, with label and instance labels; a sidecar wins over labels inside the file."""
        bag = read_bag(self.path_of(id_), verify=verify)
        sidecar, y = self.instance_labels_of(id_), self.labels[id_]
        labels = read_instance_labels(sidecar) if sidecar else None
        if labels is None and bag.y_inst is not None:
            labels = bag.y_inst.numpy()
        if labels is not None:
            check_instance_labels(str(sidecar or self.path_of(id_)), labels, bag.n, y)
        return checks.labelled(bag, id_, y, labels)

    def select(self, ids: Iterable[str]) -> "Manifest":
        """The rows with these ids, in this order."""
        rows = self.table.set_index("id", drop=False).loc[[self._known(i) for i in ids]]
        return Manifest(rows.reset_index(drop=True), self.folder, self.name)

    def digest(self) -> str:
        """Checksum over what the table says, whatever the order of rows and columns."""
        ordered = self.table[sorted(self.table.columns)].astype(str)
        return digest(*ordered.columns, *sorted("\x1f".join(row) for row in ordered.itertuples(index=False, name=None)))

    def check_table(self, *, training: bool = True) -> None:
        """Everything that can be told from the table alone; one error lists all problems."""
        checks.raise_all(self.name, checks.table_problems(self.table, training))

    def check_files(self, progress: checks.Progress | None = None) -> None:
        """Read every bag once: files present and sound, one feature width, instance labels that fit."""
        checks.raise_all(self.name, checks.missing_files(self))
        checks.raise_all(self.name, checks.file_problems(self, progress))

    def check(self, progress: checks.Progress | None = None, *, training: bool = True) -> None:
        """Both checks, the cheap one first."""
        self.check_table(training=training)
        self.check_files(progress)


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
