"""Models trained with the authors' own programs, brought into ours: one file per layout."""

from importlib import import_module
from typing import Any

from smmil.published.names import LAYOUTS

_CONVERT = ("Imported", "convert_weights", "import_weights")


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: the command line lists layouts without it."""
    if name not in _CONVERT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("smmil.published.convert"), name)


__all__ = ["LAYOUTS", "Imported", "convert_weights", "import_weights"]
