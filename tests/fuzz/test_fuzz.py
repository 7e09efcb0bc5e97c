"""Damaged and hostile files for every reader: an error that names the file, or the same content; never worse."""

import os
import time

import pytest
from support.mutations import BINARY, TEXT, Damaged, mutation
from support.sandbox import FAILURES, outcomes

from fuzz.hostile import BYTES, MARKER, PIPES, PLACED, Hostile
from fuzz.readers import READERS, FuzzReader
from fuzz.run import fuzz
from fuzz.samples import content, put
from smmil.errors import DataError

# The quick form: every kind of damage at least twice for each reader, and once for each of its files.
ROUNDS, MANY = 1, 10_000
EACH = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


@EACH
def test_damage_is_an_error_or_harmless(reader, tmp_path):
    assert fuzz(reader, tmp_path / "sample", rounds=ROUNDS).problems[:5] == []


@pytest.mark.slow
@EACH
def test_ten_thousand_damages_are_errors_or_harmless(reader, tmp_path):
    assert fuzz(reader, tmp_path / "sample", MANY, seed=1).problems[:20] == []


@EACH
def test_hostile_files_neither_hang_nor_run(reader, tmp_path):
    (tmp_path / "sample").mkdir()
    target = reader.make(tmp_path / "sample")
    truth, files = content(reader.read(target)), reader.files(tmp_path / "sample", target)
    cases = Hostile(files[:1])
    found = outcomes(
        lambda _: content(reader.read(target)),
        cases,
        truth,
        marker=files[0].parent / MARKER,
        named=reader.named(tmp_path / "sample", target),
    )
    failed = [
        f"{kind}: {o.kind}: {o.detail}" for (kind, _), o in zip(cases.cases, found, strict=True) if o.kind in FAILURES
    ]
    assert failed == []
    assert len(found) == len(BYTES) + len(PLACED) + len(PIPES)


# The machinery itself: each kind of failure is planted and must be counted as what it is.


class UnescapedError(DataError):
    """Shows its message as it is given, with line breaks."""

    def __init__(self, message):
        self.message = message

    def __str__(self):
        return self.message


def planted(path):
    """Behaves as the first word of the file says."""
    word = path.read_text()
    if word == "trace":
        raise KeyError(word)
    if word == "hang":
        time.sleep(60)
    if word == "memory":
        return bytearray(8 << 30)
    if word == "crash":
        os.abort()
    if word == "code":
        (path.parent / MARKER).touch()
    if word == "silent":
        raise DataError("something is wrong somewhere")
    if word == "lines":
        raise UnescapedError(f"{path}: wrong\nand more")
    if word == "error":
        raise DataError(f"{path}: wrong; write it again")
    return word


EXPECTED = {"good": "same", "other": "unnoticed", "error": "error", "trace": "traceback", "silent": "traceback",
            "lines": "traceback", "hang": "hang", "memory": "memory", "crash": "crash", "code": "executed"}  # fmt: skip


def test_each_kind_of_failure_is_counted_as_what_it_is(tmp_path):
    files = [put(tmp_path / f"{word}.txt", word) for word in (*EXPECTED, "good")]
    found = outcomes(planted, files, "good", seconds=5, marker=tmp_path / MARKER)
    assert [o.kind for o in found] == [*EXPECTED.values(), "same"]
    assert {o.kind for o in found} >= set(FAILURES)


def reader_of(read, **options):
    return FuzzReader("planted", lambda folder: put(folder / "a.txt", "0123456789" * 20), read, **options)


def test_a_reader_that_believes_everything_exceeds_its_ceiling(tmp_path):
    believing = reader_of(lambda path: path.read_bytes(), kinds=BINARY, ceiling=0.5, sealed=True)
    problems = fuzz(believing, tmp_path, 70).problems
    assert len(problems) == 2
    assert "100.0% unnoticed, at most 50%" in problems[0]
    assert "10 flipped bits unnoticed" in problems[1]
    assert fuzz(reader_of(believing.read, ceiling=1.0), tmp_path, 70).problems == []


def test_a_failure_is_found_again_by_its_number(tmp_path):
    def read(path):
        data = path.read_bytes()
        if len(data) < 100:
            raise IndexError("too short")
        return len(data)

    result = fuzz(reader_of(read, ceiling=1.0), tmp_path, 70)
    short = [n for n in range(70) if len(mutation(b"0123456789" * 20, n, 0, BINARY)[1]) < 100]
    assert short
    assert [int(line.split("#")[1].split()[0]) for line in result.failures] == short
    assert all("IndexError: too short" in line for line in result.failures)


@pytest.mark.parametrize("kinds", [BINARY, TEXT])
def test_damage_is_the_same_for_the_same_seed_and_leaves_other_files_alone(kinds, tmp_path):
    files = [put(tmp_path / name, name * 300) for name in ("one", "two")]
    whole = {file: file.read_bytes() for file in files}
    damaged, again = Damaged(files, 60, 3, kinds), Damaged(files, 60, 3, kinds)
    for number in range(60):
        file = damaged[number]
        content_now = file.read_bytes()
        assert content_now != whole[file]
        assert [f.read_bytes() for f in files if f != file] == [whole[f] for f in files if f != file]
        again[number]
        assert file.read_bytes() == content_now
    assert {damaged.kind(n) for n in range(60)} == {kind.__name__ for kind in kinds}


def test_what_a_file_holds_cannot_add_lines_to_a_message_or_command_the_terminal():
    assert str(DataError("a.csv: column 'x\ny' \x1b[2J \u202e is missing")) == (
        "a.csv: column 'x\\ny' \\x1b[2J \\u202e is missing"
    )
    assert str(DataError("m.csv: 2 problems\n  - one\n  - é µ")) == "m.csv: 2 problems\n  - one\n  - é µ"
