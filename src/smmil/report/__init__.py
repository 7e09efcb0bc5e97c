"""Predictions and numbers to one self-contained HTML page."""

from smmil.report.comparison import comparison_page
from smmil.report.page import Picture, Section, Table, write_page

__all__ = ["Picture", "Section", "Table", "comparison_page", "write_page"]
