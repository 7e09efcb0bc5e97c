"""What the README shows must run as it stands."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_example_of_the_readme_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["out"].logits.shape == (8, 1)
    assert names["out"].scores.shape == (32, 1)


def test_the_readme_names_both_commands():
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
