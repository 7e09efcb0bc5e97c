"""Crops around given points, such as nuclei: the instances of an image that is no lattice of tiles."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from smmil.errors import DataError, suggest
from smmil.files import digest
from smmil.prepare.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Points:
    """Points of one image, as the table gives them, and their instance labels where it has a column `label`."""

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


def read_points(path: str | Path, image: str) -> Points:
    """The rows of a table image,x,y[,label] that belong to `image` (its name, with or without ending)."""
    table = _table(Path(path))
    names = table["image"].astype(str).str.strip()
    rows = table[(names == image) | (names.map(lambda name: Path(name).stem) == image)]
    if rows.empty:
        raise DataError(f"{path}: no points for image {image!r}; {suggest(image, set(names[:10000]))}")
    xy = rows[["x", "y"]].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~np.isfinite(xy).all(1))
    if len(wrong):
        raise DataError(f"{path}: line {rows.index[wrong[0]] + 2}: x and y must be numbers; correct the table")
    return Points(xy, _labels(rows, path))


def stray_images(path: str | Path, known: Iterable[str]) -> list[tuple[str, str]]:
    """Images of the table that are none of the cases, each with the reason why its points are left out."""
    names = _table(Path(path))["image"].astype(str).str.strip()
    strays = sorted(set(names) - {name for name in set(names) if {name, Path(name).stem} & set(known)})
    return [(name, f"{path}: points of {name!r}, which is not among the cases") for name in strays]


def _table(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, encoding="utf-8-sig", skipinitialspace=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; give a table with the columns image, x, y") from None
    except (OSError, ValueError, LookupError) as problem:
        raise DataError(f"{path}: not readable as a table ({' '.join(str(problem).split())})") from None
    for column in ("image", "x", "y"):
        if column not in table:
            raise DataError(f"{path}: column {column!r} is missing; {suggest(column, map(str, table.columns))}")
    return table


def _labels(rows: pd.DataFrame, path: str | Path) -> np.ndarray | None:
    if "label" not in rows:
        return None
    labels = pd.to_numeric(rows["label"], errors="coerce").fillna(-1).to_numpy(np.float64)
    if not ((labels == np.rint(labels)) & (labels >= -1)).all():
        raise DataError(f"{path}: column 'label': expected -1 (unknown), 0, 1, …; correct the table")
    return labels.astype(np.int64)
