"""Scores of one case as a small packed picture, painted only when somebody looks."""

import base64
import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.maps import rasterize
from smmil.maps.points import scattered
from smmil.maps.raster import Extent, truth_values
from smmil.prediction import Prediction
from smmil.report.dots import byte_planes, pack_places

# More cells than a screen has pixels are drawn in blocks; each block shows its highest score.
MOST_CELLS = 2_000_000
UNKNOWN_TRUTH = 2


@dataclass(frozen=True)
class Raster:
    """A packed map (slides), dots (slides whose instances lie on no lattice), strip (scans: one coordinate) or list (no
    usable coordinates).

    packed  base64 of gzip of: mask (1 bit per cell), then for the cells with tissue truth (1 byte: 0, 1, 2 = unknown)
            and the score as whole number from 0 (lowest) to 2^bits - 1 (highest), all high bytes before all low bytes;
            dots are one row of cells, from left to right, and end with their places (see `smmil.report.dots`)
    """

    facts: dict[str, Any]
    packed: str


def pack(prediction: Prediction, column: int | None = None, bits: int = 16) -> Raster:
    """The raster of a prediction's scores; scores are stored with `bits` (8 or 16) between lowest and highest."""
    scores = instance_score(prediction, column)
    if scattered(prediction):
        return _dots(prediction, scores, bits)
    kind, image, truth, extent, notes = _picture(prediction, scores)
    facts = {"kind": kind, "extent": _corners(extent), "colours": _limits(scores), "notes": notes}
    return _raster(facts, image, truth, bits)


def _dots(prediction: Prediction, scores: np.ndarray, bits: int) -> Raster:
    """Every instance at its own place."""
    packed = pack_places(prediction)
    labels = truth_values(prediction)
    facts = {
        "kind": "points",
        "extent": _corners(packed.extent),
        "colours": _limits(scores),
        "notes": [packed.note],
        "width": packed.width,
    }
    truth = None if labels is None else labels[None, packed.order]
    return _raster(facts, scores[None, packed.order], truth, bits, packed.content)


def _raster(facts: dict[str, Any], image: np.ndarray, truth: np.ndarray | None, bits: int, more: bytes = b"") -> Raster:
    there = ~np.isnan(image)
    shown = image[there]
    known = np.full(len(shown), UNKNOWN_TRUTH, np.uint8)
    if truth is not None:
        known = np.where(np.isnan(truth[there]), UNKNOWN_TRUTH, truth[there] > 0.5).astype(np.uint8)
    facts |= {
        "rows": image.shape[0],
        "columns": image.shape[1],
        "cells": int(there.sum()),
        "low": float(shown.min()),
        "high": float(shown.max()),
        "truth": truth is not None,
        "bits": bits,
    }
    return Raster(facts, _packed(there, known, quantized(shown, bits), bits, more))


def _corners(extent: Extent) -> list[float]:
    """Left, top, right, bottom."""
    return [extent[0], extent[3], extent[1], extent[2]]


def quantized(values: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers from 0 at the lowest value to 2^bits - 1 at the highest."""
    low, high = values.min(), values.max()
    scaled = (values - low) / ((high - low) or 1.0) * (2**bits - 1)
    return np.rint(scaled).astype(np.uint16)


def _packed(there: np.ndarray, known: np.ndarray, numbers: np.ndarray, bits: int, more: bytes) -> str:
    scores = byte_planes(numbers) if bits == 16 else numbers.astype(np.uint8).tobytes()
    content = np.packbits(there.ravel(), bitorder="little").tobytes() + known.tobytes() + scores + more
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


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
        return "list", scores[None], row, (0.0, width, 1.0, 0.0), [f"no map: {_reason(problem, prediction)}"]
    assert prediction.coords is not None  # rasterize refuses predictions without
    kind = "strip" if prediction.coords.shape[1] == 1 else "map"
    factor = int(np.ceil(np.sqrt(image.size / MOST_CELLS)))
    if factor == 1:
        return kind, image, truth, extent, []
    step = (extent[1] - extent[0]) / image.shape[1], (extent[2] - extent[3]) / image.shape[0]
    image, truth = _coarser(image, factor), None if truth is None else _coarser(truth, factor)
    right, bottom = extent[0] + image.shape[1] * factor * step[0], extent[3] + image.shape[0] * factor * step[1]
    note = f"large map: every cell shows the highest score of {factor} x {factor} tiles"
    return kind, image, truth, (extent[0], right, bottom, extent[3]), [note]


def _coarser(image: np.ndarray, factor: int) -> np.ndarray:
    """Highest value of each block of factor x factor cells, nan where all are."""
    rows, columns = (-(-side // factor) * factor for side in image.shape)
    padded = np.full((rows, columns), -np.inf)
    padded[: image.shape[0], : image.shape[1]] = np.where(np.isnan(image), -np.inf, image)
    highest = padded.reshape(rows // factor, factor, columns // factor, factor).max((1, 3))
    return np.where(np.isinf(highest), np.nan, highest)


def _limits(scores: np.ndarray) -> list[float]:
    """Ends of the colour scale: 2nd and 98th percentile of the case, as in the pictures of smmil.maps."""
    low, high = (float(v) for v in np.percentile(scores, (2, 98)))
    return [low, high] if high > low else [low - 0.5, high + 0.5]


def _reason(problem: DataError, prediction: Prediction) -> str:
    return str(problem).removeprefix(f"{prediction.id}: ")
