"""RSNA 2019: head CT with intracranial haemorrhage, labels per slice; scans and patients come from the headers."""

import os
import secrets
from pathlib import Path

import pandas as pd

from smmil.annotations.rsna import ANY, read_slice_labels, write_slice_labels
from smmil.data.manifest import Manifest
from smmil.data.sources.dicom_index import Progress, index_folder
from smmil.data.sources.study import Rows, apply_split, need_folder, relative, settle, some, write_study
from smmil.errors import DataError

TABLE, IMAGES = "stage_2_train.csv", "stage_2_train"


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
    root, out = need_folder(root, f"{TABLE} and {IMAGES} of the RSNA challenge"), Path(out)
    if not (root / TABLE).is_file():
        raise DataError(f"{root / TABLE}: no such file; it belongs to the data set, download it")
    labels = read_slice_labels(root / TABLE)
    index = index_folder(need_folder(root / IMAGES, "the DICOM slices"), out / "dicom_index.csv", progress)
    _refuse_doubles(root, index)
    missing = settle(str(root), _missing(index, labels, split is None), allow_missing)
    index = index[index["slice"].isin(labels.index)]
    scans = {str(study): rows for study, rows in index.groupby("study", sort=True)}
    rows: Rows = [_row(study, rows, labels) for study, rows in scans.items()]
    rows, origin, remarks = apply_split(str(root), rows, split, seed, allow_missing)
    for row in rows:
        _write_scan(out, row["id"], root / IMAGES, scans[row["id"]], labels)
    about = {"missing": missing, "notes": [*remarks, *_contradictions(labels)], "licence": "RSNA challenge terms"}
    return write_study(out, "rsna_ich", rows, origin, about)


def _refuse_doubles(root: Path, index: pd.DataFrame) -> None:
    """One file per slice, one series per scan, one patient per scan."""
    if (twice := index[index["slice"].duplicated(keep=False)]).size:
        files = twice["file"].tolist()
        raise DataError(f"{root}: {files[0]} and {files[1]} are the same slice ({len(files)} such files); keep one")
    for column in ("series", "patient"):
        counts = index.groupby("study")[column].nunique()
        if (several := counts[counts > 1]).size:
            raise DataError(f"{root}: {len(several)} scans have several {column} entries, such as {several.index[0]!r}")


def _missing(index: pd.DataFrame, labels: pd.DataFrame, everything: bool) -> list[str]:
    """Slices without label, and, when the whole set is wanted, labels without slice."""
    found = set(index["slice"])
    lists = [("labels of slices", found - set(labels.index))]
    if everything:
        lists.append(("slices", set(labels.index) - found))
    return [f"{len(names)} {what} ({some(names)})" for what, names in lists if names]


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
    return (
        [f"{len(odd)} slices where `any` contradicts the subtypes ({some(odd.tolist())}); `any` counts"]
        if len(odd)
        else []
    )


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
    if strangers := sorted({path.name for path in folder.iterdir()} - set(wanted)):
        raise DataError(f"{folder / strangers[0]}: belongs to something else; choose an empty folder for the result")
    for name, target in wanted.items():
        _link(folder / name, target)


def _link(place: Path, target: Path) -> None:
    """A link to the slice, relative so that both may move together; a second name where links are not allowed."""
    if place.exists() and place.samefile(target):
        return
    temporary = place.with_name(f".{secrets.token_hex(4)}-{place.name}")
    try:
        os.symlink(relative(target, place.parent), temporary)
    except OSError:
        os.link(target, temporary)
    os.replace(temporary, place)
