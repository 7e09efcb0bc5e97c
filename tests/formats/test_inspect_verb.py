import json

import pytest
import typer
from typer.testing import CliRunner

from smmil.cli.inspect import inspect
from smmil.errors import DataError
from smmil.synthetic import synthetic_slides, write_synthetic


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_synthetic(tmp_path_factory.mktemp("set"), synthetic_slides(4, size=(20, 40), dim=8))


def run(*words):
    app = typer.Typer()
    app.command()(inspect)
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"}, catch_exceptions=False)


def test_a_bag_and_a_manifest_are_shown_as_tables(manifest):
    result = run(manifest, manifest.parent / "bags" / "slide_0001.h5")
    assert result.exit_code == 0
    for words in ("labels", "0: 2, 1: 2", "groups with several bags", "synthetic-8", "checksum", "matches", "float16"):
        assert words in result.stdout


def test_json_is_for_programs(manifest):
    table, bag = json.loads(run("--json", manifest, manifest.parent / "bags" / "slide_0001.h5").stdout)
    assert (table["bags"], bag["dim"], bag["checksum"]) == (4, 8, "matches")


def test_missing_files_of_a_manifest_are_a_warning(tmp_path):
    (tmp_path / "m.csv").write_text("id,path,label\na,a[b].h5,0\nb,b.h5,1\n")
    result = run(tmp_path / "m.csv")
    assert result.exit_code == 3
    assert "2 files are missing" in " ".join(result.stdout.split())
    assert "a[b].h5" in "".join(result.stdout.split())


def test_the_help_teaches_by_example():
    assert "smmil inspect manifest.csv" in run("--help").stdout


def test_a_file_that_cannot_be_read_does_not_stop_the_others(manifest, tmp_path):
    (tmp_path / "broken.h5").write_bytes(b"nothing")
    sound = manifest.parent / "bags" / "slide_0001.h5"
    result = run("--json", tmp_path / "broken.h5", sound, tmp_path / "absent.h5")
    assert result.exit_code == 3
    broken, bag, absent = json.loads(result.stdout)
    assert bag["dim"] == 8
    assert broken["not_readable"]
    assert "broken.h5: not readable as a feature file" in broken["warnings"][0]
    assert "absent.h5: no such file" in absent["warnings"][0]
    assert "broken.h5" in run(tmp_path / "broken.h5", sound).stdout


def test_a_single_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "broken.h5").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not readable as a feature file"):
        run(tmp_path / "broken.h5")


def test_files_of_other_verbs_are_sent_there(manifest, tmp_path):
    for name in ("a.npz", "b.svs", "c.nii.gz", "model.safetensors"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "labels.csv").write_text("id,label\na,1\n")
    (tmp_path / "empty").mkdir()
    verbs = {
        tmp_path / "a.npz": "predictions, not features; use smmil evaluate, report or export",
        tmp_path / "b.svs": "pixels of slides, not features; use smmil prepare",
        tmp_path / "c.nii.gz": "pixels of CT scans, not features; use smmil prepare",
        tmp_path / "model.safetensors": "use smmil predict",
        tmp_path / "labels.csv": "this is a table of labels.* smmil prepare IMAGES --labels",
        manifest.parent: "smmil inspect .*manifest.csv",
        tmp_path / "empty": "not a known feature file",
    }
    for path, words in verbs.items():
        with pytest.raises(DataError, match=words):
            run(path)
