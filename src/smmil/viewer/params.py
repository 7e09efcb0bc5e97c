"""Request parameters of the viewer: table numbers and a few plain values, nothing else."""

import math
import re

from smmil.errors import ConfigError, DataError

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?", re.ASCII)


class Absent(DataError):  # noqa: N818
    """There is nothing at this address."""

    def __init__(self, what: str = "nothing at this address"):
        super().__init__(what)


def number(text: str, below: int) -> int:
    """A position in a table of `below` rows."""
    if not _NUMBER.fullmatch(text) or int(text) >= below:
        raise Absent
    return int(text)


def numbers(text: str, pattern: str) -> list[int]:
    """The whole numbers in a name such as 3_4.jpg, where the pattern has a star for each: *_*.jpg."""
    form = "(0|[1-9][0-9]{0,8})".join(map(re.escape, pattern.split("*")))
    found = re.fullmatch(form, text, re.ASCII)
    if found is None:
        raise Absent
    return [int(part) for part in found.groups()]


def wish(text: str | None, name: str, low: int, high: int, usual: int) -> int:
    """A whole number between two limits, given after the question mark or not at all."""
    if text is None:
        return usual
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}: must be a whole number from {low} to {high}")
    return int(text)


def decimal(text: str | None, name: str) -> float | None:
    """A finite number given after the question mark; None when it is not given."""
    if text is None or text == "":
        return None
    if not _DECIMAL.fullmatch(text) or not math.isfinite(float(text)):
        raise ConfigError(f"{name}: must be a number such as 0.5")
    return float(text)
