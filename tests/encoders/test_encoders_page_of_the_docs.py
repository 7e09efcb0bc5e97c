import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "encoders.md"


def test_the_example_on_the_page_runs_and_says_the_truth():
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    assert names["own"].mpp == 0.5
    assert names["features"].shape == (5, 1280)
    assert np.array_equal(names["features"], names["same"])


def test_the_table_on_the_page_has_the_rows_of_the_program():
    from smmil.encoders import encoder_info, list_encoders

    text = PAGE.read_text(encoding="utf-8")
    for row in map(encoder_info, list_encoders()):
        line = next(line for line in text.splitlines() if line.startswith(f"| `{row.name}` "))
        assert f"| {row.dim} |" in line
        assert row.name == "efficientnet-lite0" or (row.hub or row.files[0]) in line
        assert row.licence.partition(":")[0] in line
        assert row.gate == "none" or row.gate in line
