"""The image file of every case: found by name in a folder, or named in a table."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smmil.errors import DataError
from smmil.files import file_name

_PATH_COLUMNS = ("slide", "image", "path", "file")


class Original(NamedTuple):
    """The image behind a case, and its pixel size where a table corrects what the file says."""

    path: Path
    mpp: float | None = None


def find_originals(where: str | Path, ids: Sequence[str], option: str = "--slides") -> dict[str, Original]:
    """File of each case: from a CSV table with id and slide (or image, path, file), or from a folder by name.

    Ids never become paths. `option` is how the user gave `where`, for the words of errors.
    """
    where = Path(where)
    if where.is_dir():
        return _in_folder(where, ids)
    if not is_table(where):
        raise DataError(f"{where}: no such folder or CSV table; give {option} a folder of images or id,slide rows")
    return _in_table(where, ids)


def is_table(where: Path) -> bool:
    """Whether this names images in rows rather than being one."""
    return where.suffix.lower() == ".csv" and where.is_file()


def _in_folder(folder: Path, ids: Sequence[str]) -> dict[str, Original]:
    """By the name of the file without ending, or by its path below the folder, as `smmil prepare` names cases."""
    wanted = {name: id_ for id_ in ids for name in (file_name(id_), id_)}
    found: dict[str, list[Path]] = {}
    for path in _below(folder, folder, wanted):
        for name in _names(path, folder) & wanted.keys():
            found.setdefault(wanted[name], []).append(path)
    return {id_: Original(_only(paths, id_, folder)) for id_, paths in found.items()}


def _below(place: Path, folder: Path, wanted: Collection[str]) -> Iterator[Path]:
    """Files and folders below `place`; not inside a folder that is a case itself (a DICOM series)."""
    for path in sorted(p for p in place.iterdir() if not p.name.startswith(".")):
        yield path
        if path.is_dir() and not path.is_symlink() and _names(path, folder).isdisjoint(wanted):
            yield from _below(path, folder, wanted)


def _names(path: Path, folder: Path) -> set[str]:
    inside, stem = path.relative_to(folder), path.stem.removesuffix(".nii")
    return {path.name, stem, inside.as_posix(), inside.with_name(stem).as_posix()}


def _only(paths: Sequence[Path], id_: str, folder: Path) -> Path:
    """The file of a case: the one nearest to the top, which must be the only one there of its kind.

    An .mrxs file stands beside a folder of the same name; the file is the slide.
    """
    first = min(paths, key=lambda path: (len(path.parts), path.is_dir()))
    rivals = [p for p in paths if len(p.parts) == len(first.parts) and p.parent != first.parent]
    if rivals:
        both = " and ".join(path.relative_to(folder).as_posix() for path in (first, rivals[0]))
        raise DataError(f"{folder}: case {id_} could be {both}; give a table with the columns id and slide")
    return first


def _in_table(path: Path, ids: Sequence[str]) -> dict[str, Original]:
    import pandas as pd

    try:
        table: Any = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path}: not readable as a table ({problem}); give rows of id,slide") from None
    column = next((name for name in _PATH_COLUMNS if name in table.columns), None)
    if column is None or "id" not in table.columns:
        raise DataError(f"{path}: columns {', '.join(table.columns)}; expected id and {' or '.join(_PATH_COLUMNS)}")
    wanted = set(ids)
    sizes = table["mpp"] if "mpp" in table.columns else [""] * len(table)
    rows = zip(table["id"], table[column], sizes, strict=True)
    return {
        id_: Original(path.parent / file, _pixel_size(size, path, id_))
        for id_, file, size in rows
        if id_ in wanted and file
    }


def _pixel_size(text: str, path: Path, id_: str) -> float | None:
    if not text.strip():
        return None
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise DataError(f"{path}: mpp of {id_} is {text!r}; expected micrometres per pixel such as 0.25, or nothing")
    return size
