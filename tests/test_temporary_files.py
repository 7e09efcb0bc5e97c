"""Temporary files belong to the process that writes them: others leave them alone while it lives, and only then."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.foreign_files import cells, clam_files, features

from smmil import files
from smmil.experiments.datasets import _prepare
from smmil.experiments.study import Dataset
from smmil.files import remove_leftovers, replacing, write_text
from smmil.formats.convert import convert

WRITER = """
import sys, time
from pathlib import Path
from smmil.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print(temporary.name, flush=True)
    sys.stdin.readline()
    temporary.write_text("whole")
"""


def writer(path):
    """A process that has written half of `path`, and the name of its temporary file."""
    started = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return started, started.stdout.readline().strip()


def leftovers(folder):
    return sorted(p.name for p in folder.rglob(".smmil-*"))


def test_a_living_process_keeps_its_temporary_file_and_ends_well(tmp_path):
    process, name = writer(tmp_path / "a.txt")
    remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == [name]
    process.communicate("\n", timeout=20)
    assert process.returncode == 0
    assert (tmp_path / "a.txt").read_text() == "whole"
    assert leftovers(tmp_path) == []


def test_the_file_of_a_killed_process_goes_even_before_its_parent_has_noticed(tmp_path):
    process, name = writer(tmp_path / "a.txt")
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
    assert leftovers(tmp_path) == [name]
    remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == []
    process.communicate()


def test_the_first_write_into_a_folder_clears_it(tmp_path):
    process, _ = writer(tmp_path / "a.txt")
    process.kill()
    process.communicate()
    write_text(tmp_path / "b.txt", "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.txt"]


def test_what_was_killed_in_a_complete_data_set_of_a_study_is_cleared(tmp_path):
    options = {"size": [10, 16], "dim": 4}
    dataset = Dataset(name="a", folds=2, synthetic={"kind": "slides", "bags": 4, "options": options})
    ready = _prepare(dataset, tmp_path)
    for folder in (tmp_path, ready.manifest.parent, ready.manifest.parent / "bags", ready.manifest.parent / "labels"):
        process, _ = writer(folder / "digests.json")
        process.kill()
        process.communicate()
    assert len(leftovers(tmp_path)) == 4
    assert _prepare(dataset, tmp_path) == ready
    assert leftovers(tmp_path) == []


def renamed(path, part, value):
    """The temporary file under the name of another process: `part` 0 is its machine, 1 its number, 2 its beginning."""
    parts = path.name.removeprefix(".smmil-tmp-").split("-", 3)
    parts[part] = value
    return path.rename(path.with_name(f".smmil-tmp-{'-'.join(parts)}"))


@pytest.fixture
def own(tmp_path):
    """A temporary file of this process."""
    with replacing(tmp_path / "made.txt") as temporary:
        temporary.write_text("half")
        yield temporary
        temporary.touch()


def test_the_number_of_a_dead_process_may_be_given_to_another(own):
    other = renamed(own, 2, "12345")
    remove_leftovers(own.parent)
    assert not other.exists()


def test_a_process_of_another_machine_is_given_a_day(own):
    other = renamed(own, 0, "0" * 8)
    remove_leftovers(own.parent)
    assert other.exists()
    os.utime(other, (time.time() - 90_000,) * 2)
    remove_leftovers(own.parent)
    assert not other.exists()


def test_temporary_files_of_earlier_versions_go(tmp_path):
    (tmp_path / ".smmil-tmp-1-ab-s0.h5").write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 250 + ".h5", "é" * 120 + ".json", "a.nii.gz"])
def test_long_names_have_room_and_keep_their_suffix(name, tmp_path):
    with replacing(tmp_path / name) as temporary:
        temporary.write_text("whole")
        assert temporary.name.endswith(name[-5:])
    assert (tmp_path / name).read_text() == "whole"


def test_systems_without_a_table_of_processes_are_asked_by_signal(own, monkeypatch):
    monkeypatch.setattr(files, "_started", lambda process: 0)
    remove_leftovers(own.parent)
    assert own.exists()


CONVERT = [sys.executable, "-m", "smmil", "convert"]


def test_two_converts_in_one_folder_both_end_well(tmp_path):
    places = cells()
    for seed in range(40):
        clam_files(tmp_path / "in", features(len(places), seed=seed), places * 512, name=f"s{seed}", patch_size=512)
    convert(tmp_path / "in", to="clam", out=tmp_path / "alone")
    command = [*CONVERT, str(tmp_path / "in"), "--to", "clam", "--out", str(tmp_path / "out")]
    pair = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], errors
    assert content(tmp_path / "out") == content(tmp_path / "alone")


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
