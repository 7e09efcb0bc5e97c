"""What a release depends on: one version, typed, and pages that name files and programs that exist."""

import importlib.util
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

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


def test_contributing_says_how_to_add_ten_things_in_places_that_exist():
    page = text("CONTRIBUTING.md")
    rows = re.findall(r"^\| ([a-zA-Z ]+) \| (.*?) \| (.*) \|$", page.split("## How to add")[1], re.MULTILINE)[1:]
    assert [thing for thing, _, _ in rows] == [
        "model", "layer or operator", "encoder", "feature format", "reader of any other file", "public data set",
        "metric", "export", "paper table", "CLI verb"]  # fmt: skip
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


def dependencies():
    spec = importlib.util.spec_from_file_location("dependencies", ROOT / "benchmarks" / "dependencies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_licence_of_every_dependency_is_listed_and_is_that_of_its_metadata():
    known, tested = dependencies(), set(text("constraints.txt").splitlines())
    listed = dict(re.findall(r"^\| ([a-z0-9-]+) \| (.+) \|$", text("THIRD_PARTY.md"), re.MULTILINE))
    for name, package in known.installed().items():
        if f"{name}=={package.version.split('+')[0]}" in tested:
            assert listed[name] == known.licence(package), f"{name}: python benchmarks/dependencies.py licences"
    for pin in known.lowest():
        name = re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower()
        assert name in listed, f"{name} has no licence in THIRD_PARTY.md"
    strict = [name for name, licence in listed.items() if re.search(r"(?<!L)GPL", re.sub(r"\(.*?\)", "", licence))]
    assert strict == []


def test_every_direct_dependency_has_a_lower_bound_that_the_tested_version_meets():
    tested = dict(line.split("==") for line in text("constraints.txt").splitlines() if "==" in line)
    for pin in dependencies().lowest():
        name, bound = pin.split("==")
        if name in tested:
            assert Version(bound) <= Version(tested[name]), f"{name}: tested {tested[name]}, lower bound {bound}"


# Lowest versions without the holes that reach what smmil does with files and requests of others.
SAFE = {
    "torch": "2.10.0",  # CVE-2026-24747: weights_only
    "h5py": "3.16.0",  # wheels with HDF5 2.0: CVE-2026-26200, CVE-2025-2915 and others before it
    "pillow": "12.3.0",  # CVE-2026-25990, CVE-2026-42311, CVE-2026-54058
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "pydicom": "3.0.2",  # CVE-2026-32711
    "scikit-learn": "1.5.0",  # CVE-2024-5206
    "jinja2": "3.1.6",  # CVE-2025-27516
    "starlette": "1.3.1",  # CVE-2025-62727, CVE-2026-48710, CVE-2026-54283
    "h11": "0.16.0",  # CVE-2025-43859
    "dask": "2026.1.0",  # CVE-2026-23528
    "tornado": "6.5.7",  # CVE-2026-31958, CVE-2026-49853
    "onnx": "1.22.0",  # CVE-2026-27489, CVE-2026-34445, CVE-2026-44512
    "zarr": "3.0.8",  # zarr.load deletes data (zarr-python issue 3061); 3.0.0 to 3.0.7 were withdrawn
    "openslide-bin": "4.0.1",  # CVE-2026-48977
}


def test_lower_bounds_exclude_versions_with_known_holes():
    bounds = dict(pin.split("==") for pin in dependencies().lowest())
    assert {n: bounds[n] for n in SAFE if Version(bounds[n]) < Version(SAFE[n])} == {}


# A Python that makes an environment whose pip writes down what it is asked for, and refuses what this test tells it to.
PIP = """#!/bin/sh
echo "$@" >> asked
case "$*" in *REFUSED*) echo 'ERROR: No matching distribution found' >&2; exit 1;; esac
"""
PYTHON = f"""#!/bin/sh
mkdir -p .venv/bin
cat > .venv/bin/pip <<'END'
{PIP}END
chmod +x .venv/bin/pip
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("refused", "goes_on", "says"), [
    ("nothing", True, False),
    ("--constraint", True, True),  # an index that does not offer the versions of constraints.txt
    ("--editable", False, True),  # no index at all
])  # fmt: skip
def test_installing_goes_on_without_the_tested_versions_where_they_are_not_offered(tmp_path, refused, goes_on, says):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON.replace("REFUSED", refused))
    (tmp_path / "python").chmod(0o755)
    command = ["make", "install", "PYTHON=./python"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (tmp_path / ".venv/installed").exists() == goes_on, done.stderr
    told = "the versions of constraints.txt are not all offered here; going on without them"
    assert (f"make: {told}" in done.stdout.splitlines()) == says
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if "--editable" in line]
    assert ["--constraint constraints.txt" in line for line in asked] == [True, False][: 1 + says]
    assert len({line.replace("--constraint constraints.txt ", "") for line in asked}) == 1  # the same, otherwise
