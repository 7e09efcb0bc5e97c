"""Words that may leave the building: no folder of this machine, no control characters, not too long."""

import re
from typing import Any

_FOLDERS = re.compile(r"(?:(?<![\w/\\:.~-])(?:~\w*|[A-Za-z]:)?|file://)[/\\](?:[^\s/\\'\"<>|]+[/\\])+(?=[^\s/\\])")


def safe_text(value: Any, longest: int = 200) -> str:
    """One printable line in which absolute paths have lost their folders: /home/eva/slide.svs is slide.svs."""
    line = "".join(c if c.isprintable() else " " for c in str(value))
    line = _FOLDERS.sub("", line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
