"""Tables that commands write for people: a folder's name is never computed by a spreadsheet."""

import pandas as pd
from support.evaluate_command import run, write


def test_a_model_whose_folder_is_named_like_a_formula_is_shown_as_text(tmp_path):
    run(write(tmp_path / "=1+1"), "--csv", tmp_path / "numbers.csv")
    table = pd.read_csv(tmp_path / "numbers.csv")
    assert set(table["model"]) == {"'=1+1"}
    assert table["value"].dtype == float  # numbers stay numbers
