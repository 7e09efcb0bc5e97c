"""What a release depends on: one version, typed, and pages that name files and programs that exist."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import smmil

ROOT = Path(__file__).parents[1]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_written_once_and_everything_else_agrees():
    project = tomllib.loads(text("pyproject.toml"))
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/smmil/__init__.py"
    written = re.findall(r'^__version__ = "(.*)"$', text("src/smmil/__init__.py"), re.MULTILINE)
    assert written == [smmil.__version__]
    assert yaml.safe_load(text("CITATION.cff"))["version"] == smmil.__version__
    assert re.findall(r"^## ([\d.]+)", text("CHANGELOG.md"), re.MULTILINE)[0] == smmil.__version__


def test_the_package_is_typed_for_others():
    assert (ROOT / "src" / "smmil" / "py.typed").is_file()


def test_the_program_of_the_readme_runs_and_says_what_it_gives():
    (program,) = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)
    names = {}
    exec(program, names)
    assert (names["out"].logits.shape, names["out"].scores.shape) == ((8, 1), (32, 1))
    assert len(names["result"].history) == 2
    assert [p.id for p in names["predictions"]] == ["slide_4", "slide_5", "slide_6", "slide_7"]


def test_contributing_says_how_to_add_nine_things_in_places_that_exist():
    page = text("CONTRIBUTING.md")
    rows = re.findall(r"^\| ([a-zA-Z ]+) \| (.*?) \| (.*) \|$", page.split("## How to add")[1], re.MULTILINE)[1:]
    assert [thing for thing, _, _ in rows] == [
        "model", "layer or operator", "encoder", "feature format", "public data set", "metric", "export", "paper table",
        "CLI verb"]  # fmt: skip
    for thing, where, tested in rows:
        named = re.findall(r"`((?:src|tests|configs)/[^`]*)`", where + tested)
        assert named, thing
        assert all((ROOT / path).exists() for path in named), (thing, named)


def test_the_limits_that_contributing_names_are_those_of_the_script():
    script = text("benchmarks/house.py")
    limits = {
        name: int(number.replace("_", "")) for name, number in re.findall(r'"([a-z ]+)": \("[<>]=", ([\d_]+)\)', script)
    }
    section = text("CONTRIBUTING.md").split("## The size of the source")[1].split("##")[0]
    numbers = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d", section)}
    assert {value for value in limits.values() if value} <= numbers


def test_every_target_of_the_makefile_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md", "docs/index.md"):
        named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", text(page), re.MULTILINE))
        assert {a or b for a, b in named} <= targets, page


def test_the_quick_tests_name_files_that_exist():
    listed = re.search(r"^QUICK := ((?:.*\\\n)*.*)$", text("Makefile"), re.MULTILINE).group(1)
    paths = [word for word in listed.replace("\\\n", " ").split() if not word.startswith("-")]
    assert len(paths) >= 5
    assert all((ROOT / path).exists() for path in paths), paths


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_page_is_in_the_navigation(page):
    assert f": {page}" in text("mkdocs.yml")


def test_the_reference_holds_every_public_name():
    listed = set(re.findall(r"^::: smmil(?:\.\w+)*\.(\w+)$", text("docs/api.md"), re.MULTILINE))
    assert set(smmil.__all__) - listed == {"evaluate", "__version__"}
