"""Predictions and numbers to one self-contained HTML page."""

from smmil.report.comparison import PageTable, Picture, Section, comparison_page, write_page
from smmil.report.writing import WrittenReport, write_report

__all__ = ["Picture", "Section", "PageTable", "WrittenReport", "comparison_page", "write_page", "write_report"]
