"""Every example of the page on exports runs, and what it claims is true."""

import re
from pathlib import Path

from smmil.exports import format_table

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"


def test_every_example_of_the_page_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert examples
    names: dict = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert (tmp_path / "slide.png").stat().st_size > 500


def test_the_page_shows_the_table_of_formats():
    assert format_table() in PAGE.read_text(encoding="utf-8")
