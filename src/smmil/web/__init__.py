"""Templates, styles and scripts that the report and the viewer share."""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FOLDER = Path(__file__).parent
_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=async |class |const |function |let )", re.MULTILINE)


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; every value is escaped unless the template marks it as safe."""
    return _environment().get_template(template).render(values)


def static_files() -> dict[str, Path]:
    """{name: file} of all scripts, styles and pictures."""
    return {path.name: path for path in sorted((_FOLDER / "static").iterdir()) if path.is_file()}


def static_text(name: str) -> str:
    """Content of one static file."""
    return (_FOLDER / "static" / name).read_text(encoding="utf-8")


def script_bundle(entry: str) -> str:
    """Join a JavaScript module and all it imports into one classic script with a scope of its own.

    A page in a single file cannot import modules. Imports come before the modules that need them; top-level names have
    to be unique within a bundle.
    """
    modules: dict[str, str] = {}
    _collect(entry, modules, set())
    return "(() => {\n'use strict';\n" + "\n".join(modules.values()) + "\n})();"


def _collect(name: str, modules: dict[str, str], seen: set[str]) -> None:
    seen.add(name)
    text = static_text(name)
    for imported in _IMPORT.findall(text):
        if imported not in seen:
            _collect(imported, modules, seen)
    modules[name] = _EXPORT.sub("", _IMPORT.sub("", text))


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    return environment


def _prose(text: str) -> "Markup":
    """Escaped text with `code` between backquotes."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
