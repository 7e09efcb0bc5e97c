"""Words that may leave the building: no folder of this machine, no name of a file, no control characters."""

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

_FOLDERS = re.compile(r"(?:(?<![\w/\\:.~-])(?:~\w*|[A-Za-z]:)?|file://)[/\\](?:[^\s/\\'\"<>|]+[/\\])+(?=[^\s/\\])")

_MOST_FILES = 20_000  # of a folder that are looked at for their names
_LONGEST, _LONGEST_TITLE = 400, 120
# Names that name nobody; to replace them would spoil the sentences in which they are ordinary words.
_HARMLESS = frozenset(
    ("slide", "slides", "scan", "scans", "image", "images", "case", "cases", "series", "dicom", "nifti", "bag", "bags",
     "file", "files", "folder", "table", "map", "data", "test", "train", "level", "none", "and", "the", "for", "has",
     "was", "from", "with", "its", "this", "that", "are", "not", "view", "smmil", "slice", "slices", "pixels")
)  # fmt: skip
_SHORTEST, _SHORTEST_NUMBER = 3, 5


def safe_text(value: Any, longest: int = 200) -> str:
    """One printable line in which absolute paths have lost their folders: /home/eva/slide.svs is slide.svs."""
    line = "".join(c if c.isprintable() else " " for c in str(value))
    line = _FOLDERS.sub("", line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def without_names(text: str, id_: str, image: Path | None, others: Iterable[Path] = ()) -> str:
    """One line in which files, their folders and what lies in them are called by the id of the case.

    Names of files are often names of patients. Options are those of `smmil report` and `smmil view`: what other
    commands call --image is --slides there.
    """
    shown = safe_text(id_, _LONGEST_TITLE)
    files = [path for file in (image, *others) if file is not None for path in _ways_to(file)]
    names = {name for file in files for name in (file.name, _stem(file))} | set(_around(image, text))
    forms = [rf"{re.escape(place)}([/\\][^:;,(]*)?" for place in _longest_first(map(str, files))]
    forms += [rf"{re.escape(place)}[/\\][^:;,(]*" for place in _longest_first(_folders(files))]
    # the id first: a name that is a part of it stays as it is
    forms = [re.escape(id_), *forms, *map(re.escape, _longest_first(filter(_telling, names)))]
    # a whole name, not letters within another word
    text = re.sub(rf"(?<![\w-])(?:{'|'.join(forms)})(?!\w)", lambda _: shown, text)
    return safe_text(text.replace("--image", "--slides"), _LONGEST)


def _ways_to(file: Path) -> tuple[Path, ...]:
    return file, file.absolute(), Path(os.path.realpath(file))


def _folders(files: Iterable[Path]) -> Iterator[str]:
    return (str(file.parent) for file in files if file.parent.name)


def _around(image: Path | None, text: str) -> Iterator[str]:
    """Names of the image's folder, and of whatever lies in an image that is a folder itself and occurs in the text."""
    if image is None:
        return
    yield Path(os.path.realpath(image)).parent.name
    for path in _inside(image):
        yield from (name for name in (path.name, _stem(path)) if name in text)


def _inside(image: Path) -> list[Path]:
    try:
        return list(islice(image.rglob("*"), _MOST_FILES)) if image.is_dir() else []
    except OSError:
        return []  # what cannot be listed was not read either


def _stem(path: Path) -> str:
    return path.stem.removesuffix(".nii")


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts), key=lambda text: (-len(text), text))


def _telling(name: str) -> bool:
    return len(name) >= (_SHORTEST_NUMBER if name.isdecimal() else _SHORTEST) and name.lower() not in _HARMLESS
