"""The source tree keeps to its measures and its glossary, and test modules stand alone."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BANNED = ("keeping", "answers", "addresses", "published", "places", "single", "shown", "beside", "elsewhere", "scratch",
          "counting")  # fmt: skip
BANNED_MODULES = (*BANNED, "private")


def _house():
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOUSE = _house()


@pytest.fixture(scope="module")
def measured():
    return HOUSE.measure()


@pytest.mark.parametrize("name", HOUSE.LIMITS)
def test_the_source_tree_stays_within_its_limits(name, measured):
    numbers, lists = measured
    sign, limit = HOUSE.LIMITS[name]
    within = numbers[name] <= limit if sign == "<=" else numbers[name] >= limit
    assert within, f"{name}: {numbers[name]} is not {sign} {limit}; {', '.join(lists.get(name, []))}"


def banned_words(name: str, words: tuple[str, ...]) -> list[str]:
    """The words of a snake-case or CamelCase name's beginning or end that the glossary replaces."""
    parts = [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return [word for word in words if parts and word in (parts[0], parts[-1])]


def test_the_glossary_is_found_in_names():
    assert banned_words("places", BANNED) == banned_words("_places_of", BANNED) == ["places"]
    assert banned_words("read_places", BANNED) == banned_words("PlacesOf", BANNED) == ["places"]
    assert banned_words("replaces", BANNED) == banned_words("set_places_once", BANNED) == []


@cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _modules():
    return {path.relative_to(ROOT / "src" / "smmil"): path for path in HOUSE.modules().values()}


def test_no_file_or_folder_is_named_by_a_word_the_glossary_replaces():
    parts = {part for path in _modules() for part in path.with_suffix("").parts}
    assert sorted(part for part in parts if banned_words(part, BANNED_MODULES)) == []


def test_no_function_or_class_is_named_by_a_word_the_glossary_replaces():
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [
        f"{name}: {node.name}"
        for name, path in _modules().items()
        for node in _tree(path).body
        if isinstance(node, kinds) and banned_words(node.name, BANNED)
    ]
    assert found == []


def private_imports(room: tuple[str, ...], tree: ast.AST) -> list[str]:
    """Underscore names that a module imports from another room (a folder below the package, or one of its files)."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    others = [node for node in nodes if (node.module or "").startswith("smmil.") and _room(node.module) != room]
    names = [f"{node.module}.{alias.name}" for node in others for alias in node.names]
    return [name for name in names if name.rsplit(".", 1)[1].startswith("_")]


def _room(module: str) -> tuple[str, ...]:
    return tuple(module.split(".")[1:2])


def test_an_import_of_a_private_name_from_another_room_is_noticed():
    tree = ast.parse("from smmil.nn.pool import _score, Pool\nfrom smmil.train.loop import _Stop")
    assert private_imports(("train",), tree) == ["smmil.nn.pool._score"]


def test_names_with_an_underscore_stay_in_their_room():
    found = {
        str(name): names
        for name, path in _modules().items()
        if (names := private_imports(name.with_suffix("").parts[:1], _tree(path)))
    }
    assert found == {}


def imported_names(tree: ast.AST) -> set[str]:
    """Last parts of all modules, and names, that a module imports anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.name.rsplit(".", 1)[-1] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.rsplit(".", 1)[-1])
    return names


@pytest.mark.parametrize("text", ["import test_a", "from report.test_a import f", "from report import test_a as a"])
def test_an_import_of_a_test_module_is_noticed(text):
    assert "test_a" in imported_names(ast.parse(text))


def test_no_module_of_the_tests_imports_a_test_module():
    modules = {path.stem for path in TESTS if path.stem.startswith("test_")}
    found = {
        str(path.relative_to(ROOT)): sorted(names)
        for path in TESTS
        if (names := imported_names(ast.parse(path.read_text(encoding="utf-8"))) & modules)
    }
    assert found == {}


def test_no_two_test_modules_share_a_name():
    """Without packages, pytest imports a module of the tests by its bare name."""
    names = [path.stem for path in TESTS if path.stem.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
