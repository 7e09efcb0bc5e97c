"""Predictions to files that other programs open: QuPath, OHIF, 3D Slicer, ASAP, spreadsheets."""

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
