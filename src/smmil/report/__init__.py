"""Predictions and numbers to one self-contained HTML page."""

from smmil.report.document import WrittenReport, write_report
from smmil.report.numbers import Picture, Section

__all__ = ["Picture", "Section", "WrittenReport", "write_report"]
