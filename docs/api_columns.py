"""For the site: columns of names and meanings in a docstring stay columns, which Markdown would run together."""

import re

import griffe

_ROW = re.compile(r"^\S+(?:, \S+)*  +\S")


def fenced(text: str) -> str:
    """The text with every paragraph that begins with a row of columns as it stands, between fences."""
    parts = text.split("\n\n")
    return "\n\n".join(f"```text\n{part}\n```" if _has_columns(part) else part for part in parts)


def _has_columns(paragraph: str) -> bool:
    return "```" not in paragraph and any(_ROW.match(line) for line in paragraph.splitlines())


class Columns(griffe.Extension):
    """Read by mkdocstrings, see mkdocs.yml."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
