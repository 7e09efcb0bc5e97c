"""Tables of CLAM, STAMP and torchmil as manifests, and instance labels found through a manifest next to bag files."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.sources import _count_lines, _read_parts
from smmil.data.splits import make_splits, save_splits
from smmil.data.tables import (
    TableColumns,
    _label_of,
    _option_name,
    _read_excel,
    _relative,
    _stripped,
    class_indices,
    read_instance_labels,
    read_text_table,
)
from smmil.errors import ConfigError, DataError, check_choice
from smmil.formats.hdf5 import reader_errors
from smmil.formats.inspection import find_bags
from smmil.formats.torchmil import TorchmilReader

NAME = "manifest.csv"


def clam_manifest(
    table: str | Path,
    features: str | Path,
    *,
    split: str | Path | None = None,
    classes: Sequence[str] | None = None,
    folder: str | Path = ".",
) -> Manifest:
    """A manifest from CLAM's table (case_id, slide_id, label) and, if given, one of its splits_<i>.csv.

    features  folder that holds h5_files or pt_files, or the files themselves
    classes   the labels in the order 0, 1, …; needed when they are words
    folder    where the manifest will lie; its paths count from there
    """
    rows = _read(table, ("case_id", "slide_id", "label"))
    ids = rows["slide_id"].tolist()
    content = {
        "id": ids,
        "path": [_relative(_clam_file(Path(features), id_), folder) for id_ in ids],
        "label": class_indices(table, rows["label"], classes),
        "group": rows["case_id"].tolist(),
    }
    if split is not None:
        content["split"] = _marks(split, ids)
    return _manifest(content, rows["label"], folder, table)


def features_manifest(
    table: str | Path,
    features: str | Path,
    *,
    classes: Sequence[str] | None = None,
    id_column: str = "id",
    label_column: str = "label",
    patient_column: str = "patient",
    folder: str | Path = ".",
) -> tuple[Manifest, dict[str, str]]:
    """A manifest of the feature files below a folder, whoever wrote them, for a table id,label[,patient,split].

    Also gives the files that are no bags, such as features of whole slides, with the reason.
    """
    columns = TableColumns(id_column, label_column, patient_column)
    rows = _stripped(table, columns.renamed(table, _read(table, ())), ("id", "label"), options=True)
    bags, others = find_bags(features)
    places: dict[str, Path] = {}
    for bag in bags:
        if (other := places.setdefault(bag.stem, bag)) is not bag:
            raise DataError(f"{bag}: the same case as {other}; give the folder of one encoder and one format")
    if lost := sorted(set(rows["id"]) - set(places)):
        raise DataError(f"{table}: no feature file below {features} for {len(lost)} cases, such as {lost[0]!r}")
    content = {
        "id": rows["id"].tolist(),
        "path": [_relative(places[id_], folder) for id_ in rows["id"]],
        "label": class_indices(table, rows["label"], classes),
    }
    content |= {ours: rows[name].tolist() for name, ours in (("patient", "group"), ("split", "split")) if name in rows}
    return _manifest(content, rows["label"], folder, table), others


def stamp_manifest(
    clini: str | Path,
    slides: str | Path,
    features: str | Path,
    *,
    label: str,
    classes: Sequence[str] | None = None,
    patient: str = "PATIENT",
    filename: str = "FILENAME",
    folder: str | Path = ".",
) -> Manifest:
    """A manifest from STAMP's tables: `clini` (patient and label), `slides` (patient and file name below `features`).

    Slides of a patient without a label, and patients without a slide, are an error that counts them.
    """
    people, files = _read(clini, (patient, label)), _read(slides, (patient, filename))
    if (twice := people[patient][people[patient].duplicated()].tolist()) != []:
        raise DataError(f"{clini}: patient {twice[0]!r} has two rows; keep one")
    known = dict(zip(people[patient], people[label], strict=True))
    for name, missing in (
        (f"{slides}: no row in {clini} for the patient of", sorted(set(files[patient]) - set(known))),
        (f"{clini}: no slide in {slides} for", sorted(set(known) - set(files[patient]))),
    ):
        if missing:
            raise DataError(f"{name} {len(missing)} patients, such as {missing[0]!r}; add or remove the rows")
    words = pd.Series([known[p] for p in files[patient]])
    content = {
        "id": [os.path.splitext(name)[0] for name in files[filename]],
        "path": [_relative(Path(features) / name, folder) for name in files[filename]],
        "label": class_indices(clini, words, classes),
        "group": files[patient].tolist(),
    }
    return _manifest(content, words, folder, slides)


def torchmil_manifest(
    root: str | Path, encoder: str, *, folder: str | Path = ".", allow_missing: bool = False
) -> tuple[Manifest, dict[str, str]]:
    """A manifest from torchmil's folder: splits.csv, features/features_<encoder>, labels and instance labels.

    Also gives what is worth knowing of single bags. Without features or label a bag is refused, or with
    `allow_missing` left out; no label is guessed from the instances.
    """
    root = Path(root)
    parts, below = _read_parts(root / "splits.csv"), _torchmil_below(root, encoder)
    features = below / "features" / f"features_{encoder}"
    found, labelled = ({p.stem for p in place.glob("*.npy")} for place in (features, below / "labels"))
    lists = {"bags of splits.csv without features": set(parts) - found}
    lists["bags without a file in labels/"] = (set(parts) & found) - labelled
    if (lacking := _count_lines(lists.items())) and not allow_missing:
        text = f"{features}: incomplete: {'; '.join(lacking)}"
        raise DataError(f"{text}; unpack the rest, or go on without them (--allow-missing)")
    there = found & labelled
    ids = [id_ for id_ in parts if id_ in there]
    if not ids:
        raise DataError(f"{features}: none of the {len(parts)} bags of splits.csv is here with its label; unpack them")
    truth = _instance_folders(below)
    lists["bags without instance labels"] = {id_ for id_ in ids if id_ not in truth}
    lists["bags are not in splits.csv and were left out"] = found - set(parts)
    content = {
        "id": ids,
        "path": [_relative(features / f"{id_}.npy", folder) for id_ in ids],
        "label": [_bag_label(features / f"{id_}.npy") for id_ in ids],
        "split": [parts[id_] for id_ in ids],
        "instance_labels": [_relative(truth.get(id_), folder) for id_ in ids],
    }
    notes = {id_: kind for kind, listed in lists.items() for id_ in sorted(listed)}
    return _manifest(content, None, folder, root / "splits.csv"), notes


def write_torchmil(
    root: str | Path, out: str | Path, *, encoder: str | None = None, allow_missing: bool = False
) -> dict[Path, tuple[Manifest, dict[str, str]]]:
    """Manifests of a folder as torchmil publishes them, of all its encoders, or of a folder of several such data sets.

    Writes `out`/manifest.csv where there is one, else `out`/<data set>/<encoder>/manifest.csv as far as there are
    several, and beside each splits.json: the five splits that a study draws from it by default.
    """
    root = Path(root)
    roots = [root] if (root / "splits.csv").is_file() else sorted(p.parent for p in root.glob("*/splits.csv"))
    sets = {place: [encoder] if encoder else _torchmil_encoders(place) for place in roots}
    if not any(sets.values()):
        raise DataError(f"{root}: no splits.csv beside features/features_<encoder> here or one folder below")
    written = {}
    for place, names in sets.items():
        for name in names:
            folder = Path(out, place.name if len(sets) > 1 else "", name if len(names) > 1 else "")
            options = {"encoder": name, "allow_missing": allow_missing}
            manifest, notes = write_foreign_manifest("torchmil", place, folder, **options)
            try:
                save_splits(folder / "splits.json", make_splits(manifest))
            except DataError as problem:  # such as too few bags of a class; a study of them would say the same
                notes[str(folder)] = f"folders without splits.json: {problem}"
            written[folder / NAME] = manifest, notes
    return written


_PROJECTS: dict[str, Callable[..., Any]] = {
    "clam": clam_manifest,
    "stamp": stamp_manifest,
    "torchmil": torchmil_manifest,
    "features": features_manifest,
}
PROJECTS = tuple(_PROJECTS)


def write_foreign_manifest(
    project: str, features: str | Path, out: str | Path, **options: Any
) -> tuple[Manifest, dict[str, str]]:
    """Write `out`/manifest.csv from tables and features of another project; also gives files that are no bags.

    clam      table (case_id, slide_id, label), split (splits_0.csv)      stamp  table (clini), slides, label
    torchmil  encoder; the folder holds its tables itself                 features  table (id, label)
    classes   of all but torchmil: labels that are words, in the order 0, 1, …
    """
    check_choice(project, PROJECTS, "project")
    make = _PROJECTS[project]
    taken = [name for name in signature(make).parameters if name not in ("features", "root", "folder")]
    known = {"table" if name == "clini" else name: name for name in taken}
    for option in options:
        if option not in known:
            words = ", ".join(_option_name(word) for word in known)
            raise ConfigError(f"{_option_name(option)}: is not for {project}, which takes {words}")
    required = [ours for ours, name in known.items() if signature(make).parameters[name].default is Parameter.empty]
    if missing := [name for name in required if name not in options]:
        raise ConfigError(f"{project}: {_option_name(missing[0])} must be given; {str(make.__doc__).splitlines()[0]}")
    place = "root" if project == "torchmil" else "features"
    made = make(**{place: features, "folder": out}, **{known[name]: value for name, value in options.items()})
    manifest, others = made if isinstance(made, tuple) else (made, {})
    manifest.check_table(training=False)
    Path(out).mkdir(parents=True, exist_ok=True)  # paths of the manifest count from it
    if lost := [id_ for id_ in manifest.ids if not manifest.path_of(id_).exists()]:
        raise DataError(f"{features}: no feature file for {len(lost)} cases, such as {lost[0]!r}; give their folder")
    manifest.write(Path(out) / NAME)
    return Manifest.read(Path(out) / NAME), others


def read_labels(path: str | Path) -> dict[str, int]:
    """Class index of each case from a table with the columns id and label."""
    rows = _read(path, ("id", "label"))
    found = {id_: _label_of(text, str(path)) for id_, text in zip(rows["id"], rows["label"], strict=True)}
    return {id_: index for id_, index in found.items() if index is not None}


def _read(path: str | Path, columns: Sequence[str]) -> pd.DataFrame:
    """A CSV or Excel table as text, with these columns."""
    path = Path(path)
    wanted = f"give a table with the columns {', '.join(columns or ('id', 'label'))}"
    if path.suffix.lower() in (".xlsx", ".xls"):
        return _read_excel(path, wanted, columns)
    return _stripped(path, read_text_table(path, wanted), columns)


def _marks(split: str | Path, ids: list[str]) -> list[str]:
    """Part of each slide; a slide that the split does not name is left empty."""
    table = _read(split, ("train", "val", "test"))
    parts: dict[str, str] = {}
    for part in ("train", "val", "test"):
        for id_ in table[part]:
            if id_ and parts.setdefault(id_, part) != part:
                raise DataError(f"{split}: slide {id_!r} is in {parts[id_]} and in {part}; keep it in one")
    if (unknown := sorted(set(parts) - set(ids))) != []:
        raise DataError(f"{split}: {len(unknown)} slides are not in the table, such as {unknown[0]!r}")
    return [parts.get(id_, "") for id_ in ids]


def _clam_file(features: Path, id_: str) -> Path:
    folders = (features, features / "h5_files", features / "pt_files")
    places = [folder / f"{id_}{ending}" for folder in folders for ending in (".h5", ".pt", ".npy", ".zarr")]
    return next((place for place in places if place.exists()), features / f"{id_}.h5")


def _torchmil_below(root: Path, encoder: str) -> Path:
    """The folder with features, labels and coordinates: patches_<size> of slides, the root of scans."""
    places = [p for p in (root, *sorted(root.glob("patches_*"))) if (p / "features" / f"features_{encoder}").is_dir()]
    if len(places) != 1:
        raise DataError(f"{root}: features_{encoder} found in {len(places)} folders, expected one patches_<size>")
    return places[0]


def _torchmil_encoders(root: Path) -> list[str]:
    """Encoders whose features lie in a folder of torchmil."""
    places = [*root.glob("features/features_*"), *root.glob("patches_*/features/features_*")]
    return sorted({place.name.removeprefix("features_") for place in places if place.is_dir()})


def _bag_label(features: Path) -> str:
    with reader_errors(features):
        label = TorchmilReader().label(features)
    return "" if label is None else str(label)


def _instance_folders(below: Path) -> dict[str, Path]:
    """Files of instance labels by bag: of patches, else of slices."""
    folders = [below / name for name in ("slice_labels", "patch_labels")]
    return {path.stem: path for folder in folders for path in folder.glob("*.npy")}


def _manifest(content: dict[str, list[str]], words: pd.Series | None, folder: str | Path, name: str | Path) -> Manifest:
    table = pd.DataFrame(content, dtype=object)
    if words is not None and list(words) != list(table["label"]):
        table["label_name"] = list(words)
    return Manifest(table, Path(folder), str(name))


class ManifestLabels:
    """Instance labels of the bags below `source`, from a manifest.csv in it or up to two folders above.

    The folder of a study, its bags/ and a single bag all lead to the same manifest.
    """

    def __init__(self, source: str | Path):
        self.files: dict[Path, Path] = {}
        self.manifest: Path | None = None
        here = Path(source).absolute()
        for folder in (here, *list(here.parents)[:2]):
            if not self.files and (folder / NAME).is_file():
                with suppress(DataError):  # of another table of that name
                    manifest = Manifest.read(folder / NAME)
                    named = {manifest.path_of(id_).resolve(): manifest.instance_labels_of(id_) for id_ in manifest.ids}
                    self.files = {bag: labels for bag, labels in named.items() if labels is not None}
                    self.manifest = folder / NAME if self.files else None

    def __call__(self, bag: Path) -> np.ndarray | None:
        """The labels of one bag; None when the manifest names none."""
        file = self.files.get(bag.resolve())
        return None if file is None else read_instance_labels(file)
