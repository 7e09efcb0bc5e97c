"""Texts of CSV files that a spreadsheet shows and never computes."""

import re

# What Excel, LibreOffice and Google Sheets take for the beginning of a formula, also in full width or after blanks.
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r]")


def inert(text: str) -> str:
    """The text itself; with ' before it if a spreadsheet would take it for a formula.

    Carriage returns become line feeds: writers of CSV leave them unquoted, and a text could go on in a row of its own.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{lines}" if _FORMULA.match(text) else lines
