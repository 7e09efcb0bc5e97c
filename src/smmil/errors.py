"""Errors caused by user input, and the checks that raise them, such as that of --trust-code."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

# Line breaks other than those of our own indented lists, control characters, and those that turn the writing round.
_CONTROL = re.compile(r"\n(?!  )|[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_MOST_KNOWN = 500


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class SmmilError(Exception):
    """An error the user can correct; the command line prints it without a traceback and exits with 2."""

    def __init__(self, *parts: object):
        # Messages quote what files hold, which must neither add lines nor command the terminal.
        super().__init__(*(_CONTROL.sub(_escaped, part) if isinstance(part, str) else part for part in parts))


class DataError(SmmilError):
    """A file, table or bag is not what it should be."""


class ConfigError(SmmilError):
    """An option, a name or a combination of settings that is not valid."""


class ToldByAnother(SmmilError):  # noqa: N818
    """This process ends because of an error that another process of its group reports."""


class MissingExtra(SmmilError):  # noqa: N818
    """An optional library is needed and not installed."""

    def __init__(self, library: str, extra: str, what: str):
        command = f"pip install 'smmil[{extra}]' (in a clone '.[{extra}]')"
        super().__init__(f"{what} needs {library}, which is not installed; run: {command}")


def require_trust_code(name: str, where: object, trust_code: bool | str) -> None:
    """Enforce --trust-code: a `package.module:name` that a file names is refused unless the user trusts it."""
    if ":" in name and trust_code is not True and trust_code != name:
        word = "--trust-code (in Python trust_code=True)"
        raise ConfigError(f"{where}: would run code outside smmil ({name}); give {word} if you know it")


def brief(value: object, most: int = 80) -> str:
    """A value as it is shown in a message: cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def suggest(word: str, known: Iterable[str]) -> str:
    """End of an error message: the known words nearest to `word`, or all of them."""
    known = sorted(known)[:_MOST_KNOWN]  # comparing takes a millisecond each, and a file may have a million columns
    near = get_close_matches(word, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from: {', '.join(known) or 'nothing'}"


def check_choice(value: str, choices: Iterable[str], what: str) -> str:
    """Return `value` if it is one of `choices`; else raise an error that names the nearest ones."""
    choices = list(choices)
    if value not in choices:
        raise ConfigError(f"{what}: unknown value {value!r}; {suggest(str(value), choices)}")
    return value
