"""Small pictures of the slides behind the maps, cut to the tissue, small enough for one file."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, SmmilError
from smmil.files import file_name
from smmil.images import open_slide
from smmil.report.cases import Case

_SIDES = (1600, 1200, 900, 640, 448, 320, 224)
_QUALITY = 80
_LARGEST_WHOLE = 12_000  # pixels of the whole slide's side that are decoded at most to cut the tissue from
_PATH_COLUMNS = ("slide", "image", "path", "file")


@dataclass(frozen=True)
class CasePicture:
    """A JPEG (base64) and the rectangle it covers: left, top, width, height in level-0 pixels."""

    jpeg: str
    area: tuple[float, float, float, float]


def find_slides(where: str | Path, ids: Sequence[str]) -> dict[str, Path]:
    """File of each case: from a CSV table with id and slide (or image, path, file), or from a folder by name."""
    where = Path(where)
    if where.is_dir():
        return _in_folder(where, ids)
    if where.suffix.lower() != ".csv" or not where.is_file():
        raise DataError(f"{where}: no such folder or CSV table; give --slides a folder of slides or id,slide rows")
    return _in_table(where, ids)


def case_picture(path: Path, case: Case, most_bytes: int) -> CasePicture:
    """The tissue of a slide as the largest JPEG that fits into `most_bytes` (the smallest one, when none does)."""
    with open_slide(path) as slide:
        area = _tissue_area(case, slide.size)
        for side in _SIDES:
            whole = max(1, min(_LARGEST_WHOLE, round(side * max(slide.size) / max(area[2:]))))
            shown = slide.thumbnail(whole)
            image, covered = _cut(shown.image, shown.scale, area)
            encoded = _jpeg(image)
            if len(encoded) <= most_bytes:
                break
    return CasePicture(encoded, covered)


def all_pictures(
    cases: Sequence[Case], where: str | Path, most_bytes: int
) -> tuple[dict[str, CasePicture], dict[str, str]]:
    """Pictures by case id, and for the others the reason why there is none; scans have strips and need none."""
    maps = [case for case in cases if case.kind == "map"]
    files = find_slides(where, [case.id for case in maps])
    share = most_bytes // max(len(maps), 1)
    found, failed = {}, {}
    for case in maps:
        if case.id not in files:
            failed[case.id] = "no slide of this name was found"
            continue
        try:
            found[case.id] = case_picture(files[case.id], case, share)
        except SmmilError as problem:
            failed[case.id] = str(problem)
    return found, failed


def _tissue_area(case: Case, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The rectangle around all maps of the case with a margin, inside the slide."""
    extents = np.array([r.facts["extent"] for r in case.rasters if r is not None])
    (left, top), (right, bottom) = extents[:, :2].min(0).tolist(), extents[:, 2:].max(0).tolist()
    tile = max((e[2] - e[0]) / r.facts["columns"] for e, r in zip(extents, filter(None, case.rasters), strict=True))
    # tiles may hang over the edge, but not lie beyond it
    if min(left, top) < -tile or right > size[0] + tile or bottom > size[1] + tile:
        raise DataError(f"{case.id}: its tiles lie outside the slide ({size[0]} x {size[1]}); is it the right slide?")
    margin = 0.04 * max(right - left, bottom - top)
    left, top = max(0.0, left - margin), max(0.0, top - margin)
    right, bottom = min(float(size[0]), right + margin), min(float(size[1]), bottom + margin)
    return left, top, right - left, bottom - top


def _cut(
    image: np.ndarray, scale: float, area: tuple[float, float, float, float]
) -> tuple[np.ndarray, tuple[float, float, float, float]]:
    """The part of a thumbnail that covers the area, and what it covers exactly."""
    left, top = int(area[0] / scale), int(area[1] / scale)
    right, bottom = (int(np.ceil((area[i] + area[i + 2]) / scale)) for i in (0, 1))
    part = image[top:bottom, left:right]
    return part, (left * scale, top * scale, part.shape[1] * scale, part.shape[0] * scale)


def _jpeg(image: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _in_folder(folder: Path, ids: Sequence[str]) -> dict[str, Path]:
    by_name: dict[str, Path] = {}
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".")):
        # an .mrxs file stands beside a folder of the same name; the file is the slide
        if path.stem not in by_name or by_name[path.stem].is_dir():
            by_name[path.stem] = path
        by_name.setdefault(path.name, path)
    return {id_: by_name[name] for id_ in ids for name in (id_, file_name(id_)) if name in by_name}


def _in_table(path: Path, ids: Sequence[str]) -> dict[str, Path]:
    import pandas as pd

    try:
        table: Any = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not readable as a table ({problem}); give rows of id,slide") from None
    column = next((name for name in _PATH_COLUMNS if name in table.columns), None)
    if column is None or "id" not in table.columns:
        raise DataError(f"{path}: columns {', '.join(table.columns)}; expected id and {' or '.join(_PATH_COLUMNS)}")
    wanted = set(ids)
    rows = zip(table["id"], table[column], strict=True)
    return {id_: path.parent / file for id_, file in rows if id_ in wanted and file}
