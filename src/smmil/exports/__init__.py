"""Predictions to files that other programs open: QuPath, OHIF, 3D Slicer, ASAP, spreadsheets."""

from importlib import import_module
from pkgutil import iter_modules

from smmil.exports.batch import Exported, export
from smmil.exports.case import ExportCase
from smmil.exports.registry import FORMATS, ExportFormat, format_table, possible_formats, register_export

__all__ = [
    "FORMATS",
    "ExportCase",
    "ExportFormat",
    "Exported",
    "export",
    "format_table",
    "possible_formats",
    "register_export",
]
_FIRST = ("instances", "raster", "dicom")  # their formats stand first in lists


def _import_writers() -> None:
    """Import every file of this folder: those that hold writers register them."""
    others = {module.name for module in iter_modules(__path__)} - {*_FIRST}
    for name in (*_FIRST, *sorted(others)):
        import_module(f"{__name__}.{name}")


_import_writers()
