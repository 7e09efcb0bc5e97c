"""Any folder of images and a table of labels: the files are found by their names."""

from pathlib import Path

from smmil.data.manifest import Manifest
from smmil.data.sources import by_stem, need_folder, read_text_table, relative, settle, some, write_study
from smmil.errors import DataError

IMAGES = (*(".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".bif", ".svslide", ".czi"), ".png", ".jpg", ".jpeg")
OUTLINES = (".xml", ".geojson", ".json", ".png", ".tif", ".tiff")
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
    root = need_folder(root, "the images")
    rows = read_text_table(Path(table), ("id", "label"))
    if (twice := rows["id"][rows["id"].duplicated()].tolist()) != []:
        raise DataError(f"{table}: case {twice[0]!r} has two rows; keep one")
    images = by_stem(root, IMAGES)
    outlines = {} if annotations is None else by_stem(need_folder(annotations, "the annotations"), OUTLINES)
    lost, unlisted = set(rows["id"]) - set(images), set(images) - set(rows["id"])
    missing = settle(
        str(root), [f"{len(lost)} images of {Path(table).name} ({some(lost)})"] if lost else [], allow_missing
    )
    notes = (
        [f"{len(unlisted)} images are not in {Path(table).name} and were left out ({some(unlisted)})"]
        if unlisted
        else []
    )
    content = [
        {"id": case["id"], "path": relative(images[case["id"]], out), "label": case["label"]}
        | {column: case[column].strip() for column in _KEPT if column in case}
        | ({"annotation": relative(outlines.get(case["id"]), out)} if annotations is not None else {})
        for case in rows.to_dict("records")
        if case["id"] in images
    ]
    origin = f"given: {Path(table).name}" if "split" in rows else "none"
    return write_study(out, "folder", content, origin, {"missing": missing, "notes": notes})
