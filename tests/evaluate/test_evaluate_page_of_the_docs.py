"""Every example of the page on evaluation runs, in order, and what it claims is true."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"


def test_every_example_of_the_page_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) >= 12
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert (tmp_path / "report.html").stat().st_size > 10_000
