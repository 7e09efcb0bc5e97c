"""One HTML file that needs nothing else: pictures inside, no script, no request to anywhere."""

import base64
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from smmil import __version__
from smmil.errors import DataError
from smmil.files import write_text
from smmil.report.style import CSS

_NOTHING_FROM_OUTSIDE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Table:
    """Rows of text below a heading row; the first cell of each row names it. `best` marks (row, column) cells."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: frozenset[tuple[int, int]] = frozenset()

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(c)}</th>' for c in self.columns)
        body = "".join(self._row(i, row) for i, row in enumerate(self.rows))
        return (
            f'<div class="wide"><table><caption>{_prose(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _row(self, number: int, row: Sequence[str]) -> str:
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        for column, text in enumerate(row[1:], start=1):
            mark = ' class="best"' if (number, column) in self.best else ""
            cells.append(f"<td{mark}>{escape(text)}</td>")
        return f"<tr>{''.join(cells)}</tr>"


@dataclass(frozen=True)
class Picture:
    """A PNG file, copied into the page; `alt` says in words what it shows."""

    path: str | Path
    caption: str
    alt: str

    def html(self) -> str:
        data = _png(Path(self.path))
        width, height = struct.unpack(">II", data[16:24])
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        return (
            f'<figure><img src="{source}" width="{width}" height="{height}" alt="{escape(self.alt)}">'
            f"<figcaption>{_prose(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: paragraphs, a list, tables, pictures, in this order.

    Text between backquotes is shown as code; everything else is shown as it is written.
    """

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    ordered: bool = False

    def html(self) -> str:
        kind = "ol" if self.ordered else "ul"
        items = "".join(f"<li>{_prose(item)}</li>" for item in self.items)
        return "\n".join([
            f"<section><h2>{escape(self.title)}</h2>",
            *(f"<p>{_prose(text)}</p>" for text in self.paragraphs),
            *([f"<{kind}>{items}</{kind}>"] if items else []),
            *(table.html() for table in self.tables),
            *(picture.html() for picture in self.pictures),
            "</section>",
        ])  # fmt: skip


def write_page(path: str | Path, *, title: str, lead: str, sections: Sequence[Section], language: str = "en") -> Path:
    """Write the page atomically; the same content gives the same bytes."""
    body = "\n".join(section.html() for section in sections)
    write_text(
        path,
        f"""<!DOCTYPE html>
<html lang="{escape(language)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_NOTHING_FROM_OUTSIDE}">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>
<p class="lead">{_prose(lead)}</p></header>
{body}
<footer>Written by smmil {__version__}. For research only, not for diagnosis.</footer>
</main>
</body>
</html>
""",
    )
    return Path(path)


def _prose(text: str) -> str:
    """Escaped text with `code` between backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _png(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path}: picture cannot be read ({problem.strerror}); draw it again") from None
    if len(data) < 24 or not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise DataError(f"{path}: not a PNG picture; draw it again")
    return data
