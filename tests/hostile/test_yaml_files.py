"""Hostile YAML in configs, recipes and studies: one line that names the file, exit code 2, within a second."""

import os
import time

import pytest

from smmil.config import parse_yaml
from smmil.errors import ConfigError

NESTED = 5000
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join([f'*{before}'] * 9)}], z{name}: 1}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
# A value that stands somewhere in the file; every one of them must be refused wherever it stands.
VALUES = {
    "nested brackets": "[" * NESTED,
    "closed brackets": "[" * NESTED + "]" * NESTED,
    "nested braces": "{a: " * NESTED + "}" * NESTED,
    "5,000 digits": "9" * 5000,
    "5,000 digits of a float": "9" * 5000 + ".5",
    "hexadecimal": "0x" + "f" * 5000,
    "sexagesimal": ":".join(["59"] * 5000),
    "recursive alias": "&a [*a]",
    "recursive mapping": "&a {x: *a}",
    "unknown alias": "*nobody",
    "binary": "!!binary aGVsbG8=",
    "timestamp": "!!timestamp 0001-99-99",
    "set": "!!set {a, b}",
    "pairs": "!!pairs [a: 1]",
    "python": "!!python/object/apply:os.getcwd []",
    "no integer": "!!int ''",
    "no bool": "!!bool maybe",
    "no float": "!!float x",
    "unknown escape": r'"\U00110000"',
    "half a surrogate": r'"\ud800"',
    "escaped NUL": r'"a\0b"',
    "escaped bell": r'"a\ab"',
    "escaped terminal sequence": r'"\e[2J"',
    "NUL": "a\0b",
    "bell": "a\ab",
    "unhashable key": "{[a]: 1}",
    "unended text": '"abc',
}
WHOLE = {
    "alias bomb": BOMB,
    "merge bomb": MERGES,
    "only NUL": "\0" * 100,
    "a tag": "!!set {}",
    "many items": "a: [" + "1," * 200_000 + "]",
    "too large": "# " + "x" * 5_000_000,
    "long key": "? " + "x" * 60_000 + "\n: 1",
    "two documents": "a: 1\n---\nb: 2",
    "block nesting": "- " * NESTED + "a",
    "questions": "? " * NESTED + "a",
    "number keys": "1: 2\n2.5: 3\nnull: 4\n",
    "empty": "",
    "a list": "[1, 2]",
}


@pytest.fixture(params=["train", "prepare", "experiment run"])
def call(request, tmp_path, refused):
    """Put a text into the file of a command; it must be refused in one line that names the file, at once."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"")
    file = tmp_path / "hostile.yaml"

    def run(data: bytes):
        file.write_bytes(data)
        words = request.param.split()
        given = [tmp_path / "images", "--recipe", file] if words[0] == "prepare" else [file]
        began = time.process_time()
        refused(*words, *given, "--out", tmp_path / "out", words=(file,))
        assert time.process_time() - began < 1
        assert not (tmp_path / "out").exists()

    run.verb = request.param
    return run


PLACES = {
    "train": ("data: {{manifest: {}}}\nmodel: {{name: abmil}}", "data: {{manifest: m.csv}}\nmodel: {{name: {}}}"),
    "prepare": ("encoder: {}", "kind: slide\ntile_um: {}"),
    "experiment": (
        "datasets: [{{name: x, manifest: {}}}]\nvariants: [ABMIL]",
        "datasets: [{{name: x, synthetic: {{kind: slides}}}}]\nvariants: [ABMIL]\nlearning_rates: [{}]",
        "datasets: [{{name: x, manifest: {}, missing: y}}]\nvariants: [ABMIL]",
    ),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_hostile_value_is_refused_wherever_it_stands(call, value):
    for place in PLACES[call.verb.split()[0]]:
        call(place.format(value).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE.keys())
def test_a_hostile_file_is_refused(call, text):
    call(text.encode())


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a: \xff", b"\xef\xbb\xbf\x00", b"a: \xc0\x80"])
def test_bytes_that_are_no_text_are_refused(call, data):
    call(data)


def test_what_is_no_file_is_not_opened(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero", tmp_path / "absent", tmp_path / ("x" * 300)):
        refused("train", path, "--out", tmp_path / "out", words=(path,))
        refused("prepare", tmp_path, "--recipe", path, "--out", tmp_path / "out", words=(path,))
        refused("experiment", "run", path, "--out", tmp_path / "out", words=(path,))


@pytest.mark.parametrize("value", ["9" * 5000, "[" * NESTED, "&a [*a]", r'"\0"', "!!int ''", "2020-99-99", "1e999"])
def test_hostile_changes_on_the_command_line_are_refused(refused, tmp_path, value):
    base = ("train", "--manifest", tmp_path / "m.csv", "--model", "abmil", "--out", tmp_path / "out")
    for key in ("training.lr", "data.folds", "data.splits", "training.epochs"):
        refused(*base, "--set", f"{key}={value}")


def test_plain_data_is_read_as_before():
    text = "base: &base {a: 1, b: [x, 1e-5, true, null]}\nother: {<<: *base, a: 2}\ndate: 2020-01-31\nagain: *base\n"
    inner = ["x", 1e-5, True, None]
    assert parse_yaml(text, "f") == {
        "base": {"a": 1, "b": inner},
        "other": {"a": 2, "b": inner},
        "date": "2020-01-31",
        "again": {"a": 1, "b": inner},
    }
    with pytest.raises(ConfigError, match="f: not valid YAML: key 'a' is given twice"):
        parse_yaml("{a: 1, a: 2}", "f")
