"""Converts checkpoints of CLAM, DSMIL, DTFD-MIL, TransMIL, Patch-GCN, SETMIL, GTP and others to weights of smmil."""

from importlib import import_module
from typing import Any

LAYOUTS = ("clam", "dsmil", "dtfd", "transmil", "patchgcn", "setmil", "gtp", "iibmil")
__all__ = ["Imported", "LAYOUTS", "convert_weights", "import_weights"]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is asked for: the command line lists layouts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("smmil.foreign_weights.convert"), name)
