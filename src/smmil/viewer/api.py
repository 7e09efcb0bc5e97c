"""HTTP API of the viewer without HTTP: request parameters, JSON content and downloads."""

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smmil import __version__
from smmil.errors import ConfigError, SmmilError
from smmil.exports.batch import export
from smmil.exports.case import ExportCase
from smmil.exports.registry import FORMATS
from smmil.files import file_name
from smmil.images.matching import Original
from smmil.maps import canvas
from smmil.prediction import Prediction
from smmil.redact import safe_text
from smmil.viewer.catalogue import CaseRow, Model, NotFound, colour_limits
from smmil.viewer.tiles import scan_facts

if TYPE_CHECKING:
    from smmil.viewer.data import ViewerData

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?", re.ASCII)


def number(text: str, below: int) -> int:
    """A position in a table of `below` rows."""
    if not _NUMBER.fullmatch(text) or int(text) >= below:
        raise NotFound
    return int(text)


def numbers(text: str, pattern: str) -> list[int]:
    """The whole numbers in a name such as 3_4.jpg, where the pattern has a star for each: *_*.jpg."""
    form = "(0|[1-9][0-9]{0,8})".join(map(re.escape, pattern.split("*")))
    found = re.fullmatch(form, text, re.ASCII)
    if found is None:
        raise NotFound
    return [int(part) for part in found.groups()]


def bounded(text: str | None, name: str, low: int, high: int, usual: int) -> int:
    """A whole number between two limits from the query string; `usual` when it is not given."""
    if text is None:
        return usual
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise ConfigError(f"{name}: must be a whole number from {low} to {high}")
    return int(text)


def decimal(text: str | None, name: str) -> float | None:
    """A finite number from the query string; None when it is not given."""
    if text is None or text == "":
        return None
    if not _DECIMAL.fullmatch(text) or not math.isfinite(float(text)):
        raise ConfigError(f"{name}: must be a number such as 0.5")
    return float(text)


def all_cases(study: "ViewerData") -> dict[str, Any]:
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


def one_case(study: "ViewerData", number: int) -> dict[str, Any]:
    """What can be shown of a case, with a note on whatever is missing."""
    row, places = study.cases[number], study.geometry(number)
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
        "models": [_model_facts(study, number, m, notes) for m in range(len(study.models))],
        "exports": formats,
        "exports_need_threshold": [name for name in formats if _needs_threshold(name)],
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
        "probability": [None if one is None else one.probability for one in row.by_model],
        "outcome": [None if one is None else one.outcome for one in row.by_model],
    }


def _image(study: "ViewerData", number: int, notes: list[str]) -> dict[str, Any] | None:
    row = study.cases[number]
    if row.kind not in ("slide", "points"):
        return None
    if row.image is None:
        notes.append("no slide was found for this case: the map is shown on paper (see --slides)")
        return None
    try:
        return study.picture(number).facts()
    except SmmilError as problem:
        notes.append(study.message(problem, number))
        return None


def _scan(study: "ViewerData", number: int, notes: list[str]) -> dict[str, Any] | None:
    row = study.cases[number]
    if row.kind != "scan":
        return None
    if row.image is None:
        notes.append("no scan was found for this case: only its scores are shown (see --slides)")
        return None
    try:
        return scan_facts(study.volume(number))
    except SmmilError as problem:
        notes.append(study.message(problem, number))
        return None


def _model_facts(study: "ViewerData", number: int, model: int, notes: list[str]) -> dict[str, Any]:
    found = study.cases[number].by_model[model]
    probability = None if found is None else found.probability
    if found is not None and not found.mapped:
        notes.append(f"{study.models[model].name} cut this case into other instances; its map is not shown here")
    if not study.present(number, model):
        return {"present": False, "min": None, "max": None, "colours": None, "probability": probability}
    return {"present": True, **_spread(study.export_case((number, model))), "probability": probability}


def _spread(case: ExportCase) -> dict[str, Any]:
    scores = case.score.astype(np.float64)
    return {"min": float(scores.min()), "max": float(scores.max()), "colours": list(colour_limits(scores))}


class Download(NamedTuple):
    """A written file, the name to offer for it, and the folder to delete afterwards."""

    file: Path
    name: str
    folder: Path

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _needs_threshold(format_: str) -> bool:
    return FORMATS[format_].threshold == "needed"


def write_download(
    prediction: Prediction,
    model: str,
    format_: str,
    *,
    folder: Path,
    image: Original | None,
    threshold: float | None,
    column: int | None,
) -> Download:
    """The case in that format; a threshold is used where the format has a use for it."""
    if _needs_threshold(format_) and threshold is None:
        raise ConfigError(f"{format_}: needs a threshold, a score above which an instance is positive; set one")
    # half a character, as broken file names have them, cannot be written into any file
    prediction = replace(prediction, id=prediction.id.encode("utf-8", "replace").decode())
    cut = None if FORMATS[format_].threshold == "never" else threshold
    own = Path(mkdtemp(dir=folder))
    try:
        target = own / f"export{FORMATS[format_].endings[0]}"
        export(prediction, format_, target, image=image, threshold=cut, column=column)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise
    name = file_name(safe_text(f"{prediction.id}_{model}", 120)) + FORMATS[format_].endings[0]
    return Download(target, name, own)
