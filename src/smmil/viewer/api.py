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
from smmil.evaluate.conformal import CalibratedCase
from smmil.evaluate.folder_drift import FolderDrift
from smmil.exports.batch import export
from smmil.exports.registry import FORMATS
from smmil.files import file_name
from smmil.images.matching import recorded_notes
from smmil.maps import canvas
from smmil.prediction import FIXED_SCALES, Prediction
from smmil.redact import safe_text
from smmil.viewer.catalogue import _CaseRow, _NotFound
from smmil.viewer.tiles import _scan_facts

if TYPE_CHECKING:
    from smmil.viewer.data import ViewerData

_NUMBER = "0|[1-9][0-9]{0,8}"
_DECIMAL = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?", re.ASCII)


def _number(text: str, below: int, pattern: str = "*") -> int:
    """A position in a table of `below` rows."""
    (position,) = _numbers(text, pattern)
    if position >= below:
        raise _NotFound
    return position


def _numbers(text: str, pattern: str) -> list[int]:
    """The whole numbers in a name such as 3_4.jpg, where the pattern has a star for each: *_*.jpg."""
    found = re.fullmatch(f"({_NUMBER})".join(map(re.escape, pattern.split("*"))), text, re.ASCII)
    if found is None:
        raise _NotFound
    return [int(part) for part in found.groups()]


def _bounded(text: str | None, name: str, low: int, high: int, usual: int) -> int:
    """A whole number between two limits from the query string; `usual` when it is not given."""
    if text is None:
        return usual
    if not re.fullmatch(_NUMBER, text, re.ASCII) or not low <= int(text) <= high:
        raise ConfigError(f"{name}: must be a whole number from {low} to {high}")
    return int(text)


def _decimal(text: str | None, name: str) -> float | None:
    """A finite number from the query string; None when it is not given."""
    if text is None or text == "":
        return None
    if not _DECIMAL.fullmatch(text) or not math.isfinite(float(text)):
        raise ConfigError(f"{name}: must be a number such as 0.5")
    return float(text)


def _all_cases(study: "ViewerData") -> dict[str, Any]:
    """Models, colour scales, and one row per case, in the order of their numbers."""
    return {
        "title": study.title,
        "software": f"smmil {__version__}",
        "threshold": study.threshold,
        "palettes": {name: canvas.palette(name) for name in canvas.SCALES},
        "models": [
            {
                "name": model.name,
                "score_kind": model.score_kind,
                "layer": model.layer,
                "ends": list(model.ends),
                "threshold": model.threshold if study.threshold is None else study.threshold,
                "range": list(model.span),
                "colours": list(model.colours),
                "fixed": model.layer in FIXED_SCALES,
            }
            for model in study.models
        ],
        "cases": [_row(row) for row in study.cases],
        "notes": list(study.notes),
        "alarms": list(study.alarms),
    }


def _one_case(study: "ViewerData", number: int) -> dict[str, Any]:
    """What can be shown of a case, with a note on whatever is missing."""
    row, places = study.cases[number], study.geometry(number)
    recorded = recorded_notes(study.first_export_case(number).prediction)
    notes = [*places.notes, *map(safe_text, recorded)]
    formats = study.formats(number)
    return {
        "id": row.title,
        "kind": row.kind,
        "instances": row.instances,
        "axes": 0 if places.coords is None else places.coords.shape[1],
        "patch": places.patch,
        "step": places.step,
        "mpp": places.mpp,
        "size": None if places.size is None else list(places.size),
        "image": None if row.kind == "scan" else _image_facts(study, number, notes),
        "scan": _image_facts(study, number, notes) if row.kind == "scan" else None,
        "models": [_model_facts(study, number, m, notes) for m in range(len(study.models))],
        "exports": formats,
        "exports_need_threshold": [name for name in formats if _needs_threshold(name)],
        "notes": notes + study.damage_notes(number),
        "alarms": list(dict.fromkeys(one.drift for one in row.by_model if one is not None and one.drift is not None)),
    }


def _row(row: _CaseRow) -> dict[str, Any]:
    return {
        **({} if row.patient is None else {"patient": row.patient}),
        "id": row.title,
        "kind": row.kind,
        "label": row.label,
        "instances": row.instances,
        "image": row.image is not None,
        "truth": row.truth,
        "unlike": any(one is not None and one.drift is not None for one in row.by_model),
        "probability": [None if one is None else one.probability for one in row.by_model],
        "outcome": [None if one is None else one.outcome for one in row.by_model],
        **({} if row.true_words is None else _words(row)),
    }


def _words(row: _CaseRow) -> dict[str, Any]:
    """What was predicted of a case whose target is no class, what is true, and how far apart they are."""
    models = [
        {} if one is None else {"words": one.words, "value": one.value, "error": one.error} for one in row.by_model
    ]
    return {"known": row.true_words, "said": models}


def _image_facts(study: "ViewerData", number: int, notes: list[str]) -> dict[str, Any] | None:
    """Facts of the slide or scan of a case; None, with a note, when none was found or it cannot be read."""
    row = study.cases[number]
    if row.kind == "none":
        return None
    if row.image is None:
        shown = "only its scores are shown" if row.kind == "scan" else "the map is shown on paper"
        missing = "scan" if row.kind == "scan" else "slide"
        notes.append(f"no {missing} was found for this case: {shown} (see --slides)")
        return None
    try:
        if row.kind == "scan":
            return _scan_facts(study.volume(number), study.first_export_case(number).prediction)
        return study.picture(number).facts()
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
    promise = (found and found.promise) or study.models[model].promise
    if promise is not None:
        notes.append(f"{study.models[model].name}: {promise}")
    if found is not None and found.said is not None and (text := _said(found.said, study.models[model].drift)):
        notes.append(f"{study.models[model].name}: {text}")
    if study.models[model].taught is not None:
        notes.append(f"{study.models[model].name} also learned from {study.models[model].taught}")
    scores = study.export_case((number, model)).score.astype(np.float64)
    spread = {
        "min": float(scores.min()),
        "max": float(scores.max()),
        "colours": list(canvas.limits_of(scores, FIXED_SCALES.get(study.models[model].layer))[:2]),
    }
    return {"present": True, **spread, "probability": probability}


def _said(said: CalibratedCase, drift: FolderDrift | None) -> str:
    """What the calibration says about the case; without its promise where the folder raised the alarm."""
    return said._replace(promise=said.promise and not (drift is not None and drift.alarm)).text


class _Download(NamedTuple):
    """A written file, the name to offer for it, and the folder to delete afterwards."""

    file: Path
    name: str
    folder: Path

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _needs_threshold(format_: str) -> bool:
    return FORMATS[format_].threshold == "needed"


def _write_download(
    prediction: Prediction, model: str, format_: str, place: Path, threshold: float | None, **options: Any
) -> _Download:
    """The case in that format; a threshold is used where the format has a use for it; options are those of export."""
    if _needs_threshold(format_) and threshold is None:
        raise ConfigError(f"{format_}: needs a threshold, a score above which an instance is positive; set one")
    # half a character, as broken file names have them, cannot be written into any file
    prediction = replace(prediction, id=prediction.id.encode("utf-8", "replace").decode())
    cut = None if FORMATS[format_].threshold == "never" else threshold
    own = Path(mkdtemp(dir=place))
    try:
        target = own / f"export{FORMATS[format_].endings[0]}"
        export(prediction, format_, target, threshold=cut, **options)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise
    name = file_name(safe_text(f"{prediction.id}_{model}", 120)) + FORMATS[format_].endings[0]
    return _Download(target, name, own)
