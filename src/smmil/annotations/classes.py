"""Which drawn or coded classes are lesions: the known names, the user's choice, never a silent guess."""

from collections.abc import Collection, Iterable

from smmil.errors import DataError

LESIONS = ("_0", "_1", "tumor", "tumour", "lesion", "cancer", "metastasis", "metastases", "positive")
HOLES = ("_2", "exclusion")
UNNAMED = ("", "none")


def sorted_classes(found: Iterable[str], positive: Collection[str] | None) -> dict[str, str]:
    """lesion, hole or other for every class name that occurs; case does not matter.

    Without `positive` the names above are known, shapes without a name are lesions, and any other name is refused,
    since it could be necrosis as well as tumour. With `positive` these names are the lesions; holes stay holes.
    """
    found = sorted(set(found))
    if positive is None:
        return {name: _known(name, found) for name in found}
    wanted = {str(name).strip().lower() for name in positive}
    if not any(name.strip().lower() in wanted for name in found) and found:
        raise DataError(f"no shape of class {_listed(sorted(wanted))}; the file has {_listed(found)}")
    return {name: "lesion" if name.strip().lower() in wanted else _hole_or_other(name) for name in found}


def _known(name: str, found: list[str]) -> str:
    plain = name.strip().lower()
    if plain in (*LESIONS, *UNNAMED):
        return "lesion"
    if plain in HOLES:
        return "hole"
    raise DataError(
        f"class {name!r} is not known as lesion or hole; say which of {_listed(found)} are lesions (--positive)"
    )


def _hole_or_other(name: str) -> str:
    return "hole" if name.strip().lower() in HOLES else "other"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(repr(name) for name in names[:8]) + more
