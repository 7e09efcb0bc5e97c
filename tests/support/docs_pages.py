"""Commands of README and docs, in the order in which a reader meets them."""

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from smmil.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUP = get_command(app)
# code between fences, indented code, and code between backquotes of a line
_CODE = re.compile(r"^```\w*\n(.*?)^```|^((?:    .*\n)+)|`([^`\n]+(?:\n[^`\n]+)?)`", re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """Every `smmil …` of a text: in blocks of code (continued lines joined, no remarks) and between backquotes."""
    found = []
    for fenced, indented, inline in _CODE.findall(text):
        block = (fenced + indented).replace("\\\n", " ") or " ".join(inline.split())
        found += [part.strip().removeprefix("$ ") for line in block.splitlines() for part in line.split("; ")]
    return [shlex.join(shlex.split(line, comments=True)) for line in found if line.startswith("smmil ")]


def sections(path: Path) -> dict[str, str]:
    """Text of a page by the title of its section (## …); "" is what stands before the first."""
    parts = re.split(r"^## (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def verb_of(line: str) -> tuple[Any, list[str]]:
    """The verb of a command and the words after it; LookupError where there is no such verb."""
    words = shlex.split(line)[1:]
    verb: Any = GROUP
    while words and not words[0].startswith("-") and hasattr(verb, "commands"):
        if words[0] not in verb.commands:
            raise LookupError(f"no verb {words[0]!r}")
        verb = verb.commands[words.pop(0)]
    return verb, words


def problem(line: str) -> str | None:
    """What is wrong with a command: a verb or an option that does not exist; None otherwise (values are free)."""
    try:
        verb, words = verb_of(line)
    except LookupError as unknown:
        return str(unknown)
    known = {name for param in verb.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "--version"}
    strange = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"no option {strange[0]}" if strange else None


def is_mention(line: str) -> bool:
    """Whether a sentence only speaks of a verb: something that it cannot do without is missing, or left open with …"""
    verb, words = verb_of(line)
    options = {name: param for param in verb.params for name in (*param.opts, *param.secondary_opts)}
    given, free = set(), 0
    rest = iter(words)
    for word in rest:
        param = options.get(word.partition("=")[0]) if word.startswith("-") else None
        free += param is None and not word.startswith("-")
        if param is not None:
            given.add(param.name)
            if not getattr(param, "is_flag", False) and "=" not in word:
                next(rest, None)
    needed = {param.name for param in verb.params if param.required and param.param_type_name == "option"}
    places = sum(param.required for param in verb.params if param.param_type_name == "argument")
    return "…" in line or not needed <= given or free < places or (verb is GROUP and not words)
