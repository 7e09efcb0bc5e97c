"""Paths with variables: where the data lie is the user's to say, not the study's."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from smmil.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled_in(dataset: Mapping[str, Any], given: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """The definition with ${NAME} in its paths replaced; `missing` names a variable that nobody has set.

    Values in `given` count from the working folder, paths in the file from `folder`.
    """
    found = dict(dataset)
    for key in ("manifest", "splits"):
        text = found.get(key)
        if not isinstance(text, str):
            continue
        names = _VARIABLE.findall(text)
        unset = [name for name in names if not (given.get(name) or os.environ.get(name))]
        if unset:
            found[key] = None
            found.setdefault("missing", unset[0])  # the manifest first: splits are of no use without it
            continue
        base = Path.cwd() if names else folder
        path = _VARIABLE.sub(lambda match: given.get(match[1]) or os.environ[match[1]], text)
        found[key] = str((base / path).expanduser().resolve())
    return found


def parse_variables(texts: Iterable[str]) -> dict[str, str]:
    """NAME=PATH pairs of the command line."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ConfigError(f"--data {text!r}: expected NAME=manifest.csv, such as CRCHISTO=bags/manifest.csv")
        found[name.strip()] = value.strip()
    return found
