"""Damaged and hostile predictions: refused in one line; evaluate, report and export go on with the others (exit 3)."""

import json
import os
import sys
import zipfile

import numpy as np
import pytest
from support.mutations import BINARY, flip_bit, mutations
from support.sandbox import outcomes

from smmil.cli import main
from smmil.frame import Frame
from smmil.prediction import Prediction, _checksum, _npy

MARK = "hostile"


def prediction(number):
    rng = np.random.default_rng(number)
    coords = np.stack(np.meshgrid(np.arange(4), np.arange(3)), -1).reshape(-1, 2) * 256
    labels = np.arange(12) % 2 * (number % 2)
    facts = {"model": "abmil", "score_kind": "attention", "split": {"part": "test"}}
    return Prediction(
        f"case{number}", [rng.random()], rng.random((12, 1)), coords, Frame((256, 256)), y=number % 2, y_inst=labels,
        meta=facts,
    )  # fmt: skip


def content_of(path):
    loaded = Prediction.load(path)
    return loaded.id, loaded.y, loaded.meta, loaded.frame, *(getattr(loaded, n).tolist() for n in ("probs", "scores"))


def stored(path, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)


def with_facts(path, **changes):
    """A file whose checksum is right and whose facts are not."""
    content = {name: array for name, array in prediction(99)._content().items() if name != "sha256"}
    facts = {**json.loads(content["facts"].item()), **changes}
    content["facts"] = np.array(json.dumps(facts))
    stored(path, {name: _npy(array) for name, array in {**content, "sha256": np.array(_checksum(content))}.items()})


def header(text, body=b""):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + body


def write_hostile(folder):
    """One file per way in which a prediction was seen to end a command in a traceback, or to fill the memory."""
    good = {name: _npy(array) for name, array in prediction(99)._content().items()}
    good["sha256"] = _npy(np.array("0" * 64))
    files = {name: folder / f"{MARK}_{name}.npz" for name in (
        "open_header", "attribute", "lzma", "bomb", "rows", "strange", "empty", "text", "deep")}  # fmt: skip
    stored(files["open_header"], {**good, "scores": header("{'descr': '<f4', 'shape': (")})
    stored(files["attribute"], {**good, "facts": _npy(np.arange(3)), "scores": header("{1: 2}")})
    stored(files["lzma"], good, zipfile.ZIP_LZMA)
    damaged = bytearray(files["lzma"].read_bytes())
    damaged[60:90] = bytes(range(30))
    files["lzma"].write_bytes(damaged)
    stored(files["bomb"], {**good, "coords": _npy(np.zeros((1, 1)))[:128] + bytes(200 << 20)})
    stored(
        files["rows"], {**good, "scores": header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**12, 1), }")}
    )
    stored(files["strange"], {**good, "other": b"x" * 10_000})
    files["empty"].write_bytes(b"")
    files["text"].write_text("not an archive")
    stored(files["deep"], {**good, "facts": _npy(np.array("[" * 100_000))})
    for name, changes in {
        "meta_list": {"meta": [1]},
        "meta_text": {"meta": "abmil"},
        "meta_none": {"meta": None},
        "frame_list": {"frame": [1, 2]},
        "frame_unit": {"frame": {"patch": [256, 256], "unit": 5}},
        "frame_words": {"frame": {"patch": ["a", "b"]}},
        "label": {"y": "9" * 5000},
        "labels": {"y": [[1]]},
        "id": {"id": {"a": 1}},
        "format": {"format": [1]},
    }.items():
        files[name] = folder / f"{MARK}_{name}.npz"
        with_facts(files[name], **changes)
    return list(files.values())


def test_a_prediction_is_read_as_it_was_written_or_refused_in_one_line(tmp_path):
    good = tmp_path / "good.npz"
    prediction(1).save(good)
    truth, files = content_of(good), []
    kinds = [*mutations(good.read_bytes(), 210, 0, BINARY), *mutations(good.read_bytes(), 100, 1, (flip_bit,))]
    for number, (name, data) in enumerate(kinds):
        files.append(tmp_path / f"{number}-{name}.npz")
        files[-1].write_bytes(data)
    for file, found in zip(files, outcomes(content_of, files, truth), strict=True):
        assert found.kind in ("error", "same"), (file.name, found)


def test_hostile_predictions_are_refused_in_one_line_and_little_memory(tmp_path):
    files = write_hostile(tmp_path)
    os.mkfifo(tmp_path / "hostile_pipe.npz")
    files.append(tmp_path / "hostile_pipe.npz")
    for file, found in zip(files, outcomes(content_of, files, None, memory=1 << 29), strict=True):
        assert found.kind == "error", (file.name, found)
        assert (
            file.stem != f"{MARK}_bomb" or "'coords' would unpack to 209,715,328 bytes for 12 instances" in found.detail
        )


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["smmil", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "predictions"
    for number in range(6):
        prediction(number).save(place / f"case{number}.npz")
    return place


@pytest.mark.parametrize("verb", ["evaluate", "report", "export"])
def test_the_commands_go_on_with_the_other_predictions_and_name_each_bad_file(monkeypatch, capsys, folder, verb):
    bad = write_hostile(folder)
    out = folder.parent / "out"
    words = {
        "evaluate": ["--json", out / "metrics.json"],
        "report": ["--out", out / "report.html", "--resamples", 0],
        "export": ["--to", "csv", "--out", out],
    }[verb]
    code, said = call(monkeypatch, capsys, verb, folder, *words)
    assert code == 3, said
    told = said.err + (out / "export_failures.csv").read_text() if verb == "export" else said.err
    for file in bad:
        assert file.name in told, file.name
    if verb == "evaluate":
        bags = json.loads((out / "metrics.json").read_text())["predictions"]["bag"]
        assert bags["n"] == 6
        assert f"{len(bad)} prediction files could not be read and were left out" in bags["notes"]
    elif verb == "export":
        assert len(list(out.glob("case*.csv"))) == 6


@pytest.mark.parametrize("value", [5, "text", [1, [2]], {"a": {"b": []}}, None, True, 1e308, "\ud800"], ids=repr)
@pytest.mark.parametrize("verb", ["evaluate", "report", "export"])
def test_facts_of_another_type_end_no_command_in_a_traceback(monkeypatch, capsys, folder, verb, value):
    kinds = ("score_kind", "model", "split", "features", "slide", "scan", "weights", "config", "versions", "seed",
             "group", "patient", "threshold", "checkpoint", "epoch", "licence", "classes")  # fmt: skip
    with_facts(folder / f"{MARK}.npz", meta=dict.fromkeys(kinds, value))
    out = folder.parent / "out"
    words = {
        "evaluate": ["--ci", "--resamples", 20],
        "report": ["--out", out / "report.html", "--resamples", 0],
        "export": ["--to", "geojson", "--threshold", "0.5", "--out", out],
    }[verb]
    try:
        code, said = call(monkeypatch, capsys, verb, folder, *words)
    except pytest.fail.Exception:  # it went through
        return
    assert code in (0, 2, 3)
    assert "Traceback" not in said.err
