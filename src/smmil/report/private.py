"""Words that may leave the building: no folder of this machine, no control characters, not too long."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

_FOLDERS = re.compile(r"(?:(?<![\w/\\:.~-])(?:~\w*|[A-Za-z]:)?|file://)[/\\](?:[^\s/\\'\"<>|]+[/\\])+(?=[^\s/\\])")

_MOST_FILES = 20_000  # of a folder that are looked at for their names


def safe_text(value: Any, longest: int = 200) -> str:
    """One printable line in which absolute paths have lost their folders: /home/eva/slide.svs is slide.svs."""
    line = "".join(c if c.isprintable() else " " for c in str(value))
    line = _FOLDERS.sub("", line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def without_names(text: str, image: Path, id_: str) -> str:
    """The text with the case's id in place of its image and the files inside: names of files are often of patients."""
    for name in sorted(_names(text, image), key=len, reverse=True):
        # a whole name, not letters within another word
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", lambda _: id_, text)
    return text


def _names(text: str, image: Path) -> Iterator[str]:
    """Every way to name the image, or a file inside its folder, that occurs in the text."""
    inside = islice(image.rglob("*"), _MOST_FILES) if image.is_dir() else ()
    for path in (image, *inside):
        for name in (str(path), str(path.absolute()), str(path.resolve()), path.name):
            if name and name in text:
                yield name
