"""Tables for people: a spreadsheet shows every cell as it was meant, and computes none."""

import csv

import numpy as np
import pytest

from smmil.files import escape_formula, write_rows


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-cmd", "@SUM(A1)", "  =1", "\t=1", "\r=1", "＝1", "－x"])
def test_what_a_spreadsheet_would_compute_is_marked_as_text(text):
    assert escape_formula(text).startswith("'")
    assert escape_formula(text)[1:] == text.replace("\r", "\n")


@pytest.mark.parametrize("text", ["", "slide 7", "a=b", "s-1", "'quoted", "1e5", "切片"])
def test_ordinary_texts_stay_as_they_are(text):
    assert escape_formula(text) == text


def test_texts_are_inert_and_numbers_stay_numbers(tmp_path):
    write_rows(tmp_path / "t.csv", ("id", "n", "mpp", "file", "none"), [("=1+1", np.int64(-3), -0.25, tmp_path, None)])
    assert rows_of(tmp_path / "t.csv") == [
        ["id", "n", "mpp", "file", "none"],
        ["'=1+1", "-3", "-0.25", str(tmp_path), ""],
    ]


def test_a_text_of_several_lines_stays_in_its_row(tmp_path):
    write_rows(tmp_path / "t.csv", ("id", "reason"), [("a", "first\r=cmd()\r\nlast, with a comma")])
    assert rows_of(tmp_path / "t.csv") == [["id", "reason"], ["a", "first\n=cmd()\nlast, with a comma"]]


def test_without_rows_there_is_no_table_and_an_old_one_goes(tmp_path):
    write_rows(tmp_path / "t.csv", ("id", "reason"), {"a": "b"}.items())
    assert rows_of(tmp_path / "t.csv") == [["id", "reason"], ["a", "b"]]
    write_rows(tmp_path / "t.csv", ("id", "reason"), {}.items())
    assert not (tmp_path / "t.csv").exists()
