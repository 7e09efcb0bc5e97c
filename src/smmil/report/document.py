"""The HTML of a report: everything inside one file, every word escaped."""

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
from smmil.redact import safe_text
from smmil.report.cards import INTENDED_USE, caveats, data_card, model_card
from smmil.report.cases import ReportCase
from smmil.report.charts import SLOTS
from smmil.report.numbers import (
    CASES,
    INSTANCES,
    Results,
    Row,
    interval_of,
    metric_rows,
    other_cases,
    other_instances,
    remarks,
    value_of,
)
from smmil.report.pictures import AnyPicture, ScanPicture
from smmil.report.sources import PredictionSource

_TILES = (
    ("Case AUROC", ("bag", "auroc"), "tells positive from negative cases"),
    ("Localisation AUROC", ("instance", "positive_bags", "auroc"), "finds the lesion within positive cases"),
    ("FROC", ("froc", "froc"), "lesions found at ¼ to 8 false alarms per case"),
)


def summary_section(sources: Sequence[PredictionSource], results: Results) -> str:
    """Tiles with the numbers that matter most, the table of all, and remarks."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in remarks(results))
    unmarked = _unmarked(sources)
    said = f'<details class="remarks"><summary>Remarks on these numbers</summary><ul>{notes}</ul></details>'
    return (
        f'<section id="summary"><h2>Summary</h2>{_caveats(sources)}'
        f'<div class="tiles">{_tiles(sources, results)}</div>'
        f'{_metrics(results, unmarked)}{_why_unmarked(unmarked)}<p class="hint">{escape(_how(results, unmarked))}</p>'
        f"{said if notes else ''}</section>"
    )


def _unmarked(sources: Sequence[PredictionSource]) -> dict[str, str]:
    """Groups of metrics in which no value is called best, each with the reason: the models were not asked the same."""
    models = {source.name: source.predictions for source in sources}
    reasons = {CASES: other_cases(models), INSTANCES: other_instances(models)}
    return {group: reason for group, reason in reasons.items() if reason is not None}


def _why_unmarked(unmarked: Mapping[str, str]) -> str:
    lines = []
    for reason in dict.fromkeys(unmarked.values()):
        groups = " and ".join(group for group, why in unmarked.items() if why == reason)
        said = f"<strong>{escape(f'Not comparable: {reason}.')}</strong> No best value is marked in: {escape(groups)}."
        lines.append(f'<p class="hint" role="note">{said}</p>')
    return "".join(lines)


def _caveats(sources: Sequence[PredictionSource]) -> str:
    return "".join(
        f'<p class="hint" role="note"><strong>{escape(f"{headline}: {sentence}")}</strong></p>'
        for headline, sentence in caveats(sources)
    )


def curves_section(charts: Sequence[str]) -> str:
    """All figures in a grid that fits the window."""
    inside = "".join(charts) or '<p class="hint">No label is known, so there are no curves.</p>'
    return f'<section id="curves"><h2>Curves</h2><div class="charts">{inside}</div></section>'


def cases_section(models: Sequence[str], cases: Sequence[ReportCase]) -> str:
    """Filters and an empty table; the program fills it. Worst mistakes come first."""
    options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(models))
    kinds = dict.fromkeys(s["outcome"] for case in cases for s in case.facts["said"] if s)
    labels = sorted({case.facts["y"] for case in cases if case.facts["y"] is not None})
    return (
        '<section id="cases"><h2>Cases</h2><p class="hint">Worst mistakes first. Choose a case to look at its map; '
        "<kbd>↑</kbd> <kbd>↓</kbd> move, <kbd>Enter</kbd> opens.</p>"
        f'<form class="filters" id="filters" role="search" aria-label="Filter cases">'
        f'<label>Model <select id="table-model">{options}</select></label>'
        '<label>Search <input id="search" type="search" placeholder="case id" autocomplete="off"></label>'
        f'<label>Label <select id="label-filter"><option value="">all</option>{_choices(labels)}</select></label>'
        f'<label>Outcome <select id="outcome-filter"><option value="">all</option>{_choices(kinds)}</select></label>'
        '<output id="count" aria-live="polite"></output></form>'
        '<div class="wide"><table id="case-table"><caption class="unseen">Cases, predictions and maps</caption>'
        "<thead><tr></tr></thead><tbody></tbody></table></div>"
        '<p class="hint" id="nothing" hidden>No case fits these filters.</p></section>'
    )


def card_section(sources: Sequence[PredictionSource], licences: Mapping[str, str]) -> str:
    """One card per model, one for the data, and what all this is not for."""
    cards = [_card(f"Model: {source.name}", model_card(source, licences)) for source in sources]
    cards.append(_card("Data in this report", data_card(sources[0].predictions)))
    use = "".join(f"<li>{escape(line)}</li>" for line in INTENDED_USE)
    return (
        f'<section id="card"><h2>Model and data card</h2><div class="cards">{"".join(cards)}'
        f'<article class="card use"><h3>Intended use</h3><ul>{use}</ul></article></div></section>'
    )


def _tiles(sources: Sequence[PredictionSource], results: Results) -> str:
    first = sources[0].predictions
    positive = sum(1 for p in first if p.y)
    size = f"{positive} positive, {sum(p.n for p in first):,} instances"
    tiles = [f'<div class="tile"><h3>Cases</h3><p class="big">{len(first):,}</p><p>{size}</p></div>']
    for heading, path, words in _TILES:
        row = next(r for r in metric_rows() if r.path == path)
        values = [(name, value_of(found, row), interval_of(found, row)) for name, found in results.items()]
        if any(value is not None for _, value, _ in values):
            lines = "".join(_tile_line(slot, *value, len(values) > 1) for slot, value in enumerate(values))
            tiles.append(f'<div class="tile"><h3>{heading}</h3>{lines}<p>{words}</p></div>')
    return "".join(tiles)


def _tile_line(slot: int, name: str, value: float | None, ends: tuple[float, float] | None, several: bool) -> str:
    key = f'<span class="key m{slot % SLOTS}"></span><span class="who">{escape(name)}</span>' if several else ""
    spread = "" if ends is None else f' <small title="95 % interval">{ends[0]:.3f} – {ends[1]:.3f}</small>'
    return f'<p class="big{" several" if several else ""}">{key}{_number(value)}{spread}</p>'


def _metrics(results: Results, unmarked: Mapping[str, str]) -> str:
    head = "".join(
        f'<th scope="col"><span class="key m{slot % SLOTS}"></span>{escape(name)}</th>'
        for slot, name in enumerate(results)
    )
    measured = [row for row in metric_rows() if any(value_of(found, row) is not None for found in results.values())]
    body = []
    for group in dict.fromkeys(row.group for row in measured):
        body.append(f'<tr class="group"><th scope="colgroup" colspan="{len(results) + 1}">{escape(group)}</th></tr>')
        body += [_metric_row(row, results, group not in unmarked) for row in measured if row.group == group]
    if not body:
        return ""
    return (
        '<div class="wide"><table class="metrics"><caption class="unseen">Metrics with 95 % intervals</caption>'
        f'<thead><tr><th scope="col">Metric</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _metric_row(row: Row, results: Results, marked: bool) -> str:
    values = [value_of(found, row) for found in results.values()]
    printed = [row.better * round(v, 3) for v in values if v is not None]
    best = max(printed) if marked and row.better and len(set(printed)) > 1 else None
    cells = []
    for value, found in zip(values, results.values(), strict=True):
        mark = (
            ' class="best"' if best is not None and value is not None and row.better * round(value, 3) == best else ""
        )
        ends = interval_of(found, row)
        spread = "<small></small>" if ends is None else f"<small>{ends[0]:.3f} – {ends[1]:.3f}</small>"
        cells.append(f"<td{mark}>{_number(value)}{spread}</td>")
    return f'<tr><th scope="row">{escape(row.name)}</th>{"".join(cells)}</tr>'


def _how(results: Results, unmarked: Mapping[str, str]) -> str:
    """How intervals and thresholds came about."""
    parts = []
    ci = next((c for found in results.values() for c in found.get("ci", {}).values()), None)
    if ci:
        parts.append(f"Small numbers: 95 % intervals, {ci['n_resamples']:,} resamples of patients.")
    for name, found in results.items():
        cut = found["threshold"]
        if cut["value"] is not None:
            parts.append(f"Instance threshold of {name}: {cut['value']:.4g} ({cut['source']}).")
    parts.append("Cases are called positive from a probability of 0.5 on.")
    if len(results) > 1 and len(unmarked) < 2:
        parts.append("Marked: best value of a row; where intervals overlap it may be chance.")
    return " ".join(parts)


def _card(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
    return f'<article class="card"><h3>{escape(title)}</h3><dl>{lines}</dl></article>'


def _choices(values: object) -> str:
    return "".join(f'<option value="{escape(str(v))}">{escape(str(v))}</option>' for v in values)  # type: ignore[attr-defined]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


_PROGRAM = ("data.js", "paint.js", "dots.js", "table.js", "slide.js", "points.js", "slices.js", "strip.js",
            "controls.js", "case.js", "start.js")  # fmt: skip


def document(
    sources: Sequence[PredictionSource],
    results: Results,
    cases: Sequence[ReportCase],
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
    sources: Sequence[PredictionSource],
    results: Results,
    cases: Sequence[ReportCase],
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


def _model(source: PredictionSource, found: Mapping[str, Any], column: int | None) -> dict[str, Any]:
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


def _store(cases: Sequence[ReportCase], pictures: Mapping[str, AnyPicture]) -> str:
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
