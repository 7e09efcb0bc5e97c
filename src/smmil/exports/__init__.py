"""Predictions to files that other programs open: QuPath, OHIF, 3D Slicer, ASAP, spreadsheets."""

from smmil.exports.batch import FORMATS, Exported, export

__all__ = ["FORMATS", "Exported", "export"]
