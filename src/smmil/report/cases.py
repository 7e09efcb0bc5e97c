"""Cases of a report: one row each, and their score maps as packed pictures."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.alarm import applied_drift
from smmil.evaluate.bags import as_patient, own_case, patient_bag, whole_patients
from smmil.evaluate.case_words import case_words, predicted_values
from smmil.evaluate.conformal import applied_calibration, calibrated_case, shared_calibration
from smmil.evaluate.folder_drift import FolderDrift, folder_drift, promise_of_case
from smmil.evaluate.instances import instance_score
from smmil.images.matching import recorded_notes
from smmil.maps import canvas
from smmil.maps.raster import Extent, dot_positions, dots_extent, rasterize, scattered, truth_values
from smmil.prediction import Prediction
from smmil.redact import safe_text

_LEVELS = 2**16 - 1


def _byte_planes(numbers: np.ndarray) -> bytes:
    """Numbers below 65,536, all high bytes before all low bytes: equal bytes side by side compress better."""
    return (numbers >> 8).astype(np.uint8).tobytes() + (numbers & 255).astype(np.uint8).tobytes()


# More cells than a screen has pixels are drawn in blocks; each block shows its highest score.
MOST_CELLS = 2_000_000
_UNKNOWN_TRUTH = 2


@dataclass(frozen=True)
class _Raster:
    """A packed map (slides), dots (slides whose instances lie on no lattice), strip (scans: one coordinate), volume
    (scans cut into patches: layers below each other, from foot to head) or list (no usable coordinates).

    packed  base64 of gzip of: mask (1 bit per cell), then for the cells with tissue truth (1 byte: 0, 1, 2 = unknown)
            and the score as whole number from 0 (lowest) to 2^bits - 1 (highest), all high bytes before all low bytes;
            dots are one row of cells, from left to right, and end with their places (see `_dots`)
    """

    facts: dict[str, Any]
    packed: str


def _packed_layers(prediction: Prediction, column: int | None, bits: int) -> dict[str, _Raster]:
    """The rasters of a prediction by layer: its scores, and what else it holds for every instance.

    No threshold cuts the other layers, so 8 bits, as many as there are colours, are enough for them.
    """
    others = {layer.name: _pack(prediction.layer(layer.name), bits=8) for layer in prediction.layers}
    return {"score": _pack(prediction, column, bits), **others}


def _pack(prediction: Prediction, column: int | None = None, bits: int = 16) -> _Raster:
    """The raster of a prediction's scores; scores are stored with `bits` (8 or 16) between lowest and highest."""
    scores = instance_score(prediction, column)
    if scattered(prediction):
        return _dots(prediction, scores, bits)
    kind, image, truth, extent, notes = _picture(prediction, scores)
    facts = _map_facts(kind, extent, prediction.fixed_scale, scores, notes)
    if image.ndim == 3:
        facts |= {"layers": len(image), "span": _slice_span(prediction, extent, len(image))}
        image = image.reshape(-1, image.shape[-1])
        truth = None if truth is None else truth.reshape(image.shape)
    return _raster(facts, image, truth, bits)


def _slice_span(prediction: Prediction, extent: Extent, layers: int) -> list[float]:
    """First slice, end of the last one (patches may stick out of the scan), and slices per layer."""
    first, last = extent[4:]
    recorded = prediction.meta.get("scan")
    slices = recorded.get("slices") if isinstance(recorded, dict) else None
    end = min(last, float(slices)) if isinstance(slices, int) and slices > first else last
    return [first, end, (last - first) / layers]


def _dots(prediction: Prediction, scores: np.ndarray, bits: int) -> _Raster:
    """Every instance at its own place, from left to right.

    The places follow the scores: x as steps from one dot to the next, then y; each as whole numbers from 0 at the left
    or top end of the extent to 65,535 at the other (about a pixel and a half on the largest slides), all high bytes
    before all low bytes. Fact `width`: that of an instance in coordinate units; None: unknown.
    """
    places, width = dot_positions(prediction)
    left, right, bottom, top = extent = dots_extent(prediction)
    numbers = np.rint((places - (left, top)) / (right - left, bottom - top) * _LEVELS).astype(np.int64)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))
    across, down = numbers[order].T
    # steps between neighbours are small numbers, which compress far better than places
    content = _byte_planes(np.diff(across, prepend=0)) + _byte_planes(down)
    note = f"{prediction.n:,} instances on no lattice: every dot is one instance at its own place, hottest on top"
    labels = truth_values(prediction)
    facts = {**_map_facts("points", extent, prediction.fixed_scale, scores, [note]), "width": width}
    return _raster(facts, scores[None, order], None if labels is None else labels[None, order], bits, content)


def _map_facts(
    kind: str, extent: Extent, scale: tuple[float, float] | None, scores: np.ndarray, notes: list[str]
) -> dict[str, Any]:
    """Left, top, right, bottom; ends of the colours: fixed, or 2nd and 98th percentile, as in smmil.maps."""
    left, right, bottom, top = extent[:4]
    colours = list(canvas.limits_of(scores, scale)[:2])
    return {"kind": kind, "extent": [left, top, right, bottom], "colours": colours, "notes": notes}


def _raster(
    facts: dict[str, Any], image: np.ndarray, truth: np.ndarray | None, bits: int, more: bytes = b""
) -> _Raster:
    there = ~np.isnan(image)
    shown = image[there]
    low, high = float(shown.min()), float(shown.max())
    known = np.full(len(shown), _UNKNOWN_TRUTH, np.uint8)
    if truth is not None:
        known = np.where(np.isnan(truth[there]), _UNKNOWN_TRUTH, truth[there] > 0.5).astype(np.uint8)
    facts |= {
        "rows": image.shape[0],
        "columns": image.shape[1],
        "cells": int(there.sum()),
        "low": low,
        "high": high,
        "truth": truth is not None,
        "bits": bits,
    }
    numbers = np.rint((shown - low) / ((high - low) or 1.0) * (2**bits - 1)).astype(np.uint16)
    stored = _byte_planes(numbers) if bits == 16 else numbers.astype(np.uint8).tobytes()
    content = np.packbits(there.ravel(), bitorder="little").tobytes() + known.tobytes() + stored + more
    return _Raster(facts, base64.b64encode(gzip.compress(content, 6, mtime=0)).decode())


def _picture(
    prediction: Prediction, scores: np.ndarray
) -> tuple[str, np.ndarray, np.ndarray | None, Extent, list[str]]:
    """Kind, scores, truth and extent; what cannot be drawn as a map becomes a list that says why."""
    labels = truth_values(prediction)
    try:
        image, extent = rasterize(prediction, scores)
        truth = None if labels is None else rasterize(prediction, np.where(np.isnan(labels), np.nan, labels))[0]
    except DataError as problem:
        width = float(len(scores))
        row = None if labels is None else labels[None]
        reason = str(problem).removeprefix(f"{prediction.id}: ")
        return "list", scores[None], row, (0.0, width, 1.0, 0.0), [f"no map: {reason}"]
    assert prediction.coords is not None  # rasterize refuses predictions without
    kind = {1: "strip", 3: "volume"}.get(prediction.coords.shape[1], "map")
    factor = int(np.ceil(np.sqrt(image.size / MOST_CELLS)))
    if factor == 1:
        return kind, image, truth, extent, []
    step = (extent[1] - extent[0]) / image.shape[-1], (extent[2] - extent[3]) / image.shape[-2]
    image, truth = _coarser(image, factor), None if truth is None else _coarser(truth, factor)
    right, bottom = extent[0] + image.shape[-1] * factor * step[0], extent[3] + image.shape[-2] * factor * step[1]
    note = f"large map: every cell shows the highest score of {factor} x {factor} tiles"
    return kind, image, truth, (extent[0], right, bottom, extent[3], *extent[4:]), [note]


def _coarser(image: np.ndarray, factor: int) -> np.ndarray:
    """Highest value of each block of factor x factor cells, in every layer; nan where all are."""
    rows, columns = (-(-side // factor) * factor for side in image.shape[-2:])
    padded = np.full((*image.shape[:-2], rows, columns), -np.inf)
    padded[..., : image.shape[-2], : image.shape[-1]] = np.where(np.isnan(image), -np.inf, image)
    blocks = padded.reshape(*image.shape[:-2], rows // factor, factor, columns // factor, factor)
    highest = blocks.max((-3, -1))
    return np.where(np.isinf(highest), np.nan, highest)


CALLED_POSITIVE = 0.5
_LONGEST_WORDS = 400


@dataclass(frozen=True)
class _ReportCase:
    """A case of the page: plain facts, and for each model its rasters by layer (none: a model without this case)."""

    id: str
    facts: dict[str, Any]
    rasters: list[dict[str, _Raster]]
    predictions: list[Prediction | None]

    @property
    def whole(self) -> list[dict[str, Any] | None]:
        """The verdicts on the patient whose part the case is, else on the case."""
        found: list[dict[str, Any] | None] = self.facts.get("patient", self.facts)["verdicts"]
        return found

    @property
    def all_rasters(self) -> list[_Raster]:
        """The rasters of all models and layers."""
        return [raster for layers in self.rasters for raster in layers.values()]

    @property
    def kind(self) -> str:
        """The best that any model's prediction allows: map, points, volume, strip or list."""
        kinds = {raster.facts["kind"] for raster in self.all_rasters}
        return next(kind for kind in ("map", "points", "volume", "strip", "list") if kind in kinds)


def _all_cases(
    models: Mapping[str, Sequence[Prediction]], column: int | None = None, bits: int = 16
) -> list[_ReportCase]:
    """Every case of any model; worst mistakes of the first model first, unlabelled cases last."""
    tables = [{p.id: p for p in predictions} for predictions in models.values()]
    ids = sorted({id_ for table in tables for id_ in table})
    drifts = [folder_drift(predictions) for predictions in models.values()]
    lost = [_withdrawal(*both, column) for both in zip(models.values(), drifts, strict=True)]
    values = [_both_values(predictions) for predictions in models.values()]
    cases = [_case(id_, [table.get(id_) for table in tables], column, bits, lost, drifts, values) for id_ in ids]
    return sorted(cases, key=lambda case: (*map(_mistakes, (case.whole, case.facts["verdicts"])), case.id))


def _both_values(predictions: Sequence[Prediction]) -> tuple[list[float], list[float]]:
    """Predicted numbers of what has a probability of its own (patients, or cases), and of cases by themselves."""
    alone = [own for p in predictions if (own := own_case(p)) is not None]
    return predicted_values(whole_patients(predictions)), predicted_values(alone)


def _mistakes(verdicts: Sequence[dict[str, Any] | None]) -> float:
    """By what the worst mistakes of the first model come first, and what has no label last."""
    error = next(v["error"] for v in verdicts if v is not None)
    return 2.0 if error is None else -float(error)


def _withdrawal(predictions: Sequence[Prediction], drift: FolderDrift | None, column: int | None) -> str | None:
    """What becomes of a model's promise in every case when they differ from training as a whole; None: nothing."""
    promised = shared_calibration(predictions, column) is not None
    return drift.withdrawal if promised and drift is not None and drift.alarm else None


def _case(
    id_: str,
    predictions: list[Prediction | None],
    column: int | None,
    bits: int,
    withdrawals: Sequence[str | None],
    drifts: Sequence[FolderDrift | None],
    values: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> _ReportCase:
    rasters = [{} if p is None else _packed_layers(p, column, bits) for p in predictions]
    first = next(p for p in predictions if p is not None)
    verdicts = [
        None
        if p is None
        else {
            **_own_verdict(p, others),
            **_calibrated(p, drift),
            "alarm": _alarm(p),
            "withdrawn": withdrawn,
            "rasters": {name: raster.facts for name, raster in layers.items()},
        }
        for p, layers, withdrawn, drift, (_, others) in zip(
            predictions, rasters, withdrawals, drifts, values, strict=True
        )
    ]
    facts = {"id": safe_text(id_), "y": first.y, "part": _part(first), "verdicts": verdicts, **_scale(first)}
    if (found := patient_bag(first)) is not None:
        said = [
            None if p is None else verdict(as_patient(p), others)
            for p, (others, _) in zip(predictions, values, strict=True)
        ]
        patient = {"id": safe_text(found["patient"]), "cases": found["cases"], "y": as_patient(first).y}
        facts |= {"patient": {**patient, "verdicts": said}}
    facts |= {} if first.target_kind == "class" else {"truth": safe_text(case_words(first).truth, _LONGEST_WORDS)}
    facts |= {"notes": [safe_text(note) for note in recorded_notes(first)]}
    return _ReportCase(id_, facts, rasters, predictions)


def _own_verdict(prediction: Prediction, values: Sequence[float]) -> dict[str, Any]:
    """The verdict on the case by itself; nothing is said of one that is part of a patient's bag."""
    own = own_case(prediction)
    if own is not None:
        return verdict(own, values)
    return {"p": None, "answer": None, "error": None, "outcome": "", "instances": prediction.n, "words": ""}


def _calibrated(prediction: Prediction, drift: FolderDrift | None) -> dict[str, Any]:
    """What a calibration says about the case: in words, its probability, and whether not just one class is left."""
    found = calibrated_case(prediction, promise_of_case(prediction, drift))
    if found is None:
        return {"said": "", "calibrated": None, "undecided": False}
    undecided = found.classes is not None and len(found.classes) != 1
    return {"said": found.text, "calibrated": found.probability, "undecided": undecided}


def _alarm(prediction: Prediction) -> str | None:
    """What is to be said about a case unlike the training cases, and about its promise; None without an alarm."""
    drift, stated = applied_drift(prediction), applied_calibration(prediction)
    if drift is None or not drift.alarm:
        return None
    return drift.text if stated is None else f"{drift.text} {stated.sentence}"


def verdict(prediction: Prediction, values: Sequence[float] = ()) -> dict[str, Any]:
    """Probability, predicted class, error (1 - probability of the true class) and outcome of one prediction.

    Of other targets: a share for a bar, words, and the predicted number; values: those of all cases of the model.
    """
    if prediction.target_kind != "class":
        found = case_words(prediction, values)
        numbers = {"p": found.share, "answer": None, "error": found.error, "outcome": found.outcome}
        words = {"words": safe_text(found.said, _LONGEST_WORDS), "value": prediction.value}
        return {**numbers, "instances": prediction.n, **words}
    probs = prediction.probs.tolist()
    table = [1 - probs[0], probs[0]] if len(probs) == 1 else probs
    answer = int(table[1] >= CALLED_POSITIVE) if len(table) == 2 else max(range(len(table)), key=table.__getitem__)
    y = prediction.y
    return {
        "p": table[answer] if len(table) > 2 else table[1],
        "answer": answer,
        "error": None if y is None else 1 - table[y],
        "outcome": _outcome(y, answer, len(table)),
        "instances": prediction.n,
    }


def _outcome(y: int | None, answer: int, classes: int = 2) -> str:
    """true or false positive or negative; correct or wrong with several classes; unlabelled without a label."""
    if y is None:
        return "unlabelled"
    if classes > 2:
        return "correct" if y == answer else "wrong"
    return f"{'true' if y == answer else 'false'} {'positive' if answer else 'negative'}"


def _part(prediction: Prediction) -> str | None:
    split = prediction.meta.get("split")
    part = split.get("part") if isinstance(split, dict) else None
    return part if part in ("train", "val", "test") else None


def _scale(prediction: Prediction) -> dict[str, Any]:
    """Size and unit of one coordinate step, for scale bars."""
    frame = prediction.frame
    known = frame is not None and frame.spacing is not None and frame.unit in ("um", "mm")
    return {"spacing": frame.spacing[0] if known else None, "unit": frame.unit if known else "px"}  # type: ignore[union-attr,index]
