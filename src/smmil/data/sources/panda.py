"""PANDA: prostate biopsies of two hospitals with Gleason grades and label masks."""

from pathlib import Path

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.sources import (
    Rows,
    apply_split,
    by_stem,
    count_lines,
    need_folder,
    read_text_table,
    relative,
    settle,
    some,
    write_study,
)
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
    root = need_folder(root, "train.csv, train_images and train_label_masks of PANDA")
    check_choice(task, TASKS, "task")
    table = read_text_table(root / "train.csv", ("image_id", "data_provider", "isup_grade"))
    _check(root / "train.csv", table)
    images = by_stem(root / "train_images", (".tiff", ".tif"))
    masks = {
        stem.removesuffix("_mask"): path
        for stem, path in by_stem(root / "train_label_masks", (".tiff", ".tif")).items()
    }
    ids = table["image_id"].tolist()
    missing = settle(str(root), _missing(ids, set(images)), allow_missing)
    groups = _patients(patients)
    rows: Rows = [
        _row(out, id_, provider, grade, task, images[id_], masks.get(id_))
        | ({"patient": groups.get(id_, "")} if patients is not None else {})
        for id_, provider, grade in zip(ids, table["data_provider"], table["isup_grade"], strict=True)
        if id_ in images
    ]
    rows, origin, remarks = apply_split(str(root), rows, split, seed, allow_missing)
    unmasked = [row["id"] for row in rows if not row["annotation"]]
    about = {"missing": missing, "notes": [*remarks, *_notes(unmasked, patients)], "licence": "CC BY-SA-NC 4.0"}
    return write_study(out, "panda", rows, origin, about)


def _check(path: Path, table: pd.DataFrame) -> None:
    for column, known in (("data_provider", PROVIDERS), ("isup_grade", tuple("012345"))):
        if wrong := sorted(set(table[column]) - set(known)):
            raise DataError(f"{path}: {column} {wrong[0]!r}; expected {', '.join(known)}")
    if (twice := table["image_id"][table["image_id"].duplicated()].tolist()) != []:
        raise DataError(f"{path}: image {twice[0]!r} has two rows; download it again")


def _missing(ids: list[str], images: set[str]) -> list[str]:
    """Lines on images without a file and on image files without a row."""
    lists = (("images", set(ids) - images), ("rows in train.csv for images", images - set(ids)))
    return count_lines(lists)


def _patients(path: str | Path | None) -> dict[str, str]:
    if path is None:
        return {}
    table = read_text_table(Path(path), ("image_id", "patient"))
    return dict(zip(table["image_id"], table["patient"], strict=True))


def _row(
    out: str | Path, id_: str, provider: str, grade: str, task: str, image: Path, mask: Path | None
) -> dict[str, str]:
    return {
        "id": id_,
        "path": relative(image, out),
        "label": grade if task == "isup" else str(int(grade != "0")),
        "provider": provider,
        "annotation": relative(mask, out),
        "annotation_kind": f"panda-{provider}" if mask is not None else "",
    }


def _notes(unmasked: list[str], patients: str | Path | None) -> list[str]:
    notes = [f"{len(unmasked)} images have no mask ({some(unmasked)})"] if unmasked else []
    if patients is None:
        notes.append("patients are not published: every biopsy counts as its own patient")
    return notes
