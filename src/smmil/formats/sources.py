"""Which files of a folder are bags, and which only belong to one."""

import os
from pathlib import Path

from smmil.errors import DataError
from smmil.formats import find_reader, hdf5, lazyslide
from smmil.formats.boundary import boundary

_ENDINGS = (*hdf5.ENDINGS, ".pt", ".npy", ".csv")


def find_bags(source: str | Path, leave_out: Path | None = None) -> tuple[list[Path], dict[str, str]]:
    """Feature files and stores below `source` in a fixed order, and the files that are none, with the reason.

    Damaged files count as bags: they fail by name later on. The folder `leave_out` is not entered.
    """
    source = Path(source)
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.is_file() or lazyslide.recognises(source):
        return [source], {}
    bags: list[Path] = []
    others: dict[str, str] = {}
    for folder, names in _walk(source, leave_out):
        for name in names:
            path = folder / name
            reason = _why_not(path)
            if reason is None:
                bags.append(path)
            else:
                others[str(path.relative_to(source))] = reason
    return bags, others


def _walk(source: Path, leave_out: Path | None) -> list[tuple[Path, list[str]]]:
    """Every folder with its candidates in sorted order; a zarr store is a candidate, not a folder."""
    places = []
    for folder, below, files in os.walk(source):
        here = Path(folder)
        stores = [name for name in below if lazyslide.recognises(here / name)]
        skipped = {
            *stores,
            *(n for n in below if leave_out is not None and (here / n).resolve() == leave_out.resolve()),
        }
        below[:] = sorted(set(below) - skipped)
        candidates = [name for name in files if name.lower().endswith(_ENDINGS) and not name.startswith(".")]
        places.append((here, sorted(candidates + stores)))
    return places


def _why_not(path: Path) -> str | None:
    """Why a file is not a bag of its own; None when it is one, or should be."""
    ending = path.suffix.lower()
    if ending == ".pt" and (path.parent.parent / "h5_files" / f"{path.stem}.h5").is_file():
        return "the same features as in h5_files"
    if ending == ".npy" and not path.absolute().parent.name.startswith("features"):
        return "not in a folder of features"
    if ending == ".csv":
        return None if find_or_none(path) else "a table, not the patches of a case"
    if ending in hdf5.ENDINGS:
        return "coordinates without features" if _layout(path) == "positions" else None
    return None


def _layout(path: Path) -> str:
    try:
        with boundary(path):
            return hdf5.layout(path)
    except DataError:
        return "damaged"


def find_or_none(path: Path) -> str | None:
    """Name of the reader that recognises a file, or None."""
    try:
        return find_reader(path).name
    except DataError:
        return None
