"""Crops around given points, such as nuclei: the instances of an image that is no lattice of tiles."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from smmil.data.tables import need_columns, read_text_table
from smmil.errors import ConfigError, DataError, suggest
from smmil.files import digest
from smmil.prepare.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Points:
    """Points of one image, as the table gives them, and their instance labels where it says them."""

    xy: np.ndarray
    labels: np.ndarray | None

    def corners(self, recipe: Recipe) -> np.ndarray:
        """Where each crop begins, float64 (n, 2).

        A point names a pixel and means its middle: with first_pixel = 1, the point (14, 14) and crop_px = 27, the crop
        begins at the very first pixel.
        """
        return self.xy - recipe.first_pixel + 0.5 - recipe.crop_px / 2

    def fingerprint(self) -> str:
        """Checksum of where the points are; labels are opinions and do not change features."""
        return digest(self.xy.tobytes())


def read_points(path: str | Path, image: str, positive: Collection[str] | None = None) -> Points:
    """The rows of a table image,x,y[,label] that belong to `image` (its name, with or without ending).

    positive  names in a column `class` that are lesions, for tables without a column `label`
    """
    table = _table(Path(path))
    names = table["image"].astype(str).str.strip()
    rows = table[(names == image) | (names.map(lambda name: Path(name).stem) == image)]
    if rows.empty:
        raise DataError(f"{path}: no points for image {image!r}; {suggest(image, set(names[:10000]))}")
    xy = rows[["x", "y"]].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~np.isfinite(xy).all(1))
    if len(wrong):
        raise DataError(f"{path}: line {rows.index[wrong[0]] + 2}: x and y must be numbers; correct the table")
    return Points(xy, _labels(rows, path, positive))


def stray_images(path: str | Path, known: Iterable[str]) -> list[tuple[str, str]]:
    """Images of the table that are none of the cases, each with the reason why its points are left out."""
    names = _table(Path(path))["image"].astype(str).str.strip()
    strays = sorted(set(names) - {name for name in set(names) if {name, Path(name).stem} & set(known)})
    return [(name, f"{path}: points of {name!r}, which is not among the cases") for name in strays]


def check_classes(path: str | Path, positive: Collection[str] | None) -> str | None:
    """Refuse names of lesions that the table does not have; a note when it has classes that nobody asked for."""
    table = _table(Path(path))
    if positive is None:
        unused = "class" in table and "label" not in table
        return (
            f"{path}: the column class is not used; say which of its names are lesions (--positive), or add a column "
            "label with 0, 1, or -1 for unknown"
            if unused
            else None
        )
    if "label" in table or "class" not in table:
        has = "labels in its column label already" if "label" in table else "no column class"
        raise ConfigError(f"--positive: {path} has {has}; leave the option out")
    names = {_plain(name): name for name in table["class"]}
    for name in positive:
        if _plain(name) not in names:
            raise DataError(f"{path}: no point is of the class {name!r}; {suggest(name, names.values())}")
    return None


def _table(path: Path) -> pd.DataFrame:
    table = read_text_table(path, "give a table with the columns image, x, y")
    need_columns(path, table, ("image", "x", "y"))
    return table


def _labels(rows: pd.DataFrame, path: str | Path, positive: Collection[str] | None) -> np.ndarray | None:
    if "label" not in rows:
        wanted = {_plain(name) for name in positive or ()}
        return None if not wanted else np.array([_plain(name) in wanted for name in rows["class"]]).astype(np.int64)
    texts = rows["label"].str.strip()
    unknown = texts.str.lower().isin(["", "na", "nan"])
    labels = pd.to_numeric(texts.mask(unknown, "-1"), errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~((labels == np.rint(labels)) & (labels >= -1)))
    if len(wrong):
        raise DataError(
            f"{path}: line {rows.index[wrong[0]] + 2}: label {texts.iloc[wrong[0]]!r}; expected -1 or nothing "
            "(unknown), 0, 1, …; for names, call the column class and give --positive"
        )
    return labels.astype(np.int64)


def _plain(name: str) -> str:
    return name.strip().lower()
