"""Redaction (de-identification): removes paths and patient identifiers from reports, pages and exported texts."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from smmil import __version__
from smmil.errors import DataError
from smmil.prediction import Prediction, corrections_text

_FOLDERS = re.compile(r"(?:(?<![\w/\\:.~-])(?:~\w*|[A-Za-z]:)?|file://)[/\\](?:[^\s/\\'\"<>|]+[/\\])+(?=[^\s/\\])")

_MOST_FILES = 20_000  # of a folder that are looked at for their names
_LONGEST, _LONGEST_TITLE = 400, 120
# Ordinary words that identify no person; replacing them would spoil sentences.
_ORDINARY_WORDS = frozenset(
    ("slide", "slides", "scan", "scans", "image", "images", "case", "cases", "series", "dicom", "nifti", "bag", "bags",
     "file", "files", "folder", "table", "map", "data", "test", "train", "level", "none", "and", "the", "for", "has",
     "was", "from", "with", "its", "this", "that", "are", "not", "view", "smmil", "slice", "slices", "pixels")
)  # fmt: skip
_SHORTEST, _SHORTEST_NUMBER = 3, 5


def safe_text(value: Any, longest: int = 200) -> str:
    """One printable line without the folders of absolute paths: /home/eva/slide.svs becomes slide.svs."""
    return _cut(_FOLDERS.sub("", _printable(value)), longest)


def _printable(value: Any) -> str:
    return "".join(c if c.isprintable() else " " for c in str(value))


def _cut(line: str, longest: int) -> str:
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def without_names(text: str, id_: str, image: Path | None, others: Iterable[Path] = ()) -> str:
    """One line in which names of files, their folders and their content are replaced by the id of the case.

    Names of files are often names of patients. Options are those of `smmil report` and `smmil view`: what other
    commands call --image is --slides there.
    """
    replacement = safe_text(id_, _LONGEST_TITLE)
    given = [file for file in (image, *others) if file is not None]
    files = [way for file in given for way in (file, file.absolute(), Path(os.path.realpath(file)))]
    folders = {str(file.parent) for file in files if file.parent.name}
    names = {name for file in files for name in (file.name, _stem(file))} | set(_around(image, text))
    forms = [rf"{re.escape(place)}([/\\][^:;,(]*)?" for place in _longest_first(map(str, files))]
    forms += [rf"{re.escape(place)}[/\\][^:;,(]*" for place in _longest_first(folders)]
    # the id first: a name that is part of it stays
    forms = [re.escape(id_), *forms, *map(re.escape, _longest_first(filter(_may_identify, names)))]
    # a whole name, not letters within another word
    text = re.sub(rf"(?<![\w-])(?:{'|'.join(forms)})(?!\w)", lambda _: replacement, text)
    return safe_text(text.replace("--image", "--slides"), _LONGEST)


def _around(image: Path | None, text: str) -> Iterator[str]:
    """Names of the image's folder, and of files inside an image that is a folder, as far as they occur in the text."""
    if image is None:
        return
    yield Path(os.path.realpath(image)).parent.name
    with suppress(OSError):  # what cannot be listed was not read either
        for path in islice(image.rglob("*") if image.is_dir() else (), _MOST_FILES):
            yield from (name for name in (path.name, _stem(path)) if name in text)


def _stem(path: Path) -> str:
    return path.stem.removesuffix(".nii")


def _longest_first(texts: Iterable[str]) -> list[str]:
    return sorted(set(texts), key=lambda text: (-len(text), text))


def _may_identify(name: str) -> bool:
    return len(name) >= (_SHORTEST_NUMBER if name.isdecimal() else _SHORTEST) and name.lower() not in _ORDINARY_WORDS


def redacted(value: Any) -> Any:
    """The same plain data with every text as one printable line in which absolute paths have lost their folders."""
    return _with_texts(value, lambda text: " ".join(safe_text(text).split()))


def refuse_folders(values: Any, where: str) -> Any:
    """Return the values; an error if one is a path, since changing it would change the model."""
    if redacted(values) != _with_texts(values, str):
        raise DataError(f"{where}: names a folder or an unprintable text ({values!r}); train with plain values")
    return values


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text changed; keys become texts and tuples lists."""
    if isinstance(value, dict):
        return {str(key): _with_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


RESEARCH = "research use only"
_LONGEST_PROVENANCE = 200
# Facts of `meta` that describe the model and its input. Others (patient groups, paths, anything a user added) may
# identify the patient and are never written.
_MODEL_KEYS = ("model", "checkpoint", "weights", "score_kind")
_FEATURE_KEYS = ("encoder", "recipe")


def provenance(prediction: Prediction) -> dict[str, str]:
    """Software, model, digest of its weights, kind of score, encoder, recipe, and that it is for research only."""
    features = prediction.meta.get("features")
    facts = [(key, prediction.meta.get(key)) for key in _MODEL_KEYS]
    facts += [(key, features.get(key)) for key in _FEATURE_KEYS] if isinstance(features, dict) else []
    facts.append(("corrections", corrections_text(prediction.meta.get("corrections"))))
    known = {key: plain(value) for key, value in facts if isinstance(value, str) and plain(value)}
    return {"software": f"smmil {__version__}", **known, "use": RESEARCH}


def plain(text: Any, longest: int = _LONGEST_PROVENANCE) -> str:
    """One printable line of limited length."""
    return _cut(" ".join(_printable(text).split()), longest)
