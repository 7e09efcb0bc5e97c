"""PANDA: prostate biopsies of two hospitals with Gleason grades and label masks."""

from pathlib import Path

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.sources import (
    Rows,
    _apply_split,
    _by_stem,
    _count_lines,
    _need_folder,
    _read_table,
    _settle,
    _write_study,
)
from smmil.data.tables import _relative
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
    root = _need_folder(root, "train.csv, train_images and train_label_masks of PANDA")
    check_choice(task, TASKS, "task")
    table = _read_table(root / "train.csv", "image_id", "data_provider", "isup_grade")
    _check(root / "train.csv", table)
    images = _by_stem(root / "train_images", (".tiff", ".tif"))
    masks = _by_stem(root / "train_label_masks", (".tiff", ".tif"))
    masks = {stem.removesuffix("_mask"): mask for stem, mask in masks.items()}
    ids = table["image_id"].tolist()
    lists = (("images", set(ids) - set(images)), ("rows in train.csv for images", set(images) - set(ids)))
    missing = _settle(str(root), _count_lines(lists), allow_missing)
    listed = None if patients is None else _read_table(patients, "image_id", "patient")
    groups = {} if listed is None else dict(zip(listed["image_id"], listed["patient"], strict=True))
    rows: Rows = [
        _row(out, id_, provider, grade, task, images[id_], masks.get(id_))
        | ({} if patients is None else {"patient": groups.get(id_, "")})
        for id_, provider, grade in zip(ids, table["data_provider"], table["isup_grade"], strict=True)
        if id_ in images
    ]
    rows, origin, remarks = _apply_split(str(root), rows, split, seed, allow_missing)
    unmasked = [row["id"] for row in rows if not row["annotation"]]
    notes = [*remarks, *_count_lines([("images have no mask", unmasked)])]
    notes += ["patients are not published: every biopsy counts as its own patient"] * (patients is None)
    about = {"missing": missing, "notes": notes, "licence": "CC BY-SA-NC 4.0"}
    return _write_study(out, "panda", rows, origin, about)


def _check(path: Path, table: pd.DataFrame) -> None:
    for column, known in (("data_provider", PROVIDERS), ("isup_grade", tuple("012345"))):
        if wrong := sorted(set(table[column]) - set(known)):
            raise DataError(f"{path}: {column} {wrong[0]!r}; expected {', '.join(known)}")
    if (twice := table["image_id"][table["image_id"].duplicated()].tolist()) != []:
        raise DataError(f"{path}: image {twice[0]!r} has two rows; download it again")


def _row(
    out: str | Path, id_: str, provider: str, grade: str, task: str, image: Path, mask: Path | None
) -> dict[str, str]:
    return {
        "id": id_,
        "path": _relative(image, out),
        "label": grade if task == "isup" else str(int(grade != "0")),
        "provider": provider,
        "annotation": _relative(mask, out),
        "annotation_kind": f"panda-{provider}" if mask is not None else "",
    }
