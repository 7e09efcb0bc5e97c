import json

import pytest
import typer
from typer.testing import CliRunner

from smmil.cli.inspect import inspect
from smmil.data import synthetic_slides, write_synthetic


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
