"""The curves of a report as points: ROC, precision and recall, reliability, FROC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smmil.evaluate import reliability_curve
from smmil.evaluate.cases import labelled_table
from smmil.evaluate.ranking import OperatingPoints, operating_points
from smmil.prediction import Prediction

_FINENESS = 500  # points nearer than 1/500 of the axis cannot be told apart on a screen


@dataclass(frozen=True)
class Line:
    """A curve of one model: `slot` is the model's number, which decides colour and dashes."""

    name: str
    slot: int
    x: np.ndarray
    y: np.ndarray
    sizes: Sequence[int] = field(default=())


def roc_lines(models: Mapping[str, Sequence[Prediction]]) -> list[Line]:
    """False against true positive rate of the cases, one line per model (and per class with more than two)."""
    return [
        _line(name, slot, *_from_origin(points.false_positives, points.true_positives))
        for name, slot, points in _rankings(models)
    ]


def precision_lines(models: Mapping[str, Sequence[Prediction]]) -> list[Line]:
    """Recall against precision of the cases."""
    lines = []
    for name, slot, points in _rankings(models):
        recall = points.true_positives / points.true_positives[-1]
        precision = points.true_positives / (points.true_positives + points.false_positives)
        lines.append(_line(name, slot, np.append(0, recall), np.append(precision[0], precision)))
    return lines


def reliability_lines(models: Mapping[str, Sequence[Prediction]]) -> list[Line]:
    """What was said against what came true, bins with cases only; sizes are the number of cases."""
    lines = []
    for slot, (name, predictions) in enumerate(models.items()):
        if not any(p.y is not None for p in predictions):
            continue
        found = reliability_curve(predictions)
        filled = np.array(found["n"]) > 0
        said, came_true = (np.array(found[key])[filled] for key in ("mean_probability", "observed"))
        lines.append(Line(name, slot, said, came_true, [n for n in found["n"] if n]))
    return lines


def froc_lines(results: Mapping[str, Mapping[str, Any]], most: float = 8.0) -> list[Line]:
    """False alarms per case (up to `most`) against the share of lesions found."""
    lines = []
    for slot, (name, found) in enumerate(results.items()):
        if found.get("froc", {}).get("n_lesions"):
            curve = found["froc"]["curve"]
            alarms, share = np.array(curve["false_alarms_per_bag"]), np.array(curve["sensitivity"])
            near = alarms <= most
            last = share[near][-1] if near.any() else 0.0
            x, y = np.concatenate([[0], alarms[near], [most]]), np.concatenate([[0], share[near], [last]])
            lines.append(_line(name, slot, *_stairs(x, y), scale=most))
    return lines


def _rankings(models: Mapping[str, Sequence[Prediction]]) -> list[tuple[str, int, OperatingPoints]]:
    """Operating points of every model, and of every class with more than two; only where both kinds exist."""
    found = []
    for slot, (name, predictions) in enumerate(models.items()):
        probs, y = labelled_table(predictions)
        classes = [1] if probs.shape[1] == 2 else range(probs.shape[1])
        for one in classes:
            truth = y > 0 if probs.shape[1] == 2 else y == one
            if truth.any() and not truth.all():
                words = name if probs.shape[1] == 2 else f"{name}, class {one}"
                found.append((words, slot, operating_points(probs[:, one], truth)))
    return found


def _from_origin(alarms: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.append(0, alarms / alarms[-1]), np.append(0, hits / hits[-1])


def _stairs(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every rise as an upright: between two thresholds nothing is found."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def _line(name: str, slot: int, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> Line:
    """The line without points that no screen can show; the ends are kept."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    place = np.rint(np.stack([x / scale, y]) * _FINENESS)
    moved = (np.diff(place, axis=1) != 0).any(0)
    kept = np.append(True, moved)
    kept[-1] = True
    return Line(name, slot, x[kept], y[kept])
