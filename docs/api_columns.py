"""For the site: columns of names and meanings in a docstring become a list, which Markdown would run together."""

import re

import griffe

_ROW = re.compile(r"^(\S+(?:, \S+)*)  +(\S.*)$")


def listed(text: str) -> str:
    """The text with every paragraph of at least two columns as a list; a line without a name continues the last."""
    return "\n\n".join(_as_list(paragraph) for paragraph in text.split("\n\n"))


def _as_list(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if not lines or not _ROW.match(lines[0]):
        return paragraph
    rows = [f"- `{found[1]}`: {found[2]}" if (found := _ROW.match(line)) else f"  {line.strip()}" for line in lines]
    return "\n".join(rows)


class Columns(griffe.Extension):
    """Read by mkdocstrings, see mkdocs.yml."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)
