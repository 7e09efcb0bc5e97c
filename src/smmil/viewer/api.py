"""JSON answers and request parameters of the viewer."""

from typing import Any

import numpy as np

from smmil import __version__
from smmil.errors import SmmilError
from smmil.exports.case import ExportCase
from smmil.maps import canvas
from smmil.viewer.catalogue import CaseRow, Model, colour_limits
from smmil.viewer.data import ViewerData
from smmil.viewer.downloads import needs_threshold
from smmil.viewer.tiles import scan_facts


def all_cases(study: ViewerData) -> dict[str, Any]:
    """Models, colour scales, and one row per case, in the order of their numbers."""
    return {
        "title": study.title,
        "software": f"smmil {__version__}",
        "threshold": study.threshold,
        "palettes": {name: canvas.palette(name) for name in canvas.SCALES},
        "models": [_model(model, study.threshold) for model in study.models],
        "cases": [_row(row) for row in study.cases],
        "notes": list(study.notes),
    }


def one_case(study: ViewerData, number: int) -> dict[str, Any]:
    """What can be shown of a case; what is missing is said in a note, and the rest works without it."""
    row, places = study.cases[number], study.places(number)
    notes: list[str] = list(places.notes)
    formats = study.formats(number)
    return {
        "id": row.title,
        "kind": row.kind,
        "instances": row.instances,
        "patch": places.patch,
        "step": places.step,
        "mpp": places.mpp,
        "size": None if places.size is None else list(places.size),
        "image": _image(study, number, notes),
        "scan": _scan(study, number, notes),
        "models": [_said(study, number, m, notes) for m in range(len(study.models))],
        "exports": formats,
        "exports_need_threshold": [name for name in formats if needs_threshold(name)],
        "notes": notes + study.damage.notes(number),
    }


def _model(model: Model, threshold: float | None) -> dict[str, Any]:
    spread = {"range": list(model.span), "colours": list(model.colours)}
    return {"name": model.name, "score_kind": model.score_kind, "threshold": threshold, **spread}


def _row(row: CaseRow) -> dict[str, Any]:
    return {
        "id": row.title,
        "kind": row.kind,
        "label": row.label,
        "instances": row.instances,
        "image": row.image is not None,
        "truth": row.truth,
        "probability": [None if said is None else said.probability for said in row.said],
        "outcome": [None if said is None else said.outcome for said in row.said],
    }


def _image(study: ViewerData, number: int, notes: list[str]) -> dict[str, Any] | None:
    row = study.cases[number]
    if row.kind not in ("slide", "points"):
        return None
    if row.image is None:
        notes.append("no slide was found for this case: the map is shown on paper (see --slides)")
        return None
    try:
        return study.picture(number).facts()
    except SmmilError as problem:
        notes.append(study.words(problem, number))
        return None


def _scan(study: ViewerData, number: int, notes: list[str]) -> dict[str, Any] | None:
    row = study.cases[number]
    if row.kind != "scan":
        return None
    if row.image is None:
        notes.append("no scan was found for this case: only its scores are shown (see --slides)")
        return None
    try:
        return scan_facts(study.volume(number))
    except SmmilError as problem:
        notes.append(study.words(problem, number))
        return None


def _said(study: ViewerData, number: int, model: int, notes: list[str]) -> dict[str, Any]:
    said = study.cases[number].said[model]
    probability = None if said is None else said.probability
    if said is not None and not said.shown:
        notes.append(f"{study.models[model].name} cut this case into other instances; its map is not shown here")
    if not study.present(number, model):
        return {"present": False, "min": None, "max": None, "colours": None, "probability": probability}
    return {"present": True, **_spread(study.said((number, model))), "probability": probability}


def _spread(case: ExportCase) -> dict[str, Any]:
    scores = case.score.astype(np.float64)
    return {"min": float(scores.min()), "max": float(scores.max()), "colours": list(colour_limits(scores))}
