import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import typer
from support import foreign_files as foreign
from support.bags import chain_bag
from typer.testing import CliRunner

from smmil.bag import Bag
from smmil.cli.convert import convert as verb
from smmil.errors import ConfigError, DataError
from smmil.files import replacing
from smmil.formats import convert as module
from smmil.formats import read_bag, write_bag
from smmil.formats.convert import convert
from smmil.frame import Frame

CELLS = foreign.cells()
X = foreign.features(len(CELLS))


def run(*words):
    app = typer.Typer()
    app.command()(verb)
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def clam_study(folder, names=("a", "b", "c")):
    for seed, name in enumerate(names):
        foreign.clam_files(folder, foreign.features(len(CELLS), seed=seed), CELLS * 512, name=name, patch_size=512)
    return folder


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_folder_becomes_one_bag_per_case_and_says_what_it_left(tmp_path):
    done = convert(clam_study(tmp_path / "in"), to="native", out=tmp_path / "out")
    assert (done.written, done.kept, done.failed) == (["a", "b", "c"], [], {})
    assert (
        sorted(done.others.values()) == ["coordinates without features"] * 3 + ["the same features as in h5_files"] * 3
    )
    assert torch.equal(read_bag(tmp_path / "out" / "b.h5").x, torch.from_numpy(foreign.features(len(CELLS), seed=1)))


@pytest.mark.parametrize("to", module.TARGETS)
def test_repeating_a_call_changes_nothing_and_keeps_everything(tmp_path, to):
    clam_study(tmp_path / "in")
    options = {"to": to, "out": tmp_path / "out", "mpp": 0.25, "encoder": "uni"}
    convert(tmp_path / "in", **options)
    before = content(tmp_path / "out")
    done = convert(tmp_path / "in", **options)
    assert (done.written, done.kept) == ([], ["a", "b", "c"])
    assert content(tmp_path / "out") == before


def test_a_changed_source_or_a_missing_file_is_written_again_and_only_that(tmp_path):
    clam_study(tmp_path / "in")
    convert(tmp_path / "in", to="clam", out=tmp_path / "out")
    foreign.clam_files(tmp_path / "in", X + 1, CELLS * 512, name="b", patch_size=512)
    (tmp_path / "out" / "pt_files" / "c.pt").unlink()
    done = convert(tmp_path / "in", to="clam", out=tmp_path / "out")
    assert (done.written, done.kept) == (["b", "c"], ["a"])
    assert torch.equal(read_bag(tmp_path / "out" / "h5_files" / "b.h5").x, torch.from_numpy(X + 1))


def test_files_of_somebody_else_are_never_overwritten(tmp_path):
    clam_study(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.h5").write_bytes(b"precious")
    done = convert(tmp_path / "in", to="native", out=tmp_path / "out")
    assert (done.written, len(done.failed)) == (["a", "c"], 1)
    assert "was not written by smmil convert" in next(iter(done.failed.values()))
    assert (tmp_path / "out" / "b.h5").read_bytes() == b"precious"
    (tmp_path / "out" / "a.h5").write_bytes(b"edited later by hand")
    assert len(convert(tmp_path / "in", to="native", out=tmp_path / "out").failed) == 2
    assert (tmp_path / "out" / "a.h5").read_bytes() == b"edited later by hand"


def test_damaged_cases_are_listed_and_the_others_go_on(tmp_path):
    clam_study(tmp_path / "in")
    (tmp_path / "in" / "h5_files" / "b.h5").write_bytes(b"\x89HDF\r\n\x1a\nnothing")
    result = run(tmp_path / "in", "--to", "native", "--out", tmp_path / "out")
    assert result.exit_code == 3
    assert "2 written, 0 there already, 1 failed" in result.stdout
    with (tmp_path / "out" / "convert_failures.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"].endswith("b.h5") for row in rows] == [True]
    clam_study(tmp_path / "in")
    result = run(tmp_path / "in", "--to", "native", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert not (tmp_path / "out" / "convert_failures.csv").exists()


def test_the_same_name_in_two_folders_is_refused_with_both(tmp_path):
    clam_study(tmp_path / "in" / "one", ["a"])
    clam_study(tmp_path / "in" / "two", ["a"])
    done = convert(tmp_path / "in", to="native", out=tmp_path / "out")
    assert done.written == ["a"]
    reason = next(iter(done.failed.values()))
    assert "one" in reason
    assert "two" in reason


@pytest.mark.parametrize("name", ["../../evil", "x/../../../evil", "/evil", "..", "a\\b"])
def test_a_name_cannot_lead_out_of_the_folder(tmp_path, name):
    write_bag(tmp_path / "in.h5", Bag(name, torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame((512, 512))))
    for to in module.TARGETS:
        done = convert(tmp_path / "in.h5", to=to, out=tmp_path / "deep" / "er" / to, mpp=0.25)
        assert not done.failed
        assert to == "native" or any("lost: the name" in note for _, note in done.notes)
    assert {p.name for p in tmp_path.iterdir()} == {"in.h5", "deep"}
    assert {p.name for p in (tmp_path / "deep" / "er").iterdir()} == set(module.TARGETS)
    assert read_bag(next((tmp_path / "deep" / "er" / "native").glob("*.h5"))).id == name


def test_everything_a_target_cannot_hold_is_listed(tmp_path):
    bag = Bag(
        "s1",
        torch.from_numpy(X),
        torch.from_numpy(CELLS * 512),
        Frame((512, 512), (0.25, 0.25), "um"),
        y_inst=torch.zeros(len(X)).long(),
    )
    write_bag(tmp_path / "s1.h5", bag, graph={"kind": "knn", "k": 4}, provenance={"encoder": "uni", "recipe": "r1"})
    convert(tmp_path / "s1.h5", to="clam", out=tmp_path / "out")
    with (tmp_path / "out" / "convert_notes.csv").open() as file:
        notes = [row["note"] for row in csv.DictReader(file)]
    for lost in (
        "lost: spacing 0.25 x 0.25 um",
        'lost: neighbourhood {"kind": "knn", "k": 4}',
        "lost: instance labels",
        "lost: provenance encoder, recipe",
    ):
        assert lost in notes


@pytest.mark.parametrize("to", ["trident", "clam", "stamp"])
def test_a_scan_does_not_fit_into_formats_for_slides(tmp_path, to):
    write_bag(tmp_path / "scan.h5", chain_bag(9), graph="chain")
    done = convert(tmp_path / "scan.h5", to=to, out=tmp_path / "out")
    assert "convert it to native or torchmil" in next(iter(done.failed.values()))


def test_patches_that_are_not_square_are_refused(tmp_path):
    bag = Bag("s1", torch.from_numpy(X), torch.from_numpy(CELLS * [512, 256]), Frame((512, 256), (0.5, 0.5), "um"))
    write_bag(tmp_path / "s1.h5", bag)
    for to in ("trident", "clam", "stamp", "torchmil"):
        assert "square patches, got 512 x 256" in str(convert(tmp_path / "s1.h5", to=to, out=tmp_path / to).failed)


def test_options_that_contradict_the_file_are_refused(tmp_path):
    path = foreign.trident_file(tmp_path, X, CELLS * 512, 512)
    assert "encoder 'uni_v1'" in str(convert(path, to="clam", out=tmp_path / "a", encoder="conch").failed)
    convert(path, to="native", out=tmp_path / "n", mpp=0.25)
    assert "mpp 0.25" in str(convert(tmp_path / "n" / "case.h5", to="clam", out=tmp_path / "b", mpp=0.5).failed)
    with pytest.raises(DataError, match="mpp must be"):
        convert(path, to="native", out=tmp_path / "c", mpp=-1)
    with pytest.raises(ConfigError, match="did you mean clam"):
        convert(path, to="clan", out=tmp_path / "c")
    with pytest.raises(DataError, match="no feature file found"):
        convert(tmp_path / "b", to="native", out=tmp_path / "c")


def test_labels_that_the_target_cannot_hold_become_a_table(tmp_path):
    foreign.torchmil_files(tmp_path / "in", X, CELLS * 512, label=1, y_inst=np.zeros(len(X), int))
    convert(tmp_path / "in", to="native", out=tmp_path / "out")
    assert (tmp_path / "out" / "convert_labels.csv").read_text() == "id,label\ncase,1\n"
    result = run(
        tmp_path / "out",
        "--to",
        "torchmil",
        "--labels",
        tmp_path / "out" / "convert_labels.csv",
        "--out",
        tmp_path / "back",
    )
    assert result.exit_code == 0
    for path in sorted((tmp_path / "in").rglob("*.npy")):
        again = np.load(tmp_path / "back" / path.relative_to(tmp_path / "in"))
        assert np.array_equal(again, np.load(path))


def test_a_result_inside_the_source_is_not_converted_again(tmp_path):
    clam_study(tmp_path / "in")
    for _ in range(2):
        done = convert(tmp_path / "in", to="native", out=tmp_path / "in" / "native")
        assert len(done.written + done.kept) == 3
        assert not done.failed


def test_a_full_disk_stops_the_work_and_a_repeated_call_goes_on(tmp_path, monkeypatch):
    clam_study(tmp_path / "in")
    with monkeypatch.context() as patched:
        patched.setattr(module, "replacing", lambda path: full_from("b", path))
        with pytest.raises(OSError, match="No space left"):
            convert(tmp_path / "in", to="native", out=tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").glob("*.h5")] == ["a.h5"]
    done = convert(tmp_path / "in", to="native", out=tmp_path / "out")
    assert (done.written, done.kept) == (["b", "c"], ["a"])


@contextlib.contextmanager
def full_from(name, path):
    if path.stem >= name:
        raise OSError(28, "No space left on device")
    with replacing(path) as temporary:
        yield temporary


def test_an_empty_file_is_no_obstacle_but_a_foreign_one_is(tmp_path):
    source = clam_study(tmp_path / "in")
    convert(source, to="native", out=tmp_path / "whole")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.h5").touch()
    (tmp_path / "out" / "b.h5").write_bytes(b"mine")
    done = convert(source, to="native", out=tmp_path / "out")
    assert done.written == ["a", "c"]
    assert [reason.partition(": ")[2] for reason in done.failed.values()] == [
        "is there already and was not written by smmil convert; choose another --out"
    ]
    assert (tmp_path / "out" / "a.h5").read_bytes() == (tmp_path / "whole" / "a.h5").read_bytes()
    assert (tmp_path / "out" / "b.h5").read_bytes() == b"mine"


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": [1]}', "3", ""])
def test_a_damaged_list_of_written_files_is_named(text, tmp_path):
    convert(clam_study(tmp_path / "in"), to="native", out=tmp_path / "out")
    (tmp_path / "out" / "convert_files.json").write_text(text)
    with pytest.raises(DataError, match=r"convert_files\.json: not "):
        convert(tmp_path / "in", to="native", out=tmp_path / "out")


def test_nothing_of_a_bag_lies_outside_the_output_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert convert(clam_study(tmp_path / "in"), to="native", out=tmp_path / "out").failed == {}


def test_two_conversions_at_once_keep_each_others_ledger(tmp_path):
    one, other = clam_study(tmp_path / "one", ["a"]), clam_study(tmp_path / "other", ["b"])

    def meanwhile(_done, _total):
        convert(other, to="native", out=tmp_path / "out")

    convert(one, to="native", out=tmp_path / "out", progress=meanwhile)
    assert json.loads((tmp_path / "out" / "convert_files.json").read_text())["files"].keys() == {"a.h5", "b.h5"}


KILLED = """
import sys
from smmil.formats.convert import convert
print("go", flush=True)
convert(sys.argv[1], to="clam", out=sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_call_repeated_gives_the_same_bytes(tmp_path):
    clam_study(tmp_path / "in", [f"s{i}" for i in range(60)])
    convert(tmp_path / "in", to="clam", out=tmp_path / "whole")
    for wait in (0.1, 0.3):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(tmp_path / "out")], stdout=subprocess.PIPE
        )
        child.stdout.readline()
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    done = convert(tmp_path / "in", to="clam", out=tmp_path / "out")
    assert not done.failed
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_the_verb_sums_up_its_notes(tmp_path):
    result = run(clam_study(tmp_path / "in"), "--to", "stamp", "--mpp", 0.5, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "differs: features stay float32, STAMP itself writes float16 (3 cases)" in result.stdout
    assert "not converted: 3 files, coordinates without features" in result.stdout
    assert json.loads((tmp_path / "out" / "convert_files.json").read_text())["files"].keys() == {
        f"unknown/{name}.h5" for name in "abc"
    }
