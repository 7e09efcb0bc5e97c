"""Predictions and numbers to one self-contained HTML page."""

from smmil.report.comparison import Picture, Section
from smmil.report.document import WrittenReport, write_report

__all__ = ["Picture", "Section", "WrittenReport", "write_report"]
