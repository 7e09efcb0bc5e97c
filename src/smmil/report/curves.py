"""The curves of a report as points: ROC, precision and recall, reliability, FROC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from smmil.evaluate import reliability_curve
from smmil.evaluate.cases import labelled_table
from smmil.evaluate.ranking import OperatingPoints, operating_points
from smmil.prediction import Prediction

_FINENESS = 500  # points nearer than 1/500 of the axis cannot be told apart on a screen


@dataclass(frozen=True)
class Line:
    """A curve of one model.

    slot  number that decides the colour: that of the model      dash  number that decides the dashes; None: the same
    """

    name: str
    slot: int
    x: np.ndarray
    y: np.ndarray
    sizes: Sequence[int] = field(default=())
    dash: int | None = None


def roc_lines(models: Mapping[str, Sequence[Prediction]]) -> list[Line]:
    """False against true positive rate of the cases, one line per model (and per class with more than two)."""
    return [
        _line(one, *_from_origin(one.points.false_positives, one.points.true_positives)) for one in _rankings(models)
    ]


def precision_lines(models: Mapping[str, Sequence[Prediction]]) -> list[Line]:
    """Recall against precision of the cases."""
    lines = []
    for one in _rankings(models):
        points = one.points
        recall = points.true_positives / points.true_positives[-1]
        precision = points.true_positives / (points.true_positives + points.false_positives)
        lines.append(_line(one, np.append(0, recall), np.append(precision[0], precision)))
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
            lines.append(_line(_Ranking(name, slot, slot), *_stairs(x, y), scale=most))
    return lines


class _Ranking(NamedTuple):
    """What is drawn as one line: its name, colour and dashes, and where it comes from."""

    name: str
    slot: int
    dash: int
    points: Any = None


def _rankings(models: Mapping[str, Sequence[Prediction]]) -> list[_Ranking]:
    """Operating points of every model, and of every class with more than two; only where both kinds exist."""
    found = []
    for slot, (name, predictions) in enumerate(models.items()):
        probs, y = labelled_table(predictions)
        if probs.shape[1] == 2:
            found.append(_Ranking(name, slot, slot, _points(probs[:, 1], y > 0)))
            continue
        for one in range(probs.shape[1]):
            colour = one if len(models) == 1 else slot  # several models: colour tells the model, dashes the class
            found.append(_Ranking(f"{name}, class {one}", colour, one, _points(probs[:, one], y == one)))
    return [one for one in found if one.points is not None]


def _points(scores: np.ndarray, truth: np.ndarray) -> OperatingPoints | None:
    return operating_points(scores, truth) if truth.any() and not truth.all() else None


def _from_origin(alarms: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.append(0, alarms / alarms[-1]), np.append(0, hits / hits[-1])


def _stairs(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every rise as an upright: between two thresholds nothing is found."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def _line(one: _Ranking, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> Line:
    """The line without points that no screen can show; the ends are kept."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    place = np.rint(np.stack([x / scale, y]) * _FINENESS)
    moved = (np.diff(place, axis=1) != 0).any(0)
    kept = np.append(True, moved)
    kept[-1] = True
    return Line(one.name, one.slot, x[kept], y[kept], dash=one.dash)
