"""The notebooks of the docs run from the first cell to the last, at small size and in this process."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smmil.cli import app
from smmil.encoders.networks import _prepare_torchvision

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SIZES = {
    "SLIDES = 80": "SLIDES = 14",
    "patches=(30, 60)": "patches=(8, 12)",
    "SCANS = 60": "SCANS = 12",
    '"heads", SCANS': '"heads", SCANS, slices=(12, 14), size=64',
    "CASES = 60": "CASES = 24",
    "epochs=20": "epochs=2",
}


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def smaller(code):
    for size, small in SIZES.items():
        code = code.replace(size, small)
    return code


def test_every_size_is_found_in_a_notebook():
    everything = "".join(cell for path in FOLDER.glob("*.ipynb") for cell in code_cells(path))
    assert [size for size in SIZES if size not in everything] == []


def run_commands(cell):
    for line in cell.splitlines()[1:]:
        words = re.split(r" +", line)
        assert words[0] == "smmil", f"only commands of smmil can be tried here: {line}"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"


# Those that encode pixels take ten seconds each; what they show is tested in tests/flows as well.
BOOKS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem != "own-features"))
    for path in sorted(FOLDER.glob("*.ipynb"))
]


@pytest.mark.parametrize("path", BOOKS)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_to_its_end(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # no worker processes
    if find_spec("torchvision"):
        _prepare_torchvision("lightning")  # its torchmetrics imports it
    names: dict = {}
    for number, cell in enumerate(code_cells(path)):
        if cell.startswith("%%bash\n"):
            run_commands(smaller(cell))
        else:
            exec(compile(smaller(cell), f"{path.name}, cell {number}", "exec"), names)
    left = {file.name for file in tmp_path.iterdir()}
    assert left >= {"slides": {"report.html", "map.png", "qupath"}, "ct": {"report.html", "maps"}}.get(
        path.stem, {"map.png"}
    )


def test_notebooks_hold_no_results_and_are_in_the_site():
    books = sorted(FOLDER.glob("*.ipynb"))
    assert [book.stem for book in books] == ["ct", "own-features", "slides"]
    site = (FOLDER.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")
    for book in books:
        cells = json.loads(book.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells)  # the site is built by running them
        assert f"notebooks/{book.name}" in site
