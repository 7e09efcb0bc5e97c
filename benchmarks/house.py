"""Size and shape of the source tree: files, lines, import depth, public names, single importers, class names.

    python benchmarks/house.py            a table of what is measured and its limit
    python benchmarks/house.py --detail   also the longest import chain, modules with one importer, repeated classes

Exits 1 when a limit is exceeded. A public name is a top-level function or class without a leading underscore; imports
inside functions count; modules that import each other count as one step of the chain.
"""

import argparse
import ast
import statistics
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "smmil"
LIMITS = {
    "files": ("<=", 273),
    "lines": ("<=", 55_500),
    "median lines of a file": (">=", 120),
    "import depth": ("<=", 14),
    "public names": ("<=", 680),
    "modules with one importer": ("<=", 50),
    "class names used twice": ("<=", 0),
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted((SOURCE / PACKAGE).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_modules(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a syntax tree imports, at the top level or inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in known else node.module)
    return {name for name in names if name in known}


def public_names(tree: ast.Module) -> list[str]:
    """Top-level functions and classes without a leading underscore."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def longest_chain(imports: dict[str, set[str]]) -> list[str]:
    """The longest path of modules in which each imports the next; a cycle is one step, named by its first module."""
    names = sorted(imports)
    number = {name: i for i, name in enumerate(names)}
    edges = np.array([(number[a], number[b]) for a, others in imports.items() for b in others]).reshape(-1, 2)
    matrix = csr_array((np.ones(len(edges)), edges.T), shape=(len(names), len(names)))
    _, group = connected_components(matrix, directed=True, connection="strong")
    below: dict[int, set[int]] = {int(g): set() for g in group}
    for a, b in edges:
        if group[a] != group[b]:
            below[int(group[a])].add(int(group[b]))

    @cache
    def chain(one: int) -> tuple[int, ...]:
        return (one, *max((chain(other) for other in below[one]), key=len, default=()))

    longest = max((chain(one) for one in below), key=len)
    return [next(name for name in names if group[number[name]] == one) for one in longest]


def measure() -> tuple[dict[str, float], dict[str, list[str]]]:
    """The numbers of the table, and the lists behind some of them."""
    known = modules()
    texts = {name: path.read_text() for name, path in known.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = [len(text.splitlines()) for text in texts.values()]
    imports = {name: imported_modules(tree, known) - {name} for name, tree in trees.items()}
    importers = Counter(other for others in imports.values() for other in others)
    classes = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    lists = {
        "import depth": longest_chain(imports),
        "modules with one importer": sorted(name for name, count in importers.items() if count == 1),
        "class names used twice": sorted(name for name, count in classes.items() if count > 1),
    }
    numbers = {
        "files": len(known),
        "lines": sum(lines),
        "median lines of a file": statistics.median(lines),
        "public names": sum(len(public_names(tree)) for tree in trees.values()),
        **{name: len(found) for name, found in lists.items()},
    }
    return numbers, lists


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detail", action="store_true", help="also print the lists behind the numbers")
    detail = parser.parse_args().detail
    numbers, lists = measure()
    failed = 0
    print("| measure | value | limit | |\n|---|---:|---:|---|")
    for name, (sign, limit) in LIMITS.items():
        good = numbers[name] <= limit if sign == "<=" else numbers[name] >= limit
        failed += not good
        print(f"| {name} | {numbers[name]:,.0f} | {sign} {limit:,} | {'ok' if good else 'exceeded'} |")
    for name, found in lists.items() if detail else ():
        print(f"\n{name}:", *found, sep="\n  ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
