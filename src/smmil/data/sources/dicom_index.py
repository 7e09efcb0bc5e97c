"""Which scan and patient every DICOM file of a large flat folder belongs to: headers read once, then remembered."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from smmil.errors import DataError
from smmil.files import replacing
from smmil.images.dicom_file import explained
from smmil.images.dicom_series import find_series

COLUMNS = ("file", "bytes", "slice", "series", "study", "patient")
# Headers of so many files are held at a time.
_BATCH = 2000
Progress = Callable[[int, int], None]


def index_folder(folder: Path, remembered: Path, progress: Progress | None = None) -> pd.DataFrame:
    """One row per CT slice below `folder`: file, bytes, slice, series, study, patient.

    The table is kept in `remembered`; files of the same name and size are not read again.
    """
    sizes = _sizes(folder)
    if not sizes:
        raise DataError(f"{folder}: no files; give the folder with the DICOM slices")
    known = _known(remembered, sizes)
    fresh = sorted(set(sizes) - set(known["file"]))
    parts, owners = [known], _owners(known)
    for start in range(0, len(fresh), _BATCH):
        parts.append(_read(folder, fresh[start : start + _BATCH], sizes, owners))
        if progress is not None:
            progress(min(start + _BATCH, len(fresh)), len(fresh))
    index = pd.concat(parts, ignore_index=True).sort_values("file", kind="stable", ignore_index=True)
    if fresh or len(known) != len(sizes):
        with replacing(remembered) as temporary:
            index.to_csv(temporary, index=False, lineterminator="\n")
    return index


def _sizes(folder: Path) -> dict[str, str]:
    """Size of every file below the folder, by its path from there."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("."):
                path = os.path.join(place, name)
                found[Path(os.path.relpath(path, folder)).as_posix()] = str(os.path.getsize(path))
    return found


def _known(remembered: Path, sizes: dict[str, str]) -> pd.DataFrame:
    """What an earlier run found out about files that are still the same; nothing when its table is damaged."""
    try:
        table = pd.read_csv(remembered, dtype=str, keep_default_na=False)
    except (OSError, ValueError, LookupError):
        return pd.DataFrame(columns=COLUMNS, dtype=object)
    if tuple(table.columns) != COLUMNS:
        return pd.DataFrame(columns=COLUMNS, dtype=object)
    same = [sizes.get(file) == size for file, size in zip(table["file"], table["bytes"], strict=True)]
    return table[pd.Series(same, index=table.index, dtype=bool)]


def _owners(known: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Study and patient of every series that was met before."""
    return dict(zip(known["series"], zip(known["study"], known["patient"], strict=True), strict=True))


def _read(
    folder: Path, files: Iterable[str], sizes: dict[str, str], owners: dict[str, tuple[str, str]]
) -> pd.DataFrame:
    """Rows of some files; all slices of a series are of one study and patient, so one of them is asked."""
    rows = []
    for series in find_series([folder / file for file in files])[0]:
        if series.uid not in owners:
            owners[series.uid] = _study_and_patient(series.files[0])
        for path, tags in zip(series.files, series.tags, strict=True):
            file = path.relative_to(folder).as_posix()
            rows.append((file, sizes[file], str(tags["SOPInstanceUID"]), series.uid, *owners[series.uid]))
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object)


def _study_and_patient(path: Path) -> tuple[str, str]:
    """Only public data sets, whose patients bear pseudonyms, come this way; the readers of scans never ask for them."""
    from pydicom import dcmread

    with explained(path):
        tags = dcmread(path, stop_before_pixels=True, specific_tags=["StudyInstanceUID", "PatientID"])
        study, patient = str(tags.get("StudyInstanceUID", "")), str(tags.get("PatientID", ""))
        if not study or not patient:
            raise DataError("StudyInstanceUID or PatientID is missing; scans and patients cannot be told apart")
        return study, patient
