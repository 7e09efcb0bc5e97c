"""CRCHistoPhenotypes: 100 images of colorectal cancer with classed nuclei; a bag is an image, an instance a nucleus."""

from pathlib import Path

import pandas as pd

from smmil.data.manifest import Manifest
from smmil.data.sources import (
    apply_split,
    by_stem,
    count_lines,
    need_folder,
    read_text_table,
    relative,
    settle,
    write_study,
)
from smmil.errors import DataError
from smmil.files import replacing

CLASSES = ("epithelial", "inflammatory", "fibroblast", "others")
POSITIVE = "epithelial"
POINTS = "points.csv"


def crchisto(
    root: str | Path, out: str | Path, *, split: str | Path | None = None, seed: int = 0, allow_missing: bool = False
) -> Manifest:
    """The table of CRCHistoPhenotypes from png/ and nuclei.csv, and points.csv with a label for every nucleus.

    An image is positive when it holds an epithelial nucleus. `smmil prepare --points points.csv` cuts the crops.
    """
    root = need_folder(root, "png and nuclei.csv of CRCHistoPhenotypes")
    nuclei = read_text_table(root / "nuclei.csv", ("image", "x", "y", "class"))
    if wrong := sorted(set(nuclei["class"]) - set(CLASSES)):
        raise DataError(f"{root / 'nuclei.csv'}: class {wrong[0]!r}; expected {', '.join(CLASSES)}")
    images = by_stem(root / "png", (".png", ".bmp"))
    positive = (nuclei["class"] == POSITIVE).groupby(nuclei["image"]).any()
    missing = settle(str(root), _missing(set(positive.index), set(images)), allow_missing)
    rows = [
        {"id": str(id_), "path": relative(images[str(id_)], out), "label": str(int(any_))}
        for id_, any_ in positive.items()
        if id_ in images
    ]
    rows, origin, remarks = apply_split(str(root), rows, split, seed, allow_missing)
    _write_points(Path(out) / POINTS, nuclei[nuclei["image"].isin([row["id"] for row in rows])])
    about = {
        "missing": missing,
        "notes": [*remarks, "patients are not published: every image counts as its own patient"],
        "points": {"file": POINTS, "first_pixel": 1, "crop_px": 27, "neighbours": 5},
        "licence": "research only; cite Sirinukunwattana et al., IEEE TMI 2016; never publish pixels",
    }
    return write_study(out, "crchisto", rows, origin, about)


def _missing(listed: set[str], images: set[str]) -> list[str]:
    lists = (("images", listed - images), ("images without a nucleus in nuclei.csv", images - listed))
    return count_lines(lists)


def _write_points(path: Path, nuclei: pd.DataFrame) -> None:
    table = nuclei[["image", "x", "y"]].assign(label=(nuclei["class"] == POSITIVE).astype(int))
    with replacing(path) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
