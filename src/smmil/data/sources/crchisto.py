"""CRCHistoPhenotypes: 100 images of colorectal cancer with classed nuclei; a bag is an image, an instance a nucleus."""

from pathlib import Path

from smmil.data.manifest import Manifest
from smmil.data.sources import _by_stem, _count_lines, _DownloadedStudy, _read_table
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
    study = _DownloadedStudy("crchisto", root, "png and nuclei.csv of CRCHistoPhenotypes", out, allow_missing)
    root = study.root
    nuclei = _read_table(root / "nuclei.csv", "image", "x", "y", "class")
    if wrong := sorted(set(nuclei["class"]) - set(CLASSES)):
        raise DataError(f"{root / 'nuclei.csv'}: class {wrong[0]!r}; expected {', '.join(CLASSES)}")
    images = _by_stem(root / "png", (".png", ".bmp"))
    positive = (nuclei["class"] == POSITIVE).groupby(nuclei["image"]).any()
    listed = set(positive.index)
    lists = (("images", listed - set(images)), ("images without a nucleus in nuclei.csv", set(images) - listed))
    study.missing = study.refuse(_count_lines(lists))
    rows = [
        {"id": str(id_), "path": study.place(images[str(id_)]), "label": str(int(any_))}
        for id_, any_ in positive.items()
        if id_ in images
    ]
    rows = study.split(rows, split, seed)
    points = nuclei[["image", "x", "y"]].assign(label=(nuclei["class"] == POSITIVE).astype(int))
    with replacing(study.out / POINTS) as temporary:
        used = points["image"].isin([row["id"] for row in rows])
        points[used].to_csv(temporary, index=False, lineterminator="\n")
    study.notes.append("patients are not published: every image counts as its own patient")
    return study.write(
        rows,
        points={"file": POINTS, "first_pixel": 1, "crop_px": 27, "neighbours": 5},
        licence="research only; cite Sirinukunwattana et al., IEEE TMI 2016; never publish pixels",
    )
