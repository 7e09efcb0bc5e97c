"""Renew the table of metrics in docs/evaluate.md from the registry: python docs/metrics_table.py."""

from pathlib import Path

from smmil.evaluate.metrics import metrics_table

PAGE = Path(__file__).with_name("evaluate.md")
BEGIN, END = "<!-- metrics: begin -->\n\n", "\n<!-- metrics: end -->\n"


def renewed(page: str) -> str:
    """The page with the table between its two marks replaced by that of the registry."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + metrics_table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
