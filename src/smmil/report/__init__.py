"""Predictions and numbers to one self-contained HTML page."""

from smmil.report.comparison import comparison_page
from smmil.report.page import Picture, Section, Table, write_page
from smmil.report.writing import Written, write_report

__all__ = ["Picture", "Section", "Table", "Written", "comparison_page", "write_page", "write_report"]
