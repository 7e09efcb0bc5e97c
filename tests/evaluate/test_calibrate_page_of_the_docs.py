"""The example of the page on calibration runs and holds; its numbers of patients are those of the library."""

import re
from pathlib import Path

from smmil.evaluate.conformal import _needed_patients

PAGE = (Path(__file__).parents[2] / "docs" / "calibrate.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_holds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/calibrate.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Flagging every instance with a score of at least ")


def test_the_numbers_of_patients_on_the_page_are_right():
    assert f"{_needed_patients(0.1)} for 10 %,\n  {_needed_patients(0.05)} for 5 %" in PAGE
    assert f"{_needed_patients(0.1, 0.05)} patients are needed for 10 % at 95 %" in PAGE
