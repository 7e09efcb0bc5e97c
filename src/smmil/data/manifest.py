"""The manifest of a study: a table with file, label, patient and split of every bag, and the checks before training."""

import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from smmil.bag import Bag
from smmil.config import TargetConfig
from smmil.data import tables
from smmil.data.tables import COLUMNS, _first_few, _table_problems, read_instance_labels, read_text_table
from smmil.data.targets import TargetColumns, _described, _guessed_kind, find_columns, target_strata
from smmil.errors import DataError, suggest
from smmil.files import digest, read_json, read_parquet, remove_leftovers, replacing, write_text
from smmil.formats import find_reader, open_bag, read_bag
from smmil.formats.content import is_edgeless
from smmil.formats.rows import OpenBag
from smmil.formats.torchmil import companions
from smmil.runtime import available_cores, source_digest

Progress = Callable[[int, int], None]
_LISTED = 10
_CHECKED = ".smmil-checked.json"
_ALONE_S, _WORTH_S, _SETTLED_S = 2.0, 5.0, 2.0
_KNOWN_FILES = ("native", "trident", "stamp", "torchmil")


@dataclass(frozen=True, eq=False)
class Manifest:
    """Table of the bags of a study. Text columns are kept as written; paths are relative to `folder`.

    id, path          text, unique id (leading zeros are kept); path of the bag file
    label             class index 0..C-1; may be absent or empty when nothing is trained
    group             patient: bags of one patient never sit in two splits; `patient` is read as group; default: the id
    split             train, val, test or empty
    instance_labels   optional .npy or .csv with one label per instance
    With a `target` (`for_target`) other columns than the label are what is learned.
    """

    table: pd.DataFrame
    folder: Path = Path(".")
    name: str = "manifest"
    target: TargetColumns | None = None

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
                self.table.to_parquet(temporary, index=False, engine="pyarrow", write_page_checksum=True)
            else:
                self.table.to_csv(temporary, index=False, lineterminator="\n")

    def for_target(self, target: TargetConfig | TargetColumns | None) -> "Manifest":
        """The same table with what is to be predicted in other columns than the label; None: classes."""
        found = find_columns(target, self.table, self.name) if isinstance(target, TargetConfig) else target
        return self if found == self.target else Manifest(self.table, self.folder, self.name, found)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.table["id"])

    @cached_property
    def labels(self) -> dict[str, int | None]:
        """Class index of every bag, level, or whether any of several labels is 1; None where the table has none."""
        if self.target is not None:
            return {i: self.target.label(row) for i, row in self.targets.items()}
        return {i: tables._label_of(text, self.name) for i, text in self._column("label").items()}

    def strata(self, coarser: int = 0, ids: Sequence[str] | None = None) -> dict[str, int | None]:
        """Kind of every bag that each part of a split needs and a balanced sampler evens out: its class.

        Of another target: its finest strata among these bags, or coarser ones; None where nothing is known.
        """
        chosen = self.ids if ids is None else ids
        return target_strata(self.target, self.labels, self.targets, chosen, coarser)

    @cached_property
    def targets(self) -> dict[str, tuple[float, ...] | None]:
        """What is to be predicted of every bag, where it is no class; None where the table does not say it."""
        rows = [None] * len(self) if self.target is None else self.target.values(self.table)
        return dict(zip(self.ids, rows, strict=True))

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
        return replace(bag, id=id_, y=y, y_inst=y_inst, target=self._target_row(id_))

    def open_bag(self, id_: str, *, verify: bool = True, instance_labels: bool = True) -> OpenBag:
        """As `bag`, but with its features left in the file."""
        bag, rows = open_bag(self.path_of(id_), verify=verify, instance_labels=instance_labels)
        y_inst = self._instance_labels(id_, bag) if instance_labels else None
        target = self._target_row(id_)
        return OpenBag(replace(bag, id=id_, y=self.labels[id_], y_inst=y_inst, target=target), rows)

    def _target_row(self, id_: str) -> Tensor | None:
        row = None if self.target is None or self.target.kind == "ordinal" else self.targets[id_]
        return None if row is None else torch.tensor(row, dtype=torch.float64)

    def _instance_labels(self, id_: str, bag: Bag) -> Tensor | None:
        """Instance labels from the label file, else from the bag file; checked against the bag and its label."""
        path = self.instance_labels_of(id_)
        if path is not None:
            labels = read_instance_labels(path)
        elif bag.y_inst is not None:
            labels = bag.y_inst.numpy()
        else:
            return None
        y = self.labels[id_] if self.target is None else None  # level 0 may have lesions, and so may an unknown label
        tables._check_instance_labels(str(path or self.path_of(id_)), labels, bag.n, y)
        return torch.from_numpy(labels)

    def select(self, ids: Iterable[str]) -> "Manifest":
        """The rows with these ids, in this order."""
        rows = self.table.set_index("id", drop=False).loc[[self._known(i) for i in ids]]
        return Manifest(rows.reset_index(drop=True), self.folder, self.name, self.target)

    def digest(self) -> str:
        """Checksum of the content of the table, independent of the order of rows and columns."""
        ordered = self.table[sorted(self.table.columns)].astype(str)
        return digest(*ordered.columns, *sorted("\x1f".join(row) for row in ordered.itertuples(index=False, name=None)))

    def check_table(self, *, training: bool = True) -> None:
        """Check the table without opening a bag; one error lists all problems."""
        if self.target is None:
            self._refuse(_table_problems(self.table, training))
            return
        problems = _table_problems(self.table, training, self.target.columns)
        self._refuse([*problems, *self.target.problems(self.table, training)])

    def check_files(self, progress: Progress | None = None) -> int:
        """Read every bag once: files present and sound, one feature width, instance labels that fit.

        Gives the number of bags with fewer than ten instances and no two neighbours.

        A check that takes seconds is shared among processes and remembered beside the manifest: bags whose size, times
        and inode are those of a sound file are not read again. Whoever uses a bag still compares its checksum.
        """
        self._refuse(self._missing_files())
        began, known, marks = time.monotonic(), self._remembered(), {i: self._mark(i) for i in self.ids}
        found = {
            i: _Checked(known[i][1], True, edgeless=known[i][2])
            for i in self.ids
            if i in known and known[i][0] == marks[i]
        }
        old = len(found)
        for done, (id_, checked) in enumerate(_checked(self, [i for i in self.ids if i not in found]), old + 1):
            found[id_] = checked
            if progress is not None:
                progress(done, len(self))
        if progress is not None and old == len(self):
            progress(old, old)
        if time.monotonic() - began > _WORTH_S:
            sound = {i: [marks[i], c.width, c.edgeless] for i, c in found.items() if c.known_files and not c.problem}
            self._remember(known | sound)
        widths: dict[int, str] = {}
        for id_ in self.ids:
            if not found[id_].problem:
                widths.setdefault(found[id_].width, id_)
        problems = [found[i].problem for i in self.ids if found[i].problem]
        if len(widths) > 1:
            listed = ", ".join(f"{width} ({widths[width]})" for width in sorted(widths))
            problems.append(f"bags of different feature width: {listed}; use one encoder for all")
        self._refuse(problems)
        return sum(found[i].edgeless for i in self.ids)

    def _mark(self, id_: str) -> list[Any] | None:
        """What shows that the files and the label of a bag are those of before; None when they changed just now."""
        path, labels = self.path_of(id_), self.instance_labels_of(id_)
        files = [path, labels, *(companions(path) if path.suffix.lower() == ".npy" else [])]
        try:
            facts = [None if f is None or (f not in (path, labels) and not f.exists()) else f.stat() for f in files]
        except OSError:
            return None
        if any(time.time() - max(s.st_mtime, s.st_ctime) < _SETTLED_S for s in facts if s is not None):
            return None  # a second change within a tick of the file system's clock would not show
        shown = [s and [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for s in facts]
        return [*map(str, files), self.labels[id_], *shown]

    @property
    def _memory(self) -> Path | None:
        """The file of what was checked, beside a manifest that is a file itself."""
        return Path(self.name).with_name(_CHECKED) if Path(self.name).is_file() else None

    def _remembered(self) -> dict[str, Any]:
        """Mark, width and edgeless of bags that this version has checked, by id; what else lies there is ignored."""
        with suppress(DataError, KeyError, TypeError, AttributeError, OSError):
            if self._memory is None or not self._memory.exists():
                return {}
            remove_leftovers(self._memory.parent)
            stored = read_json(self._memory)
            kept = stored["bags"] if stored["by"] == source_digest() else {}
            shape = [int, bool]
            return {i: v for i, v in kept.items() if isinstance(v, list) and [*map(type, v[1:])] == shape and v[0]}
        return {}

    def _remember(self, checked: dict[str, Any]) -> None:
        """Store what was checked; a folder that cannot be written to is left as it is."""
        content = {"by": source_digest(), "bags": {i: v for i, v in checked.items() if v[0]}}
        if self._memory is not None:
            with suppress(OSError):
                write_text(self._memory, json.dumps(content))

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


class _Checked(NamedTuple):
    """What reading a bag showed: its feature width, whether its files are known, what is wrong, no neighbours."""

    width: int
    known_files: bool
    problem: str = ""
    edgeless: bool = False


def _check_bag(manifest: Manifest, id_: str) -> _Checked:
    try:
        bag, rows = manifest.open_bag(id_)
        known_files = find_reader(manifest.path_of(id_)).name in _KNOWN_FILES
        return _Checked(rows.width, known_files, edgeless=is_edgeless(bag.n, bag.graph))
    except DataError as problem:
        return _Checked(0, False, str(problem))


def _checked(manifest: Manifest, ids: Sequence[str]) -> Iterator[tuple[str, _Checked]]:
    """Check bags in this order: here, and after a moment in forked processes, one per core; if one dies, here again.

    Processes, since HDF5 lets one thread read at a time; forked, since a script may run without a main guard.
    """
    began, done, cores = time.monotonic(), 0, available_cores()
    alone = cores < 2 or sys.platform != "linux" or multiprocessing.current_process().daemon
    while done < len(ids) and (alone or time.monotonic() - began < _ALONE_S):
        yield ids[done], _check_bag(manifest, ids[done])
        done += 1
    if done < len(ids):
        forked = multiprocessing.get_context("fork")
        with suppress(BrokenProcessPool), ProcessPoolExecutor(cores, forked, _initialize_worker, (manifest,)) as pool:
            for checked in pool.map(_check_in_worker, ids[done:], chunksize=16):
                yield ids[done], checked
                done += 1
    for id_ in ids[done:]:
        yield id_, _check_bag(manifest, id_)


_ADOPTED: list[Manifest] = []


def _initialize_worker(manifest: Manifest) -> None:
    """Keep the manifest in a worker process, which uses one thread."""
    torch.set_num_threads(1)
    _ADOPTED.append(manifest)


def _check_in_worker(id_: str) -> _Checked:
    return _check_bag(_ADOPTED[-1], id_)


def describe_manifest(path: str | Path) -> dict[str, Any]:
    """Summary of a manifest as plain JSON values, with its problems as warnings."""
    manifest = Manifest.read(path)
    table, kind = manifest.table, _guessed_kind(manifest.table)
    target = find_columns(TargetConfig(kind=kind), table, str(path))  # type: ignore[arg-type]
    groups = Counter(manifest.groups.values())
    problems = _table_problems(table, True, None if target is None else target.columns)
    return {
        "file": str(path),
        "bags": len(manifest),
        **({} if target is None else {"target": _described(target, table)}),
        "labels": _counted(table["label"]) if "label" in table and target is None else None,
        "groups": len(groups),
        "groups_with_several_bags": sum(n > 1 for n in groups.values()),
        "splits": _counted(table["split"]) if "split" in table else None,
        "instance_labels": sum(bool(manifest.instance_labels_of(i)) for i in manifest.ids),
        "other_columns": [c for c in table.columns if c not in (*COLUMNS, *(target.columns if target else ()))],
        "warnings": [*problems, *(target.problems(table, True) if target else ()), *manifest._missing_files()],
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
