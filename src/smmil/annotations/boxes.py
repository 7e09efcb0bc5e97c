"""Boxes around lesions in a CSV table."""

from collections.abc import Collection
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from smmil.annotations.boundary import explained, read_bytes
from smmil.annotations.shapes import Drawn, Shapes, joined, ring
from smmil.errors import DataError

_CORNER_AND_SIZE = (("x", "y", "width", "height"), ("minx", "miny", "width", "height"))
_TWO_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x0", "y0", "x1", "y1"))
_CLASS = ("class", "label", "name")


def read_table(path: Path) -> pd.DataFrame:
    """A CSV file as text, with column names in small letters."""
    content = BytesIO(read_bytes(path))
    table = pd.read_csv(content, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True)
    return table.rename(columns=lambda name: str(name).strip().lower())


def is_boxes(columns: Collection[str]) -> bool:
    return any(set(names) <= set(columns) for names in (*_CORNER_AND_SIZE, *_TWO_CORNERS))


def read_boxes(path: str | Path, positive: Collection[str] | None = None) -> Shapes:
    """Boxes in level-0 pixels: x, y, width, height (or xmin, ymin, xmax, ymax) and, if there are several, a class.

    A class 0 marks what is no lesion, a class 1 a lesion; words follow the rules of `smmil.annotations.classes`.
    """
    path = Path(path)
    with explained(path, "a table of boxes"):
        table = read_table(path)
        corners = _corners(table)
        names = [{"1": "positive"}.get(name, name) for name in _names(table)]
        drawn = [Drawn(_rectangle(*box), name=name) for box, name in zip(corners, names, strict=True) if name != "0"]
        return joined(drawn, positive)


def _corners(table: pd.DataFrame) -> np.ndarray:
    """(n, 4): x and y of the first and of the last corner."""
    for names in (*_CORNER_AND_SIZE, *_TWO_CORNERS):
        if set(names) <= set(table.columns):
            boxes = _numbers(table, names)
            if names in _CORNER_AND_SIZE:
                boxes[:, 2:] += boxes[:, :2]
            wrong = np.flatnonzero((boxes[:, 2:] < boxes[:, :2]).any(1))
            if len(wrong):
                raise DataError(f"row {wrong[0] + 1} is a box of negative size; correct it")
            return boxes
    raise DataError("no columns x, y, width, height or xmin, ymin, xmax, ymax; rename the columns")


def _numbers(table: pd.DataFrame, names: Collection[str]) -> np.ndarray:
    values = table[list(names)].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64, copy=True)
    wrong = np.flatnonzero(~np.isfinite(values).all(1))
    if len(wrong):
        raise DataError(f"row {wrong[0] + 1}: {', '.join(names)} must be numbers; correct it")
    return values


def _names(table: pd.DataFrame) -> list[str]:
    column = next((name for name in _CLASS if name in table), None)
    return [""] * len(table) if column is None else [str(name).strip() for name in table[column]]


def _rectangle(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return ring([(left, top), (right, top), (right, bottom), (left, bottom)])
