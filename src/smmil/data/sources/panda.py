"""PANDA: prostate biopsies of two hospitals with Gleason grades and label masks."""

from pathlib import Path

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.sources import Rows, _by_stem, _count_lines, _DownloadedStudy, _read_table
from smmil.errors import DataError, check_choice

PROVIDERS = ("radboud", "karolinska")
TASKS = ("cancer", "isup")


def panda(
    root: str | Path,
    out: str | Path,
    *,
    split: str | Path | None = None,
    patients: str | Path | None = None,
    task: str = "cancer",
    seed: int = 0,
    allow_missing: bool = False,
) -> Manifest:
    """The table of PANDA from train.csv, train_images and train_label_masks.

    split     file with the columns image_id (or id, bag_name) and split; else a test set is drawn and marked as ours
    patients  file with the columns image_id and patient, which PANDA does not publish; else each biopsy is a patient
    task      cancer: ISUP grade 0 against 1 to 5; isup: the six grades
    """
    study = _DownloadedStudy(
        "panda", root, "train.csv, train_images and train_label_masks of PANDA", out, allow_missing
    )
    root = study.root
    check_choice(task, TASKS, "task")
    table = _read_table(root / "train.csv", "image_id", "data_provider", "isup_grade")
    _check(root / "train.csv", table)
    images = _by_stem(root / "train_images", (".tiff", ".tif"))
    masks = _by_stem(root / "train_label_masks", (".tiff", ".tif"))
    masks = {stem.removesuffix("_mask"): mask for stem, mask in masks.items()}
    ids = table["image_id"].tolist()
    lists = (("images", set(ids) - set(images)), ("rows in train.csv for images", set(images) - set(ids)))
    study.missing = study.refuse(_count_lines(lists))
    listed = None if patients is None else _read_table(patients, "image_id", "patient")
    groups = {} if listed is None else dict(zip(listed["image_id"], listed["patient"], strict=True))
    rows: Rows = [
        _row(study, id_, provider, grade, task, images[id_], masks.get(id_))
        | ({} if patients is None else {"patient": groups.get(id_, "")})
        for id_, provider, grade in zip(ids, table["data_provider"], table["isup_grade"], strict=True)
        if id_ in images
    ]
    rows = study.split(rows, split, seed)
    unmasked = [row["id"] for row in rows if not row["annotation"]]
    study.notes += _count_lines([("images have no mask", unmasked)])
    if patients is None:
        study.notes.append("patients are not published: every biopsy counts as its own patient")
    return study.write(rows, licence="CC BY-SA-NC 4.0")


def _check(path: Path, table: pd.DataFrame) -> None:
    for column, known in (("data_provider", PROVIDERS), ("isup_grade", tuple("012345"))):
        if wrong := sorted(set(table[column]) - set(known)):
            raise DataError(f"{path}: {column} {wrong[0]!r}; expected {', '.join(known)}")
    if (twice := table["image_id"][table["image_id"].duplicated()].tolist()) != []:
        raise DataError(f"{path}: image {twice[0]!r} has two rows; download it again")


def _row(
    study: _DownloadedStudy, id_: str, provider: str, grade: str, task: str, image: Path, mask: Path | None
) -> dict[str, str]:
    return {
        "id": id_,
        "path": study.place(image),
        "label": grade if task == "isup" else str(int(grade != "0")),
        "provider": provider,
        "annotation": study.place(mask),
        "annotation_kind": f"panda-{provider}" if mask is not None else "",
    }
