"""Every example of the pages on annotations and public data sets runs, and what it claims is true."""

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("page", ["annotations", "sources"])
def test_every_example_of_the_page_holds(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    path = Path(__file__).parents[2] / "docs" / f"{page}.md"
    examples = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(path), "exec"), {})
