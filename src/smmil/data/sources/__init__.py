"""Public data sets: from the folder a user downloaded to the table that `smmil prepare --labels` takes."""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from smmil.data.manifest import Manifest
from smmil.errors import ConfigError, check_choice

NAMES = ("camelyon16", "panda", "rsna_ich", "crchisto", "folder")


def write_source(name: str, root: str | Path, out: str | Path, **options: Any) -> Manifest:
    """Check a downloaded data set and write `out`/labels.csv and `out`/source.json; gives the table.

    The columns are those of a manifest, with `path` naming the image, and annotation, annotation_kind,
    annotation_complete where there is something to say.
    """
    check_choice(name, NAMES, "data set")
    source: Callable[..., Manifest] = getattr(import_module(f"smmil.data.sources.{name}"), name)
    known = [option for option in signature(source).parameters if option not in ("root", "out")]
    for option in options:
        if option not in known:
            taken = ", ".join(f"--{word.replace('_', '-')}" for word in known)
            raise ConfigError(f"--{option.replace('_', '-')}: is not for the data set {name}, which takes {taken}")
    if "table" in known and "table" not in options:
        raise ConfigError(f"data set {name}: give the table id,label of its images with --table")
    return source(root, out, **options)
