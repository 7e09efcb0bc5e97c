"""Words that may leave the building: texts of a package name no folder of the machine it was made on."""

from typing import Any

from smmil.errors import DataError
from smmil.report.private import safe_text


def told(value: Any) -> Any:
    """The same plain data with every text as one printable line in which absolute paths have lost their folders."""
    if isinstance(value, dict):
        return {str(key): told(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [told(inner) for inner in value]
    return " ".join(safe_text(value).split()) if isinstance(value, str) else value


def refuse_folders(values: Any, where: str) -> Any:
    """The values themselves, unless one is a path: they cannot be changed without changing the model."""
    if told(values) != _as_plain(values):
        raise DataError(f"{where}: names a folder or an unprintable text ({values!r}); train with plain values")
    return values


def _as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_plain(inner) for key, inner in value.items()}
    return [_as_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
