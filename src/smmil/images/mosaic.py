"""Patches in files of their own, each with its place: a slide put together from them, white where there is none."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import check_csv_width
from smmil.images.opening import _decode, _opened
from smmil.images.slide import DamagedTile, Slide, choose_mpp

_COLUMNS = ("path", "x", "y")
_LARGEST = 2**31
_KEPT = 256  # decoded patches that are held at a time
_UNKNOWN = ("", "na", "nan")


class MosaicSlide(Slide):
    """A slide made of patch files: a table path,x,y[,label], paths counted from the table, x and y of level 0.

    files    one picture per patch                         corners  int64 (n, 2) x, y where each begins
    patch    width and height of most of them              labels   int64 (n,), -1 unknown; None: the table has none

    Smaller patches, cut off at an edge, are filled up with white; larger ones are refused. Where patches overlap, the
    later row lies on top; `read` of exactly one patch shows that patch alone.
    """

    reader = "pillow"

    def __init__(self, path: str | Path, mpp: float | None = None):
        self.path = Path(path)
        self.files, self.corners, self.labels = _read_patches(self.path)
        self.sizes = np.array([_size(self.path, file) for file in self.files], dtype=np.int64)
        self.patch, self.notes = _common_size(self.files, self.sizes)
        ends = self.corners + np.array(self.patch)
        first, last = self.corners.min(0), ends.max(0)
        self.size = (int(last[0]), int(last[1]))
        self.bounds = (int(first[0]), int(first[1]), int(last[0] - first[0]), int(last[1] - first[1]))
        self.mpp, _ = choose_mpp((None, None), mpp)
        self.downsamples, self.level_sizes = (1.0,), (self.size,)
        self._places = {(x, y): index for index, (x, y) in enumerate(self.corners.tolist())}
        self._alone: int | None = None
        self._picture = lru_cache(_KEPT)(lambda index: _decode(self.files[index]))

    @property
    def step(self) -> tuple[int, int]:
        """Distance of neighbouring patches along x and y: their size, or less where they overlap on a lattice."""
        steps = (_lattice_step(self.corners[:, axis], self.patch[axis]) for axis in (0, 1))
        across, down = steps
        return across, down

    def read(self, x: float, y: float, footprint: float, pixels: int) -> np.ndarray:
        """As any slide; a square that begins where a patch does and has its longer side shows nothing but it."""
        self._alone = self._places.get((x, y)) if footprint == max(self.patch) else None
        try:
            return super().read(x, y, footprint, pixels)
        finally:
            self._alone = None

    def _pixels(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        canvas = np.full((height, width, 3), 255, np.uint8)
        first = self.corners - (left, top)
        touching = np.flatnonzero(((first < (width, height)) & (first + self.sizes > 0)).all(1))
        for index in touching.tolist() if self._alone is None else [self._alone]:
            try:
                picture = self._picture(index)
            except DataError as problem:
                raise DamagedTile(str(self.path), left, top, str(problem)) from None
            x, y = first[index].tolist()
            part = picture[max(0, -y) : max(0, height - y), max(0, -x) : max(0, width - x)]
            y, x = max(0, y), max(0, x)
            canvas[y : y + part.shape[0], x : x + part.shape[1]] = part
        return canvas

    def close(self) -> None:
        self._picture.cache_clear()


def _read_patches(path: Path) -> tuple[tuple[Path, ...], np.ndarray, np.ndarray | None]:
    """Files, corners and labels of a table of patches."""
    import pandas as pd

    try:
        table: Any = pd.read_csv(check_csv_width(path), dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such table of patches") from None
    except (OSError, ValueError, LookupError) as problem:
        cause = " ".join(str(problem).split())
        raise DataError(f"{path}: not readable as a table of patches ({cause}); write it again") from None
    if missing := [name for name in _COLUMNS if name not in table]:
        raise DataError(f"{path}: column {missing[0]!r} is missing; a table of patches has {', '.join(_COLUMNS)}")
    if table.empty:
        raise DataError(f"{path}: no patches; give one row for each")
    corners = table[["x", "y"]].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    good = (corners == np.rint(corners)) & (corners >= 0) & (corners < _LARGEST)
    if len(wrong := np.flatnonzero(~good.all(1))):
        place = f"line {wrong[0] + 2}: x, y are {table['x'].iloc[wrong[0]]!r}, {table['y'].iloc[wrong[0]]!r}"
        raise DataError(f"{path}: {place}; expected whole pixels of level 0 where the patch begins")
    if table.duplicated(["x", "y"]).any():
        twice = table[table.duplicated(["x", "y"], keep=False)]["path"].tolist()
        raise DataError(f"{path}: {twice[0]} and {twice[1]} lie in the same place; keep one of them")
    files = tuple(path.parent / name for name in table["path"])
    return files, corners.astype(np.int64), _labels(path, table)


def _labels(path: Path, table: Any) -> np.ndarray | None:
    import pandas as pd

    if "label" not in table:
        return None
    texts = table["label"].str.strip()
    labels = pd.to_numeric(texts.mask(texts.str.lower().isin(_UNKNOWN), "-1"), errors="coerce").to_numpy(np.float64)
    if len(wrong := np.flatnonzero(~((labels == np.rint(labels)) & (labels >= -1) & (labels < 128)))):
        got = f"line {wrong[0] + 2}: label {texts.iloc[wrong[0]]!r}"
        raise DataError(f"{path}: {got}; expected 0, 1, …, and -1 or nothing for unknown")
    return labels.astype(np.int64)


def _size(table: Path, file: Path) -> tuple[int, int]:
    if not os.path.isfile(file):  # a name too long for any file is none, where Path.is_file raises
        raise DataError(f"{table}: {str(file)[:300]} is not there; paths count from the table, correct them")
    with _opened(file) as image:
        return image.size


def _common_size(files: tuple[Path, ...], sizes: np.ndarray) -> tuple[tuple[int, int], tuple[str, ...]]:
    """The size that most patches have, and a note when some are smaller; larger ones are refused."""
    kinds, counts = np.unique(sizes, axis=0, return_counts=True)
    width, height = kinds[np.lexsort((*kinds.T, counts))[-1]].tolist()  # of several, the largest
    larger = np.flatnonzero((sizes > (width, height)).any(1))
    if len(larger):
        got = " x ".join(map(str, sizes[larger[0]].tolist()))
        raise DataError(
            f"{files[larger[0]]}: {got} pixels, but most patches of the case have {width} x {height} ({len(larger)} "
            "are larger); patches of one case have one size, cut or leave out the others"
        )
    smaller = int((sizes < (width, height)).any(1).sum())
    note = f"{smaller} of {len(files)} patches are smaller than {width} x {height} pixels and filled up with white"
    return (width, height), (note,) if smaller else ()


def _lattice_step(places: np.ndarray, side: int) -> int:
    """The side, or what all distances are multiples of where that is smaller; the side again off any lattice."""
    common = int(np.gcd.reduce(np.unique(places) - places.min()))
    return common if side / 8 <= common < side else side
