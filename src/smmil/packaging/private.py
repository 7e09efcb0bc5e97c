"""Words that may leave the building: texts of a package name no folder of the machine it was made on."""

import re
from typing import Any

from smmil.errors import DataError

_FOLDER = r"(?:(?<![\w/\\:.~<-])(?:~\w*|[A-Za-z]:)?|file://)[/\\](?:[^\s/\\'\"<>|]+[/\\])+"
_INSIDE = re.compile(_FOLDER + r"(?=[^\s/\\])")
_LONGEST = 200


def told(value: Any) -> Any:
    """The same plain data with every text as one printable line in which absolute paths have lost their folders."""
    if isinstance(value, dict):
        return {str(key): told(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [told(inner) for inner in value]
    if not isinstance(value, str):
        return value
    line = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    return _INSIDE.sub("", line)[:_LONGEST]


def refuse_folders(values: Any, where: str) -> Any:
    """The values themselves, unless one is a path: they cannot be changed without changing the model."""
    if told(values) != _as_plain(values):
        raise DataError(f"{where}: names a folder or an unprintable text ({values!r}); train with plain values")
    return values


def _as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_plain(inner) for key, inner in value.items()}
    return [_as_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
