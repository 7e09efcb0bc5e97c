"""Tables as people save them: other signs than commas are named, spreadsheets are not fed formulas."""

import pytest

from smmil.data import Manifest
from smmil.data.foreign_tables import read_labels
from smmil.data.tables import _need_columns, read_text_table
from smmil.errors import DataError

SIGNS = [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")]


@pytest.mark.parametrize(("sign", "word"), SIGNS)
def test_the_sign_between_columns_is_named(tmp_path, sign, word):
    path = tmp_path / "t.csv"
    path.write_text(f"id{sign}path{sign}label\na{sign}a.h5{sign}1\n")
    with pytest.raises(DataError, match=rf"t\.csv: columns are separated by {word} .* save the table with commas"):
        Manifest.read(path)
    with pytest.raises(DataError, match=word):
        read_labels(path)


def test_semicolons_are_named_also_when_decimal_commas_break_the_table(tmp_path):
    (tmp_path / "t.csv").write_text("id;label;mpp\na;1;0,25\nb;0;0,5,0\n")
    with pytest.raises(DataError, match=r"separated by semicolons \(';'\)"):
        read_text_table(tmp_path / "t.csv", "give one")


def test_a_missing_column_in_a_table_with_commas_is_that(tmp_path):
    (tmp_path / "t.csv").write_text("ids , label\na,1\n")
    table = read_text_table(tmp_path / "t.csv", "give one")
    _need_columns("t.csv", table, ("ids", "label"))
    with pytest.raises(DataError, match=r"t\.csv: column 'id' is missing; did you mean ids"):
        _need_columns("t.csv", table, ("label", "id"))


def test_absent_and_empty_tables_say_what_to_give(tmp_path):
    with pytest.raises(DataError, match="no such file; give one"):
        read_text_table(tmp_path / "t.csv", "give one")
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(DataError, match="the table is empty; give one"):
        read_text_table(tmp_path / "t.csv", "give one")
