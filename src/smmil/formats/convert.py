"""Feature files of one project converted to those of another; what a format cannot hold is listed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, check_choice
from smmil.files import digest, need_file, read_json, remove_leftovers, replacing, write_json, write_rows
from smmil.formats import READERS, _choose_reader, _read_stored
from smmil.formats.content import Stored, _as_int8, _frame_json, _full_rule, _WritePlan, begins_formula
from smmil.formats.hdf5 import reader_errors
from smmil.formats.inspection import find_bags
from smmil.formats.stamp import _in_pixels
from smmil.frame import Frame

TARGETS = ("native", "trident", "clam", "stamp", "torchmil")
LEDGER = "convert_files.json"


@dataclass
class Converted:
    """What was done: cases written now, cases that were there already, failures by file, notes by case."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)


def convert(
    source: str | Path,
    *,
    to: str,
    out: str | Path,
    mpp: float | None = None,
    encoder: str | None = None,
    graph: str | Mapping[str, Any] | None = None,
    labels: Mapping[str, int] | None = None,
    beside: Callable[[Path], np.ndarray | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write every bag of a file or folder in the layout of another project below `out`.

    mpp      micrometres per level-0 pixel, where the files do not say it
    encoder  name of the encoder, where the files do not say it
    graph    how neighbours are found from now on, such as "knn" or {"kind": "radius", "radius": 900}; native alone
    labels   label of each case, for torchmil's folder of labels
    beside   labels of the instances of a bag file that lie outside it, or None; they are written where the target can
             hold them and listed as lost where it cannot

    Files that hold the right content already are kept, so an interrupted call can be repeated; foreign files
    are never overwritten. Failures, notes, and labels the target cannot hold are written as tables next to the result.
    """
    check_choice(to, TARGETS, "target format")
    if mpp is not None and not 0 < mpp < float("inf"):
        raise DataError(f"mpp must be a positive number of micrometres, got {mpp}")
    if graph is not None and to != "native":
        raise DataError(
            f"graph: only native files say how neighbours are found, {to} has no place for it; leave it out"
        )
    rule = None if graph is None else json.dumps(_full_rule(graph))
    paths, others = find_bags(source, Path(out))
    if not paths:
        raise DataError(
            f"{source}: no feature file found; expected .h5, .pt, .npy in a folder features_…, .zarr or .csv"
        )
    work = _Conversion(to, Path(out), mpp, encoder, rule, dict(labels or {}), beside, Converted(others=others))
    try:
        for count, path in enumerate(paths, 1):
            work.one(path)
            if progress is not None:
                progress(count, len(paths))
    finally:
        work.write_tables()
    return work.done


@dataclass
class _Conversion:
    to: str
    out: Path
    mpp: float | None
    encoder: str | None
    rule: str | None
    labels: dict[str, int]
    beside: Callable[[Path], np.ndarray | None] | None
    done: Converted
    claimed: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = _ledger(self.out)

    def one(self, path: Path) -> None:
        """Convert one case; what is wrong with it is noted and the others go on."""
        try:
            with reader_errors(path):
                stored, plan = self._plan(path)
            changed = self._place(plan, path)
        except DataError as problem:
            self.done.failed[str(path)] = str(problem)
            return
        (self.done.written if changed else self.done.kept).append(stored.id)
        self.done.notes += [(stored.id, note) for note in plan.notes]

    def _plan(self, path: Path) -> tuple[Stored, _WritePlan]:
        reader = _choose_reader(path)
        stored = _read_stored(path, reader)
        # Instance labels next to the file override those inside, as in a manifest.
        if self.beside is not None and (labels := self.beside(path)) is not None:
            if len(labels) != len(stored.features):
                raise DataError(f"{len(labels):,} instance labels beside it for {len(stored.features):,} instances")
            stored = replace(stored, y_inst=_as_int8(labels))
        if self.rule is not None:
            stored = replace(stored, rule=self.rule, edges=None)
            stored.connected_graph()  # what the rule cannot connect is refused here, not in training
        if begins_formula(stored.id):
            raise DataError(f"its name {stored.id!r} would be a formula in the tables of a study; rename the file")
        facts = reader.all_facts(path, stored)
        if self.encoder is not None:
            _refuse_other("encoder", facts.get("encoder"), self.encoder)
            facts["encoder"] = self.encoder
        stored = _sized(stored, self.mpp, reader.name)
        stored.connected_graph()
        label = self.labels.get(stored.id, reader.label(path))
        if label is not None:
            self.done.labels[stored.id] = label
        target = next(target for target in READERS if target.name == self.to)
        return stored, target.plan(stored, facts, label)

    def _place(self, plan: _WritePlan, source: Path) -> bool:
        """Write the files that are not there yet; whether any had to be written."""
        for relative in plan.files:
            if (other := self.claimed.setdefault(relative, source)) != source:
                raise DataError(f"{source}: would become {relative}, as {other} does already; convert them one by one")
        for folder in {(self.out / relative).parent for relative in plan.files}:
            remove_leftovers(folder)
        changed = [self._put(relative, content()) for relative, content in plan.files.items()]
        return any(changed)

    def _put(self, relative: str, content: bytes) -> bool:
        path = self.out / relative
        if path.exists():
            found = need_file(path).read_bytes()
            if found == content:
                self.ledger[relative] = digest(content)
                return False
            if found and self.ledger.get(relative) != digest(found):  # an empty file is what an interrupted disk left
                raise DataError(f"{path}: is there already and was not written by smmil convert; choose another --out")
        with replacing(path) as temporary:
            temporary.write_bytes(content)
        self.ledger[relative] = digest(content)
        return True

    def write_tables(self) -> None:
        """What happened, as tables next to the files; a table without rows is removed."""
        if not self.out.is_dir():
            if not self.done.failed:
                return
            self.out.mkdir(parents=True)
        write_json(self.out / LEDGER, {"files": _ledger(self.out) | self.ledger})  # with what others wrote meanwhile
        write_rows(self.out / "convert_failures.csv", ("file", "reason"), self.done.failed.items())
        write_rows(self.out / "convert_notes.csv", ("id", "note"), self.done.notes)
        labels = () if self.to == "torchmil" else self.done.labels.items()
        write_rows(self.out / "convert_labels.csv", ("id", "label"), labels, exact=True)


def _ledger(out: Path) -> dict[str, str]:
    """Digest of every file that earlier conversions wrote."""
    content = read_json(out / LEDGER) if (out / LEDGER).exists() else {"files": {}}
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise DataError(f"{out / LEDGER}: not the list of files of smmil convert; remove it or choose another --out")
    return dict(content["files"])


def _sized(stored: Stored, mpp: float | None, format_: str) -> Stored:
    """The case with its pixel size, when it was given; micrometres become pixels."""
    frame = stored.parsed_frame()
    if mpp is None or frame is None:
        return stored
    if format_ == "stamp":
        return _in_pixels(stored, mpp)
    if frame.spacing is not None:
        _refuse_other("mpp", frame.spacing[0], mpp)
        return stored
    sized = Frame(frame.patch, (mpp,) * len(frame.patch), "um", frame.stride)
    return replace(stored, frame=_frame_json(sized))


def _refuse_other(name: str, stated: Any, given: Any) -> None:
    if stated is not None and stated != given:
        raise DataError(f"the file says {name} {stated!r}, but --{name} {given!r} was given; leave the option out")
