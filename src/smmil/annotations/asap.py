"""ASAP's XML files, as CAMELYON16 publishes its lesions: polygons in level-0 pixels, sorted into groups."""

from collections.abc import Collection
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import numpy as np

from smmil.annotations.boundary import explained, read_bytes
from smmil.annotations.shapes import Drawn, Shapes, joined, ring
from smmil.errors import DataError

_WITH_AREA = ("polygon", "rectangle", "spline")


def read_asap(path: str | Path, positive: Collection[str] | None = None) -> Shapes:
    """The lesions of an ASAP file: groups _0, _1 and Tumor without _2 and Exclusion, or the groups in `positive`."""
    path = Path(path)
    with explained(path, "ASAP annotations"):
        collector = _Collector()
        collector.feed(read_bytes(path))
        return joined(collector.drawn, positive, collector.notes())


class _Collector:
    """Collects annotations while the file is parsed.

    A document type is refused before its entities can unfold: annotation files have none, attacks do.
    """

    def __init__(self) -> None:
        self.drawn: list[Drawn] = []
        self.splines = 0
        self._roots: list[str] = []
        self._open: tuple[str, str] | None = None
        self._corners: list[tuple[float, float, float]] = []
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = _refuse_doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, content: bytes) -> None:
        self._parser.Parse(content, True)
        if self._roots[0] != "ASAP_Annotations":
            raise DataError(f"the document is <{self._roots[0]}>, expected <ASAP_Annotations>")

    def notes(self) -> tuple[str, ...]:
        return (f"{self.splines} spline(s) are taken as polygons through their points",) if self.splines else ()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._roots.append(tag) if not self._roots else None
        if tag == "Annotation":
            self._begin(attributes)
        elif tag == "Coordinate" and self._open is not None:
            number, x, y = (float(attributes[name]) for name in ("Order", "X", "Y"))
            self._corners.append((number, x, y))

    def _begin(self, attributes: dict[str, str]) -> None:
        kind = attributes.get("Type", "Polygon")
        if kind.lower() not in _WITH_AREA:
            raise DataError(f"annotation {attributes.get('Name', '')!r} is a {kind}, which has no area; draw a polygon")
        self.splines += kind.lower() == "spline"
        self._open, self._corners = (attributes.get("Name", ""), attributes.get("PartOfGroup", "")), []

    def _end(self, tag: str) -> None:
        if tag == "Annotation" and self._open is not None:
            corners = np.array(sorted(self._corners, key=lambda corner: corner[0])).reshape(-1, 3)
            self.drawn.append(Drawn(ring(corners[:, 1:]), name=self._open[1]))
            self._open = None


def _refuse_doctype(*_: object) -> NoReturn:
    raise DataError("the XML declares a document type, which annotations never need; refused for safety")
