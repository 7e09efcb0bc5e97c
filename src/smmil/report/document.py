"""Writing a report: predictions of one or several models to one self-contained HTML file."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smmil import __version__
from smmil.errors import ConfigError
from smmil.evaluate.bags import judged_by, patient_bag, whole_patients
from smmil.evaluate.case_words import positives_in_words
from smmil.evaluate.conformal import shared_calibration
from smmil.evaluate.folders import without_nan
from smmil.evaluate.instances import instance_score
from smmil.evaluate.probability import calibrated_probability
from smmil.evaluate.resampling import RESAMPLES
from smmil.files import write_text
from smmil.images.matching import find_case_images
from smmil.images.volume import Window
from smmil.maps import canvas
from smmil.prediction import FIXED_SCALES, LAYERS, Prediction, load_predictions
from smmil.redact import safe_text, without_names
from smmil.report import numbers
from smmil.report.cases import _all_cases, _ReportCase
from smmil.report.charts import SLOTS, _figures
from smmil.report.numbers import Results, Section
from smmil.report.paired import _paired_differences
from smmil.report.pictures import _all_pictures, _CasePicture
from smmil.report.sources import (
    INTENDED_USE,
    _alarms,
    _caveats,
    _class_sets,
    _data_card,
    _doubts,
    _load_sources,
    _model_card,
    _PredictionSource,
    _promises,
)
from smmil.report.targets import _ANSWERS, _target_figures, _tiles_of
from smmil.web import render, script_bundle, static_text

LARGEST_MB = 30.0
_SCORES_SHARE = 0.55  # of the file for scores; beyond this they are stored with 8 bits instead of 16
_PAGE_BYTES = 1_000_000  # program, style and numbers
_SCORES = {"name": "score", "title": "scores", "kind": "score", "low": "", "high": ""}
_CURVE_POINTS = 1001


@dataclass(frozen=True)
class WrittenReport:
    """A written page: its path, models, number of cases and size, and the problems met on the way."""

    page: Path
    models: list[str]
    n_cases: int
    n_bytes: int
    without_picture: dict[str, str] = field(default_factory=dict)  # {case: why its image is not shown}
    damaged: dict[str, str] = field(default_factory=dict)  # {case: what of its image cannot be decoded}
    left_out: dict[Path, str] = field(default_factory=dict)  # {file: why it cannot be read}


def write_report(
    places: Sequence[str | Path],
    out: str | Path,
    *,
    slides: str | Path | None = None,
    validation: Sequence[str | Path] = (),
    threshold: float | None = None,
    column: int | None = None,
    prior: Sequence[str | Path] | None = None,
    resamples: int = RESAMPLES,
    title: str | None = None,
    lead: str = "",
    sections: Sequence[Section] = (),
    licences: Mapping[str, str] | None = None,
    max_mb: float = LARGEST_MB,
    window: Window | None = None,
    by: str = "case",
    aggregate: str | None = None,
) -> WrittenReport:
    """Write one self-contained page about runs or folders of predictions; the same content gives the same bytes.

    slides     folder of slides or scans, or CSV table (id, slide), for pictures below the maps
    prior      predictions of cases with known lesions, such as those of training, that make the position prior; None:
               the other patients among those of the report
    by, aggregate  whether numbers about whole cases count cases or patients, and how the probabilities of a patient's
               cases become one; patients then have a row of their own above those of their cases
    lead       a paragraph above the summary      sections  further sections below it
    licences   {encoder: its licence}, where the predictions do not state it
    max_mb     pictures are made smaller and scores coarser (8 bits) rather than pass this size
    window     how slices of scans are shown: a name such as brain or lung, centre/width, or percentiles such as p1/99;
               None: as the encoder saw them
    """
    _refuse_folder(Path(out))
    if max_mb < 2:
        raise ConfigError(f"max_mb: got {max_mb}, expected at least 2; the page itself needs 1 MB")
    sources = _load_sources(places)
    judged = judged_by({source.name: source.predictions for source in sources}, by, aggregate)
    sources = [replace(source, predictions=judged[source.name]) for source in sources]
    models = {source.name: source.predictions for source in sources}
    left_out: dict[Path, str] = {}
    known = None if prior is None else load_predictions(prior, left_out)
    cuts: dict[str, Any] = {"validation": validation, "threshold": threshold, "column": column}
    results = numbers._measure(models, **cuts, resamples=resamples, reference=known)
    room = int(max_mb * 1e6) - _PAGE_BYTES
    cases = _fitting_cases(models, column, room)
    room -= _size(cases)
    pictures, missing = ({}, {}) if slides is None else _all_pictures(cases, slides, max(0, room), window)
    damaged = {id_: picture.damage for id_, picture in pictures.items() if picture.damage is not None}
    reasons = _without_file_names({**missing, **damaged}, slides)
    promises, conditions = _promises(sources, results, column)
    text = _page(
        _summary(sources, results, column, resamples)
        | {"promises": promises, "conditions": conditions, "alarms": _alarms(sources)}
        | {"class_sets": _class_sets(sources)},
        _page_data(sources, results, cases, pictures, column, reasons),
        title=safe_text(title or f"Report: {', '.join(models)}"),
        lead=lead,
        sections=sections,
        charts=(_figures if numbers._target_of(results) == "class" else _target_figures)(models, results, column),
        outcomes=list(dict.fromkeys(v["outcome"] for case in cases for v in case.whole if v)),
        labels=sorted({case.facts["y"] for case in cases if case.facts["y"] is not None}),
        cards=[
            *((f"Model: {source.name}", _model_card(source, licences or {})) for source in sources),
            ("Data in this report", _data_card(sources[0].predictions)),
        ],
        store=list(_store(cases, pictures)),
    )
    write_text(out, text)
    left_out |= {path: reason for source in sources for path, reason in source.left_out.items()}
    return WrittenReport(Path(out), list(models), len(cases), len(text.encode()), missing, damaged, left_out)


def _refuse_folder(out: Path) -> None:
    """Refuse an unusable path before the work rather than after it."""
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a folder; name the page to write, such as {out / 'report.html'}")
    inside = next((parent for parent in out.parents if parent.exists()), out)
    if not inside.is_dir():
        raise ConfigError(f"--out {out}: {inside} is a file, not a folder; choose another place")


def _fitting_cases(models: Mapping[str, Sequence[Prediction]], column: int | None, room: int) -> list[_ReportCase]:
    cases = _all_cases(models, column)
    if _size(cases) <= _SCORES_SHARE * room:
        return cases
    return _all_cases(models, column, bits=8)


def _size(cases: Sequence[_ReportCase]) -> int:
    return sum(len(raster.packed) + 400 for case in cases for raster in case.all_rasters)


def _without_file_names(reasons: dict[str, str], slides: str | Path | None) -> dict[str, str]:
    """Reasons for the page; names of image files are only printed by the command."""
    files = find_case_images(slides, list(reasons)) if slides is not None and reasons else {}
    return {id_: without_names(text, id_, files[id_].path) if id_ in files else text for id_, text in reasons.items()}


def _page(content: dict[str, Any], data: dict[str, Any], **values: Any) -> str:
    of_target = any("target" in model for model in data["models"])
    slide_viewer, program = static_text("openseadragon.min.js"), script_bundle("report_start.js")
    return render(
        "report.html",
        **content,
        **values,
        policy=_policy(slide_viewer, program),
        style=static_text("shared.css") + static_text("report.css") + static_text("targets.css") * of_target,
        version=__version__,
        licence=static_text("openseadragon-LICENSE.txt").strip(),
        intended_use=INTENDED_USE,
        data=_json_block(data),
        slide_viewer=slide_viewer,
        program=program,
    )


def _policy(*scripts: str) -> str:
    """Content security policy: only these scripts run, only pictures inside the page load, nothing is fetched."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json_block(content: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(without_nan(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _summary(
    sources: Sequence[_PredictionSource], results: Results, column: int | None, resamples: int
) -> dict[str, Any]:
    """Caveats, tiles with the main numbers, the table of all metrics, paired differences, and remarks."""
    first = sources[0].predictions
    models = {source.name: source.predictions for source in sources}
    target = numbers._target_of(results)
    heading = numbers._cases_heading(target)
    reasons = {heading: numbers._other_cases(models), numbers.INSTANCES: numbers._other_instances(models)}
    unmarked = {group: reason for group, reason in reasons.items() if reason is not None}  # no value is called best
    counted = whole_patients(first)
    found = next(iter(results.values()))["bag"]["n_positive"] if target != "class" else sum(1 for p in counted if p.y)
    positive = positives_in_words(target, found)
    if any(patient_bag(p) for p in first):
        positive = f"of {len(counted):,} patients" + f" ({positive})" * bool(positive)
    content = ", ".join(filter(None, [positive, f"{sum(p.n for p in first):,} instances"]))
    return {
        "results": results,
        "slots": SLOTS,
        "caveats": _caveats(sources) + _doubts(results, models),
        "size": {"cases": f"{len(first):,}", "content": content},
        "tiles": list(_tiles(results)),
        "metrics": _metrics(results, unmarked),
        "unmarked": [
            (reason, " and ".join(group for group, why in unmarked.items() if why == reason))
            for reason in dict.fromkeys(unmarked.values())
        ],
        "paired": _paired_differences(models, results, unmarked, column=column, resamples=resamples),
        "method": _method(results, unmarked),
        "verdicts": _verdicts(results),
        "remarks": numbers._remarks(results),
    }


def _tiles(results: Results) -> Iterator[dict[str, Any]]:
    target = numbers._target_of(results)
    for heading, path, words in _tiles_of(target):
        values = _values(next(row for row in numbers._metric_rows(target) if row.path == path), results)
        if any(value["value"] is not None for value in values):
            yield {"heading": heading, "values": values, "words": words, "prior": _prior_text(path, results)}


def _prior_text(path: tuple[str, ...], results: Results) -> str:
    """What position alone reaches in the same metric, for the tile of localization; empty elsewhere or without one."""
    found = [one.get("prior", {}).get(path[1], {}).get("truth") for one in results.values()] if len(path) > 2 else []
    known = dict.fromkeys(f"{value:.3f}" for value in found if value is not None and value == value)
    return f"position alone reaches {' / '.join(known)}" if known else ""


def _verdicts(results: Results) -> list[tuple[bool, str]]:
    """(whether it is a warning, sentences) about the position prior of every model whose instances have labels."""
    lines = []
    for name, found in results.items():
        if found["instance"]["all"]["n_instances"]:
            who = f"{name}: " if len(results) > 1 else ""
            lines.append((found["prior"]["better"] is False, who + " ".join(found["prior"]["words"])))
    return lines


def _metrics(results: Results, unmarked: Mapping[str, str]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(group, rows) of the metrics of which at least one model has any, or has withheld one; a dash: undefined."""
    groups: dict[str, list[dict[str, Any]]] = {}
    rows = numbers._all_rows(results)
    measured = {r.group for r in rows for found in results.values() if r.value(found) is not None or r.withheld(found)}
    for row in rows:
        if row.group in measured and any(row.known(found) for found in results.values()):
            values = _values(row, results, marked=row.group not in unmarked)
            groups.setdefault(row.group, []).append({"name": row.name, "values": values})
    return list(groups.items())


def _values(row: numbers._Row, results: Results, marked: bool = False) -> list[dict[str, Any]]:
    """One metric of every model as text; the best printed value is marked unless all are equal, or one of them rests
    on too few patients.
    """
    printed = {name: row.value(found) for name, found in results.items()}
    ranks = [row.better * round(value, 3) for value in printed.values() if value is not None]
    few = any(row.shortage(found) for found in results.values())
    best = max(ranks) if marked and row.better and len(set(ranks)) > 1 and not few else None
    values = []
    for slot, (name, value) in enumerate(printed.items()):
        ends = row.ends(results[name])
        values.append(
            {
                "model": name,
                "slot": slot % SLOTS,
                "value": value,
                "text": "–" if value is None else f"{value:.3f}",
                "interval": row.without_interval(results[name]) if ends is None else f"{ends[0]:.3f} – {ends[1]:.3f}",
                "best": best is not None and value is not None and row.better * round(value, 3) == best,
            }
        )
    return values


def _method(results: Results, unmarked: Mapping[str, str]) -> str:
    """How intervals and thresholds were obtained."""
    parts = []
    ci = next((c for found in results.values() for c in found.get("ci", {}).values()), None)
    if ci:
        parts.append(f"Small numbers: 95 % intervals, {ci['n_resamples']:,} resamples of patients.")
    for name, found in results.items():
        cut = found["threshold"]
        if cut["value"] is not None:
            parts.append(f"Instance threshold of {name}: {cut['value']:.4g} ({cut['source']}).")
    for text in dict.fromkeys(_prior_source(found.get("prior", {})) for found in results.values()):
        parts.append(text)
    parts.append(_ANSWERS.get(numbers._target_of(results), "Cases are called positive from a probability of 0.5 on."))
    if len(results) > 1 and len(unmarked) < 2:
        parts.append("Marked: best value of a row; where intervals overlap it may be chance.")
    return " ".join(filter(None, parts))


def _prior_source(prior: Mapping[str, Any]) -> str:
    """Whose lesions the position prior is made of; empty without one."""
    if "per_bag" not in prior:
        return ""
    return f"Position prior: lesions of {prior['n_patients']:,} patients, {prior['source']}."


def _page_data(
    sources: Sequence[_PredictionSource],
    results: Results,
    cases: Sequence[_ReportCase],
    pictures: Mapping[str, _CasePicture],
    column: int | None,
    reasons: Mapping[str, str],
) -> dict[str, Any]:
    """What the scripts of the page know from the start; scores and pictures are read from the store when needed."""
    return {
        "models": [_model(source, results[source.name], column) for source in sources],
        "cases": [{**case.facts, **_picture_facts(pictures.get(case.id), reasons.get(case.id))} for case in cases],
        "layers": [_SCORES, *(layer._asdict() for layer in LAYERS if _held(sources, layer.name))],
        "palettes": {name: canvas.palette(name) for name in canvas.SCALES},
    }


def _held(sources: Sequence[_PredictionSource], layer: str) -> bool:
    return any(getattr(p, layer) is not None for source in sources for p in source.predictions)


def _spread(values: list[np.ndarray], scale: tuple[float, float] | None) -> dict[str, list[float]]:
    """Ends of the colours and of the numbers over all cases of a model."""
    numbers = np.concatenate(values)
    return {
        "colours": list(canvas.limits_of(numbers, scale)[:2]),
        "range": [float(numbers.min()), float(numbers.max())],
    }


def _model(source: _PredictionSource, found: Mapping[str, Any], column: int | None) -> dict[str, Any]:
    layers = {"score": [instance_score(p, column) for p in source.predictions]}
    for layer in (layer for layer in LAYERS if _held([source], layer.name)):
        layers[layer.name] = [held for p in source.predictions if (held := getattr(p, layer.name)) is not None]
    return {
        "name": source.name,
        "layers": {
            name: {**_spread(values, FIXED_SCALES.get(name)), "verdict": str(found.get(name, {}).get("verdict", ""))}
            for name, values in layers.items()
        },
        "threshold": found["threshold"]["value"],
        "calibrated": str(found["threshold"]["source"]).startswith("calibrated"),
        "curve": _curve(source.predictions, column, np.concatenate(layers["score"])),
        "kind": str(source.predictions[0].meta.get("score_kind", "score"))[:60],
        "classes": source.predictions[0].n_classes,
        **({} if "target" not in found["bag"] else {"target": found["bag"]["target"]}),
    }


def _curve(predictions: Sequence[Prediction], column: int | None, scores: np.ndarray) -> list[Any] | None:
    """Lowest and highest score, and calibrated probabilities of evenly spaced ones; None: no calibration for all."""
    if shared_calibration(predictions, column) is None:
        return None
    places = np.linspace(scores.min(), scores.max(), _CURVE_POINTS)
    found = calibrated_probability(predictions[0], column, places)
    return None if found is None else [float(places[0]), float(places[-1]), np.round(found, 5).tolist()]


def _picture_facts(picture: _CasePicture | None, reason: str | None) -> dict[str, Any]:
    """Place of a slide's picture, layout of a scan's slices, and what is wrong with the image."""
    return {
        "picture": None if picture is None or picture.area is None else list(picture.area),
        "slices": None if picture is None else picture.layout,
        "voxels": None if picture is None else picture.voxels,
        "sides": None if picture is None else picture.sides,
        "wide_mm": None if picture is None else picture.wide_mm,
        "missing": None if reason is None or picture is not None else safe_text(reason),
        "damage": None if reason is None or picture is None else safe_text(reason),
    }


def _store(cases: Sequence[_ReportCase], pictures: Mapping[str, _CasePicture]) -> Iterator[tuple[str, str]]:
    """(element id, base64) of scores and pictures, which the browser does not decode before they are looked at."""
    for number, case in enumerate(cases):
        for model, layers in enumerate(case.rasters):
            yield from ((f"s{number}-{model}-{name}", raster.packed) for name, raster in layers.items())
        if case.id in pictures:
            yield f"p{number}", pictures[case.id].jpeg
