"""Errors as a browser may show them: names of files and folders may name people, so they become the case."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from smmil.report.private import safe_text

_LONGEST, _LONGEST_TITLE = 400, 120
# Names that name nobody; to replace them would spoil the sentences in which they are ordinary words.
_HARMLESS = frozenset(
    ("slide", "slides", "scan", "scans", "image", "images", "case", "cases", "series", "dicom", "nifti", "bag", "bags",
     "file", "files", "folder", "table", "map", "data", "test", "train", "level", "none", "and", "the", "for", "has",
     "was", "from", "with", "its", "this", "that", "are", "not", "view", "smmil", "slice", "slices", "pixels")
)  # fmt: skip
_SHORTEST, _SHORTEST_NUMBER = 3, 5


def without_names(text: str, id_: str, image: Path | None, others: Iterable[Path] = ()) -> str:
    """One line in which files, their folders and what lies in them are called by the id of the case.

    Options are those of `smmil view`: what other commands call --image is --slides here.
    """
    shown = safe_text(id_, _LONGEST_TITLE)
    files = [path for file in (image, *others) if file is not None for path in (file, Path(os.path.realpath(file)))]
    names = {name for file in files for name in (file.name, _stem(file))} | set(_around(image))
    forms = [rf"{re.escape(place)}([/\\][^:;,(]*)?" for place in _longest_first(map(str, files))]
    forms += [rf"{re.escape(place)}[/\\][^:;,(]*" for place in _longest_first(_folders(files))]
    # the id first: a name that is a part of it stays as it is
    forms = [re.escape(id_), *forms, *map(re.escape, _longest_first(filter(_telling, names)))]
    text = re.sub(rf"(?<![\w-])(?:{'|'.join(forms)})(?!\w)", lambda _: shown, text)
    return safe_text(text.replace("--image", "--slides"), _LONGEST)


def _folders(files: Iterable[Path]) -> Iterator[str]:
    return (str(file.parent) for file in files if file.parent.name)


def _around(image: Path | None) -> Iterator[str]:
    """Names of the image's folder, and of the files in an image that is a folder itself."""
    if image is None:
        return
    yield Path(os.path.realpath(image)).parent.name
    try:
        inside = sorted(image.iterdir()) if image.is_dir() else []
    except OSError:
        inside = []  # what cannot be listed was not read either
    for path in inside:
        yield path.name
        yield _stem(path)


def _stem(path: Path) -> str:
    return path.stem.removesuffix(".nii")


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts), key=lambda text: (-len(text), text))


def _telling(name: str) -> bool:
    return len(name) >= (_SHORTEST_NUMBER if name.isdecimal() else _SHORTEST) and name.lower() not in _HARMLESS
