"""Data sets of a study: manifests on disk, content digests, and a derived set for the trust report."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.splits import PARTS, Split, load_splits, make_splits, refuse_leaks, save_splits, small_test_note
from smmil.errors import ConfigError, DataError
from smmil.evaluate.resampling import LEAST
from smmil.experiments.study import Dataset, Synthetic
from smmil.files import digest, read_json, remove_leftovers, replacing, write_json
from smmil.synthetic.features import synthetic_scans, synthetic_slides, write_synthetic

RANDOM = "random labels"


class _PreparedSet(NamedTuple):
    """A data set on disk: path of its manifest and digest of its content."""

    manifest: Path
    digest: str


def _prepare(dataset: Dataset, folder: Path) -> _PreparedSet:
    """Locate a data set and hash its content; a synthetic one is written into `folder` unless it is there and valid."""
    if dataset.missing is not None:
        raise DataError(
            f"data set {dataset.name!r}: its location is not given; use --data {dataset.missing}=manifest.csv "
            f"or set the environment variable {dataset.missing}"
        )
    spec = dataset.synthetic
    remove_leftovers(folder)
    path = Path(str(dataset.manifest)) if spec is None else _write_synthetic_set(spec, folder)
    return _PreparedSet(path, _content_digest(Manifest.read(path), folder / "digests.json"))


def _write_synthetic_set(spec: Synthetic, folder: Path) -> Path:
    """Write a synthetic set into a folder named by a hash of its options, unless it is there; gives its manifest."""
    facts = {**spec.model_dump(exclude={"options"}), **{f"options.{k}": v for k, v in spec.options.items()}}
    place = folder / f"{spec.kind}-{digest(repr(sorted(facts.items())))[:12]}"
    manifest = place / "manifest.csv"
    _clear(place)
    try:
        Manifest.read(manifest).check_files()
    except DataError:
        make = synthetic_slides if spec.kind == "slides" else synthetic_scans
        options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.options.items()}
        try:
            bags = make(spec.bags, seed=spec.seed, **options)
        except TypeError as problem:
            raise ConfigError(f"synthetic {spec.kind}: {problem}; see smmil.data.synthetic_{spec.kind}") from None
        write_synthetic(place, bags)
    return manifest


def _clear(place: Path) -> None:
    """Remove what killed processes left in a set: when it is complete, nothing is written that would do so."""
    for folder in (place, place / "bags", place / "labels"):
        remove_leftovers(folder)


def _content_digest(manifest: Manifest, cache_file: Path) -> str:
    """Digest of labels, patients, splits and the bytes of every file, independent of their paths.

    Digests are cached in the JSON file `cache_file`: files of unchanged size and time are not read again.
    """
    try:
        cached = read_json(cache_file)
    except DataError:
        cached = None  # an unreadable cache is rebuilt
    known = cached if isinstance(cached, dict) else {}
    seen: dict[str, Any] = {}
    rows = []
    for id_ in sorted(manifest.ids):
        places = [manifest.path_of(id_), manifest.instance_labels_of(id_)]
        marks = ["" if path is None else _cached_file_digest(path, known, seen) for path in places]
        rows.append([id_, manifest.labels[id_], manifest.groups[id_], manifest.splits[id_], *marks])
    if any(known.get(key) != value for key, value in seen.items()):
        write_json(cache_file, {**known, **seen})
    return digest(repr(rows))


def _cached_file_digest(path: Path, known: dict[str, Any], seen: dict[str, Any]) -> str:
    try:
        facts = path.stat()
        mark = [facts.st_size, facts.st_mtime_ns]
        before = known.get(str(path.resolve()))
        value = before[2] if before is not None and before[:2] == mark else None
        if value is None:
            with path.open("rb") as stream:
                value = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror}); check the manifest") from None
    seen[str(path.resolve())] = [*mark, value]
    return value


def _agreeing_pairs(y_inst: np.ndarray, edges: np.ndarray) -> tuple[int, int]:
    """How many edges between labelled instances join equal labels, and how many such edges there are."""
    a, b = y_inst[edges[0]], y_inst[edges[1]]
    known = (a >= 0) & (b >= 0) & (edges[0] != edges[1])
    return int((a == b)[known].sum()), int(known.sum())


def _share_of(part: int, whole: int) -> float:
    """Ratio of two counts; nan when the second is 0."""
    return part / whole if whole else float("nan")


class _Folds(NamedTuple):
    """Folds of a data set to train, notes about others, warnings before training, and whether test sets rotate."""

    numbers: list[int]
    notes: list[str]
    warnings: list[str]
    rotate: bool


def _folds_to_train(dataset: Dataset, ready: _PreparedSet, asked: Sequence[int] | None) -> _Folds:
    """Folds of the data set to train, and a note where they differ from the number of existing folds.

    asked  folds the study asks for. Those, and `folds` of a data set, must exist; the default number of folds is
    lowered to what a file of splits or the marks of the manifest give.
    """
    manifest = Manifest.read(ready.manifest)
    try:
        splits = _splits_of(dataset, manifest)
        folds, notes = _choose_folds(dataset, len(splits), asked)
        for fold in folds:
            refuse_leaks(manifest, splits[fold])
            for part in (part for part in PARTS if not getattr(splits[fold], part)):
                raise DataError(f"{manifest.name}: fold {fold} has no {part} bags; every fold of a study needs some")
    except DataError as problem:
        raise DataError(f"data set {dataset.name!r}: {problem}") from None
    rotate = _test_sets_differ(splits)
    small = "" if rotate or dataset.splits is not None else small_test_note(manifest, splits[folds[0]], LEAST)
    return _Folds(folds, notes, [f"{dataset.name}: {small}"] if small else [], rotate)


def _test_sets_differ(splits: Sequence[Split]) -> bool:
    """Whether some case tests in one fold and trains or validates in another."""
    return len({frozenset(split.test) for split in splits}) > 1


def _splits_of(dataset: Dataset, manifest: Manifest) -> list[Split]:
    """All splits of the data set: those of its file, those its manifest marks, or drawn ones."""
    if dataset.splits is not None:
        return load_splits(dataset.splits)
    shares = {"val_share": dataset.val_share, "test_share": dataset.test_share}
    return make_splits(manifest, folds=dataset.folds, seed=dataset.split_seed, test=dataset.test, **shares)


def _choose_folds(dataset: Dataset, there: int, asked: Sequence[int] | None) -> tuple[list[int], list[str]]:
    if dataset.splits is not None:
        source = f"{dataset.splits} has"
    else:
        source = "it has" if there == dataset.folds else f"{dataset.manifest} marks every row, which gives"
    has = f"{source} {'one split, fold 0' if there == 1 else f'{there} splits, folds 0 to {there - 1}'}"
    if asked is not None:
        absent = [fold for fold in asked if fold >= there]
        if absent:
            raise ConfigError(
                f"data set {dataset.name!r}: fold {absent[0]} was asked for, but {has}; change the folds of the study"
            )
        return list(asked), []
    if dataset.folds > there:
        if "folds" in dataset.model_fields_set:
            raise ConfigError(
                f"data set {dataset.name!r}: folds: {dataset.folds} was asked for, but {has}; leave it out"
            )
        return list(range(there)), [f"{dataset.name}: {has}; no other fold is trained"]
    unused = [f"{dataset.name}: {has}; {dataset.folds} are trained, give the study folds: [...] for others"]
    return list(range(dataset.folds)), unused if there > dataset.folds else []


def _random_labels(dataset: Dataset, ready: _PreparedSet, folder: Path, seed: int = 0) -> Dataset:
    """Derived set: the same bags and splits, with the labels of all but the test cases permuted.

    Whatever a model still finds in the test cases, it has not learned from labels. Instance labels of training cases
    are made unknown, since they would contradict the new ones.
    """
    table = Manifest.read(ready.manifest)
    splits = _splits_of(dataset, table)
    splits = splits[:1] if _test_sets_differ(splits) else splits  # a case cannot keep its label and lose it
    place = folder / f"random-{digest(ready.digest, repr(splits), str(seed))[:12]}"
    _clear(place)
    test = {id_ for split in splits for id_ in split.test}
    others = [id_ for id_ in sorted(table.ids) if id_ not in test]
    permuted = np.random.default_rng(seed).permutation(np.array([table.labels[i] for i in others]))
    labels = {**table.labels, **dict(zip(others, permuted.tolist(), strict=True))}
    rows = [_row(table, id_) | {"label": str(labels[id_])} for id_ in sorted(table.ids)]
    for row in (row for row in rows if row["id"] not in test):
        row["instance_labels"] = _hidden_labels(table, row["id"], place)
    return _write_derived_set(dataset, f"{dataset.name} ({RANDOM})", place, rows, splits)


def _row(table: Manifest, id_: str) -> dict[str, str]:
    path, sidecar = table.path_of(id_), table.instance_labels_of(id_)
    row = {"id": id_, "path": str(path.absolute()), "label": str(table.labels[id_]), "group": table.groups[id_]}
    return row | {"instance_labels": "" if sidecar is None else str(sidecar.absolute())}


def _hidden_labels(table: Manifest, id_: str, place: Path) -> str:
    """Path of a file that marks every instance as unknown."""
    path = place / "labels" / f"{digest(id_)[:20]}.npy"
    if not path.exists():
        with replacing(path) as temporary:
            np.save(temporary, np.full(table.bag(id_).n, -1, dtype=np.int8), allow_pickle=False)
    return str(path.absolute())


def _write_derived_set(
    dataset: Dataset, name: str, place: Path, rows: list[dict[str, str]], splits: list[Split]
) -> Dataset:
    """Write manifest and splits of a derived set; its name differs from all data sets of the paper."""
    Manifest(pd.DataFrame(rows), place).write(place / "manifest.csv")
    save_splits(place / "splits.json", splits)
    files = {"manifest": str((place / "manifest.csv").absolute()), "splits": str((place / "splits.json").absolute())}
    return dataset.model_copy(update={"name": name, "dataset": name, "synthetic": None, "test": "fixed", **files})
