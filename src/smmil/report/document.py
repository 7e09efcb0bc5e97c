"""The HTML of a report: everything inside one file, nothing from outside, every word escaped."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from smmil import __version__
from smmil.evaluate.folders import without_nan
from smmil.evaluate.instances import instance_score
from smmil.maps import canvas
from smmil.report.cases import Case
from smmil.report.numbers import Results
from smmil.report.pictures import AnyPicture
from smmil.report.private import safe_text
from smmil.report.sections import card_section, cases_section, curves_section, summary_section
from smmil.report.slices import ScanPicture
from smmil.report.sources import Source

_PROGRAM = ("data.js", "paint.js", "dots.js", "table.js", "slide.js", "points.js", "slices.js", "strip.js",
            "controls.js", "case.js", "start.js")  # fmt: skip


def document(
    sources: Sequence[Source],
    results: Results,
    cases: Sequence[Case],
    pictures: Mapping[str, AnyPicture],
    charts: Sequence[str],
    *,
    title: str,
    licences: Mapping[str, str],
    column: int | None = None,
    missing: Mapping[str, str] | None = None,
) -> str:
    """The whole page as text; the same content gives the same bytes."""
    viewer, program = _static("openseadragon.min.js"), _program()
    sections = [
        summary_section(sources, results),
        curves_section(charts),
        cases_section([source.name for source in sources], cases),
        card_section(sources, licences),
    ]
    page = _static("page.html")
    parts = {
        "policy": _policy(viewer, program),
        "title": escape(title),
        "style": _static("report.css"),
        "sections": "\n".join(sections),
        "version": escape(__version__),
        "licence": escape(_static("openseadragon-LICENSE.txt").strip()),
        "data": json_block(page_data(sources, results, cases, pictures, column, missing or {})),
        "store": _store(cases, pictures),
        "viewer": viewer,
        "program": program,
    }
    # split first, so that nothing inside a part is taken for a place of another part
    pieces = page.split("{{")
    return pieces[0] + "".join(parts[p.split("}}", 1)[0]] + p.split("}}", 1)[1] for p in pieces[1:])


def page_data(
    sources: Sequence[Source],
    results: Results,
    cases: Sequence[Case],
    pictures: Mapping[str, AnyPicture],
    column: int | None = None,
    missing: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the program of the page knows from the start; scores and pictures are read from the store when needed."""
    return {
        "models": [_model(source, results[source.name], column) for source in sources],
        "cases": [{**case.facts, **_shown(pictures.get(case.id), (missing or {}).get(case.id))} for case in cases],
        "palettes": {name: canvas.palette(name) for name in canvas.SCALES},
    }


def json_block(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(without_nan(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _model(source: Source, found: Mapping[str, Any], column: int | None) -> dict[str, Any]:
    cut = found["threshold"]
    scores = np.concatenate([instance_score(p, column) for p in source.predictions])
    low, high = (float(v) for v in np.percentile(scores, (2, 98)))
    return {
        "name": source.name,
        "colours": [low, high] if high > low else [low - 0.5, high + 0.5],
        "range": [float(scores.min()), float(scores.max())],
        "threshold": cut["value"],
        "kind": str(source.predictions[0].meta.get("score_kind", "score"))[:60],
        "classes": source.predictions[0].n_classes,
    }


def _shown(picture: AnyPicture | None, reason: str | None) -> dict[str, Any]:
    """What lies below the map: the place of a slide's picture, the layout of a scan's slices, what is wrong with it."""
    return {
        "picture": None if picture is None or picture.area is None else list(picture.area),
        "slices": picture.layout if isinstance(picture, ScanPicture) else None,
        "missing": None if reason is None or picture is not None else safe_text(reason),
        "damage": None if reason is None or picture is None else safe_text(reason),
    }


def _store(cases: Sequence[Case], pictures: Mapping[str, AnyPicture]) -> str:
    """Scores and pictures as text that the browser neither parses nor decodes before it is looked at."""
    parts = []
    for number, case in enumerate(cases):
        for model, raster in enumerate(case.rasters):
            if raster is not None:
                parts.append(f'<script type="text/plain" id="s{number}-{model}">{raster.packed}</script>')
        if case.id in pictures:
            parts.append(f'<script type="text/plain" id="p{number}">{pictures[case.id].jpeg}</script>')
    return "\n".join(parts)


def _policy(*scripts: str) -> str:
    """Content security policy: only these two scripts run, only pictures inside the page load, nothing is fetched."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _program() -> str:
    """Our own scripts in one scope, in the order in which they build on each other."""
    return "(() => {\n'use strict';\n" + "\n".join(_static(name) for name in _PROGRAM) + "\n})();"


def _static(name: str) -> str:
    return (files("smmil.report") / "static" / name).read_text(encoding="utf-8")
