"""RSNA 2019: head CT with intracranial haemorrhage, labels per slice; scans and patients come from the headers."""

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pandas as pd

from smmil.annotations.labels import ANY, read_slice_labels, write_slice_labels
from smmil.data.manifest import Manifest
from smmil.data.sources import _count_lines, _DownloadedStudy, _need_folder, _some
from smmil.data.tables import _relative
from smmil.errors import DataError
from smmil.files import check_csv_width, replacing
from smmil.images.dicom_file import dicom_errors
from smmil.images.dicom_series import find_series

COLUMNS = ("file", "bytes", "slice", "series", "study", "patient")
# Headers of so many files are held at a time.
_BATCH = 2000
Progress = Callable[[int, int], None]
TABLE, IMAGES = "stage_2_train.csv", "stage_2_train"


def _index_folder(folder: Path, index_file: Path, progress: Progress | None = None) -> pd.DataFrame:
    """One row per CT slice below `folder`: file, bytes, slice, series, study, patient.

    The table is kept in `index_file`; files of the same name and size are not read again.
    """
    sizes = _sizes(folder)
    if not sizes:
        raise DataError(f"{folder}: no files; give the folder with the DICOM slices")
    known = _known(index_file, sizes)
    fresh = sorted(set(sizes) - set(known["file"]))
    # Study and patient of every cached series.
    owners = dict(zip(known["series"], zip(known["study"], known["patient"], strict=True), strict=True))
    parts = [known]
    for start in range(0, len(fresh), _BATCH):
        parts.append(_read(folder, fresh[start : start + _BATCH], sizes, owners))
        if progress is not None:
            progress(min(start + _BATCH, len(fresh)), len(fresh))
    index = pd.concat(parts, ignore_index=True).sort_values("file", kind="stable", ignore_index=True)
    if fresh or len(known) != len(sizes):
        with replacing(index_file) as temporary:
            index.to_csv(temporary, index=False, lineterminator="\n")
    return index


def _sizes(folder: Path) -> dict[str, str]:
    """Size of every file below the folder, by its path from there."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name[0] != ".")
    found = (file for file in files if os.path.isfile(file))  # no lost links, pipes or devices
    return {Path(os.path.relpath(file, folder)).as_posix(): str(os.path.getsize(file)) for file in found}


def _known(index_file: Path, sizes: dict[str, str]) -> pd.DataFrame:
    """Cached rows of files of unchanged size; none when the cache is damaged."""
    if index_file.exists() and not index_file.is_file():
        raise DataError(f"{index_file}: is no regular file; move it away")
    with suppress(OSError, ValueError, LookupError):
        table = pd.read_csv(check_csv_width(index_file), dtype=str, keep_default_na=False)
        if tuple(table.columns) == COLUMNS:
            return table[table["file"].map(sizes) == table["bytes"]]
    return pd.DataFrame(columns=COLUMNS, dtype=object)


def _read(
    folder: Path, files: Iterable[str], sizes: dict[str, str], owners: dict[str, tuple[str, str]]
) -> pd.DataFrame:
    """Rows of some files; study and patient of a series are read from its first slice."""
    rows = []
    for series in find_series([folder / file for file in files])[0]:
        if series.uid not in owners:
            owners[series.uid] = _study_and_patient(series.files[0])
        for path, tags in zip(series.files, series.tags, strict=True):
            file = path.relative_to(folder).as_posix()
            if "SOPInstanceUID" not in tags:
                raise DataError(f"{path}: the slice has no SOPInstanceUID, it is damaged; copy it again")
            rows.append((file, sizes[file], str(tags["SOPInstanceUID"]), series.uid, *owners[series.uid]))
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object)


def _study_and_patient(path: Path) -> tuple[str, str]:
    """Study and patient of a slice; used for public data sets with pseudonymous patients only."""
    from pydicom import dcmread

    with dicom_errors(path):
        tags = dcmread(path, stop_before_pixels=True, specific_tags=["StudyInstanceUID", "PatientID"])
        study, patient = str(tags.get("StudyInstanceUID", "")), str(tags.get("PatientID", ""))
        if not study or not patient:
            raise DataError("StudyInstanceUID or PatientID is missing; scans and patients cannot be distinguished")
        return study, patient


def rsna_ich(
    root: str | Path,
    out: str | Path,
    *,
    split: str | Path | None = None,
    seed: int = 0,
    allow_missing: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """The table of RSNA's scans from stage_2_train.csv and the flat folder stage_2_train of DICOM slices.

    split  file with the columns id (StudyInstanceUID of a scan) and split, such as a subset of 1150 scans; else all
           scans take part, with a test set drawn by patient and marked as ours

    In `out` it also writes scans/<id>/ with links to the slices of each scan, annotations/<id>.csv with their labels,
    and dicom_index.csv, so that the headers are read only once.
    """
    study = _DownloadedStudy("rsna_ich", root, f"{TABLE} and {IMAGES} of the RSNA challenge", out, allow_missing)
    root, out = study.root, study.out
    if not (root / TABLE).is_file():
        raise DataError(f"{root / TABLE}: no such file; it belongs to the data set, download it")
    labels = read_slice_labels(root / TABLE)
    index = _index_folder(_need_folder(root / IMAGES, "the DICOM slices"), out / "dicom_index.csv", progress)
    _refuse_doubles(root, index)
    found, listed = set(index["slice"]), set(labels.index)
    lists = (("labels of slices", found - listed), ("slices", listed - found if split is None else set()))
    study.missing = study.refuse(_count_lines(lists))
    index = index[index["slice"].isin(labels.index)]
    scans = {str(uid): slices for uid, slices in index.groupby("study", sort=True)}
    rows = study.split([_row(uid, slices, labels) for uid, slices in scans.items()], split, seed)
    for row in rows:
        _write_scan(out, row["id"], root / IMAGES, scans[row["id"]], labels)
    study.notes += _contradictions(labels)
    return study.write(rows, licence="RSNA challenge terms")


def _refuse_doubles(root: Path, index: pd.DataFrame) -> None:
    """One file per slice, one series per scan, one patient per scan."""
    if (twice := index[index["slice"].duplicated(keep=False)]).size:
        files = twice["file"].tolist()
        raise DataError(f"{root}: {files[0]} and {files[1]} are the same slice ({len(files)} such files); keep one")
    for column in ("series", "patient"):
        counts = index.groupby("study")[column].nunique()
        if (several := counts[counts > 1]).size:
            raise DataError(f"{root}: {len(several)} scans have several {column} entries, such as {several.index[0]!r}")


def _row(study: str, rows: pd.DataFrame, labels: pd.DataFrame) -> dict[str, str]:
    return {
        "id": study,
        "path": f"scans/{study}",
        "label": str(int(labels.loc[rows["slice"], ANY].max())),
        "patient": str(rows["patient"].iloc[0]),
        "annotation": f"annotations/{study}.csv",
        "annotation_kind": "rsna",
    }


def _contradictions(labels: pd.DataFrame) -> list[str]:
    """`any` should be 1 exactly where a subtype is."""
    others = labels.drop(columns=ANY)
    odd = labels.index[others.max(axis=1) != labels[ANY]] if others.shape[1] else labels.index[:0]
    said = f"{len(odd)} slices where `any` contradicts the subtypes ({_some(odd.tolist())}); `any` counts"
    return [said] if len(odd) else []


def _write_scan(out: Path, study: str, images: Path, rows: pd.DataFrame, labels: pd.DataFrame) -> None:
    """Labels of the slices, and a folder of links to them: what reads a scan reads a folder."""
    if Path(study).name != study or study.startswith("."):
        raise DataError(f"{study!r}: StudyInstanceUID is no name for a folder; the header is damaged")
    write_slice_labels(out / "annotations" / f"{study}.csv", labels.loc[sorted(rows["slice"])])
    folder = out / "scans" / study
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {Path(file).name: images / file for file in rows["file"]}
    if len(wanted) < len(rows):
        raise DataError(f"{images}: two slices of scan {study!r} have the same file name; rename one")
    if others := sorted({path.name for path in folder.iterdir()} - set(wanted)):
        raise DataError(f"{folder / others[0]}: belongs to something else; choose an empty folder for the result")
    for name, target in wanted.items():
        _link(folder / name, target)


def _link(place: Path, target: Path) -> None:
    """A link to the slice, relative so that both may move together; a second name where links are not allowed."""
    if place.exists() and place.samefile(target):
        return
    temporary = place.with_name(f".{secrets.token_hex(4)}-{place.name}")
    try:
        os.symlink(_relative(target, place.parent), temporary)
    except OSError:
        os.link(target, temporary)
    os.replace(temporary, place)
