"""What smmil depends on: lowest versions, tested versions and licences, from pyproject.toml and what is installed.

python benchmarks/dependencies.py lowest      constraints that pin every direct dependency to its lower bound
python benchmarks/dependencies.py tested      constraints.txt: versions of everything `make install` put here
python benchmarks/dependencies.py licences    the table of licences for THIRD_PARTY.md
"""

import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Groups of other people's tools that `make docs`, `make dist` and `make bench` add.
GROUPS = ("dev",)
# What a licence is called, where the package gives a text or a file instead of a name: first match wins.
_NAMES = (
    (r"apache.*2|apache software", "Apache-2.0"),
    (r"mozilla public license 2|MPL-2", "MPL-2.0"),
    (r"BSD.3|3-clause|new bsd|modified bsd|neither the name", "BSD-3-Clause"),
    (r"BSD.2|2-clause|simplified bsd", "BSD-2-Clause"),
    (r"python software foundation|PSF", "PSF-2.0"),
    (r"lesser general|LGPL", "LGPL"),
    (r"general public|GPL", "GPL"),
    (r"\bISC\b", "ISC"),
    (r"\bMIT\b|permission is hereby granted, free of charge", "MIT"),
    (r"\bBSD\b|redistribution and use in source", "BSD"),
)


def requirements() -> dict[str, list[str]]:
    """Requirements in pyproject.toml by where they stand: core, the name of an extra, or the name of a group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = {name: project["dependency-groups"][name] for name in GROUPS}
    extras = {k: v for k, v in project["project"]["optional-dependencies"].items() if k != "all"}
    return {"core": project["project"]["dependencies"], **extras, **groups}


def lowest() -> list[str]:
    """`name==lower bound` of every direct dependency of the core and the extras."""
    found = set()
    for place, listed in requirements().items():
        for requirement in listed if place not in GROUPS else ():
            match = re.fullmatch(r"([\w.-]+)(?:\[.*\])?(?:>=|==)([\w.]+)(?:,<[\w.]+)?", requirement)
            if match is None:
                raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound; write name>=version")
            found.add(f"{match[1]}=={match[2]}")
    return sorted(found)


def installed() -> dict[str, Distribution]:
    """Distributions that the core, the extras and the group dev need, as far as they are installed, by name."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    todo = [Requirement(text) for listed in requirements().values() for text in listed]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        found[name] = package
        for extra in {"", *wanted.extras} - {e for n, e in seen if n == name}:
            seen.add((name, extra))
            needed = [Requirement(text) for text in package.requires or ()]
            todo += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra})]
    return dict(sorted(found.items()))


def tested() -> list[str]:
    """`name==version` of everything installed, without local labels such as +cpu."""
    return [f"{name}=={package.version.split('+')[0]}" for name, package in installed().items()]


def licence(package: Distribution) -> str:
    """Short name of a package's licence from its metadata: expression, classifiers, field, then its licence file."""
    facts = package.metadata
    if expression := facts.get("License-Expression"):
        return expression
    classified = [c.split(" :: ")[-1] for c in facts.get_all("Classifier") or () if c.startswith("License ::")]
    files = [f for f in package.files or () if re.match(r"(?i)(.*/)?(licen[cs]e|copying)[^/]*$", str(f))]
    texts = (
        *classified,
        facts.get("License") or "",
        *(Path(str(f.locate())).read_text(errors="replace") for f in files),
    )
    for names in (_NAMES[:-1], _NAMES[-1:]):  # plain "BSD" only where nothing says which
        for text in texts:
            for pattern, name in names:
                if re.search(pattern, text[:3000], re.IGNORECASE):
                    return name
    return "unknown"


def licences() -> list[str]:
    """Rows of the table in THIRD_PARTY.md, one per package."""
    return [f"| {name} | {licence(package)} |" for name, package in installed().items()]


if __name__ == "__main__":
    makers = {"lowest": lowest, "tested": tested, "licences": licences}
    if len(sys.argv) != 2 or sys.argv[1] not in makers:
        raise SystemExit(__doc__)
    print("\n".join(makers[sys.argv[1]]()))
