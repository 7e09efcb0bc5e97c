"""The page and its parts: a table of names made at the start; what is not in it does not exist."""

from pathlib import Path

_SHARED = ("openseadragon.min.js", "openseadragon-LICENSE.txt", "paint.js", "report.css")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
PAGE = "page.html"


def static_table() -> dict[str, Path]:
    """{name: file} of the viewer's own files and of those it shares with the report."""
    import smmil.report

    own = Path(__file__).parent / "static"
    shared = Path(smmil.report.__file__).parent / "static"
    table = {name: shared / name for name in _SHARED}
    found = sorted(own.iterdir()) if own.is_dir() else []
    return table | {path.name: path for path in found if path.is_file() and path.suffix in TYPES}
