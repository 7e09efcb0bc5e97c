"""Any folder of images and a table of labels: the files are found by their names."""

from pathlib import Path

from smmil.data.manifest import Manifest
from smmil.data.sources import _by_stem, _count_lines, _DownloadedStudy, _need_folder, _read_table
from smmil.errors import DataError

IMAGES = (
    *(".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".bif", ".svslide", ".czi", ".qptiff"),
    ".png",
    ".jpg",
    ".jpeg",
    *(".nii", ".nii.gz"),
)
OUTLINES = (".xml", ".geojson", ".json", ".png", ".tif", ".tiff", ".nii", ".nii.gz")
_KEPT = ("patient", "group", "split", "annotation_kind", "annotation_complete")


def folder(
    root: str | Path,
    out: str | Path,
    *,
    table: str | Path,
    annotations: str | Path | None = None,
    allow_missing: bool = False,
) -> Manifest:
    """A table for images below `root`, found by name, from a CSV file with id, label and maybe patient and split.

    annotations  folder of annotation files that bear the names of the cases
    """
    study = _DownloadedStudy("folder", root, "the images", out, allow_missing)
    rows = _read_table(table, "id", "label")
    if (twice := rows["id"][rows["id"].duplicated()].tolist()) != []:
        raise DataError(f"{table}: case {twice[0]!r} has two rows; keep one")
    images = _by_stem(study.root, IMAGES)
    outlines = {} if annotations is None else _by_stem(_need_folder(annotations, "the annotations"), OUTLINES)
    lost, unlisted = set(rows["id"]) - set(images), set(images) - set(rows["id"])
    name = Path(table).name
    study.missing = study.refuse(_count_lines([(f"images of {name}", lost)]))
    study.notes = _count_lines([(f"images are not in {name} and were left out", unlisted)])
    content = [
        {"id": case["id"], "path": study.place(images[case["id"]]), "label": case["label"]}
        | {column: case[column].strip() for column in _KEPT if column in case}
        | ({"annotation": study.place(outlines.get(case["id"]))} if annotations is not None else {})
        for case in rows.to_dict("records")
        if case["id"] in images
    ]
    study.split_origin = f"given: {name}" if "split" in rows else "none"
    return study.write(content)
