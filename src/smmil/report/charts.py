"""Curves and histograms of a report as accessible SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.bags import labelled_table, reliability_curve
from smmil.evaluate.ranking import OperatingPoints
from smmil.maps.charts import Histogram, score_shares
from smmil.prediction import Prediction
from smmil.web import render

_FINENESS = 500  # points nearer than 1/500 of the axis cannot be told apart on a screen


@dataclass(frozen=True)
class _Line:
    """A curve of one model."""

    name: str
    slot: int  # decides the colour: that of the model
    x: np.ndarray
    y: np.ndarray
    sizes: Sequence[int] = ()
    dash: int | None = None  # decides the dashes; None: as the slot

    @property
    def pen(self) -> str:
        """Classes of the drawn line: colour and dashes."""
        return f"line m{self.slot % SLOTS} d{(self.slot if self.dash is None else self.dash) % SLOTS}"


def _roc_lines(models: Mapping[str, Sequence[Prediction]]) -> list[_Line]:
    """False against true positive rate of the cases, one line per model (and per class with more than two)."""
    lines = []
    for one in _rankings(models):
        alarms, hits = one.points.false_positives, one.points.true_positives
        lines.append(_line(one, np.append(0, alarms / alarms[-1]), np.append(0, hits / hits[-1])))
    return lines


def _precision_lines(models: Mapping[str, Sequence[Prediction]]) -> list[_Line]:
    """Recall against precision of the cases."""
    lines = []
    for one in _rankings(models):
        points = one.points
        recall = points.true_positives / points.true_positives[-1]
        precision = points.true_positives / (points.true_positives + points.false_positives)
        lines.append(_line(one, np.append(0, recall), np.append(precision[0], precision)))
    return lines


def _reliability_lines(models: Mapping[str, Sequence[Prediction]]) -> list[_Line]:
    """Predicted probability against observed frequency, bins with cases only; sizes are the number of cases."""
    lines = []
    for slot, (name, predictions) in enumerate(models.items()):
        if not any(p.y is not None for p in predictions):
            continue
        found = reliability_curve(predictions)
        filled = np.array(found["n"]) > 0
        predicted, observed = (np.array(found[key])[filled] for key in ("mean_probability", "observed"))
        lines.append(_Line(name, slot, predicted, observed, [n for n in found["n"] if n]))
    return lines


def _froc_lines(results: Mapping[str, Mapping[str, Any]], most: float = 8.0) -> list[_Line]:
    """False alarms per case (up to `most`) against the share of lesions found."""
    lines = []
    for slot, (name, found) in enumerate(results.items()):
        if found.get("froc", {}).get("n_lesions"):
            curve = found["froc"]["curve"]
            alarms, share = np.array(curve["false_alarms_per_bag"]), np.array(curve["sensitivity"])
            near = alarms <= most
            last = share[near][-1] if near.any() else 0.0
            x, y = np.concatenate([[0], alarms[near], [most]]), np.concatenate([[0], share[near], [last]])
            # every rise is an upright: between two thresholds nothing is found
            lines.append(_line(_Ranking(name, slot, slot), np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1], scale=most))
    return lines


class _Ranking(NamedTuple):
    """One line to draw: its name, colour and dashes, and its operating points."""

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
            found.append(_Ranking(name, slot, slot, OperatingPoints.of(probs[:, 1], y > 0)))
            continue
        for one in range(probs.shape[1]):
            colour = one if len(models) == 1 else slot  # several models: colour tells the model, dashes the class
            found.append(_Ranking(f"{name}, class {one}", colour, one, OperatingPoints.of(probs[:, one], y == one)))
    return [one for one in found if one.points.both_classes]


def _line(one: _Ranking, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> _Line:
    """The line without points that no screen can show; the ends are kept."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    place = np.rint(np.stack([x / scale, y]) * _FINENESS)
    moved = (np.diff(place, axis=1) != 0).any(0)
    kept = np.append(True, moved)
    kept[-1] = True
    return _Line(one.name, one.slot, x[kept], y[kept], dash=one.dash)


_WIDTH, _HEIGHT = 340.0, 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 12.0, 12.0, 44.0
SLOTS = 6


class _Axes:
    """Places of data on the drawing."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]):
        self.x, self.y = x, y

    def right(self, value: float) -> float:
        share = (value - self.x[0]) / (self.x[1] - self.x[0])
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def down(self, value: float) -> float:
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    def points(self, x: np.ndarray, y: np.ndarray) -> str:
        return " ".join(f"{self.right(a)},{self.down(b)}" for a, b in zip(x, y, strict=True))


def _curve_chart(
    title: str,
    axes: tuple[str, str],
    lines: Sequence[_Line],
    *,
    words: str,
    most: float = 1.0,
    diagonal: bool = False,
    dots: bool = False,
    below: Mapping[str, Any] | None = None,
) -> str:
    """A figure with lines in the unit square (x up to `most`), a legend, and `words` for screen readers.

    below  a small table under it: caption, head and rows (name, cells)
    """
    scale = _Axes((0, most), (0, 1))
    return _figure(
        scale,
        (_ticks(most), _ticks(1.0)),
        title=title,
        words=words,
        axes=axes,
        diagonal=diagonal,
        lines=[{"name": one.name, "pen": one.pen, "points": scale.points(one.x, one.y)} for one in lines],
        dots=[dot for one in lines for dot in _dots(scale, one)] if dots else [],
        below=below,
    )


def _histogram_chart(title: str, found: Histogram, *, words: str) -> str:
    """Shares of positive and negative instances per bin of the score."""
    top = (float(max(found.positive.max(), found.negative.max())) or 1.0) * 1.05
    low = found.lowest
    high = found.highest if found.highest > low else low + 1.0  # all scores alike: all in the first bin
    scale = _Axes((low, high), (0, top))
    edges = np.repeat(low + found.edges * (high - low), 2)
    areas = [
        {"kind": kind, "points": scale.points(edges, np.concatenate([[0], np.repeat(shares, 2), [0]]))}
        for kind, shares in (("negative", found.negative), ("positive", found.positive))
    ]
    ruled = _ticks(high, low), _ticks(top)
    return _figure(scale, ruled, title=title, words=words, axes=("score", "share of instances"), areas=areas)


def _figure(scale: _Axes, ruled: tuple[Sequence[float], Sequence[float]], **content: Any) -> str:
    across, up = ruled
    return render(
        "chart.html",
        **{"lines": [], "dots": [], "areas": [], "keys": [], "diagonal": False, "below": None, **content},
        width=int(_WIDTH),
        height=int(_HEIGHT),
        left=_LEFT,
        right=_WIDTH - _RIGHT,
        top=_TOP,
        bottom=_HEIGHT - _BOTTOM,
        across=[(scale.right(v), text) for v, text in zip(across, _tick_words(across), strict=True)],
        up=[(scale.down(v), text) for v, text in zip(up, _tick_words(up), strict=True)],
    )


def _dots(scale: _Axes, line: _Line) -> list[dict[str, Any]]:
    """Dots whose area grows with the number of cases."""
    largest = max(line.sizes, default=1)
    return [
        {
            "slot": line.slot % SLOTS,
            "x": scale.right(x),
            "y": scale.down(y),
            "radius": f"{2.5 + 4 * np.sqrt(size / largest):.1f}",
            "words": f"{size} cases: predicted {x:.2f}, observed {y:.2f}",
        }
        for x, y, size in zip(line.x, line.y, line.sizes, strict=True)
    ]


def _ticks(high: float, low: float = 0.0, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`: about five steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10((high - low) / about))
    step = min((f * power for f in (1, 2, 5, 10)), key=lambda s: abs((high - low) / s - about))
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return [float(k) * step for k in range(int(first), int(last) + 1)]


def _tick_words(values: Sequence[float]) -> list[str]:
    """The numbers with as many digits as their distance needs, and no more."""
    step = values[1] - values[0] if len(values) > 1 else 1.0
    digits = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    plain = digits <= 6 and max(map(abs, values), default=0.0) < 1e6
    return ["0" if value == 0 else f"{value:.{digits}f}" if plain else f"{value:.3g}" for value in values]


Models = Mapping[str, Sequence[Prediction]]


def _figures(models: Models, results: Mapping[str, Mapping[str, Any]], column: int | None = None) -> list[str]:
    """SVG figures for which the labels suffice: curves first, then one histogram of scores per model."""
    true = "On the diagonal probabilities are true."
    curves: list[tuple[str, tuple[str, str], list[_Line], str, dict[str, Any]]] = [
        ("ROC, whole cases", ("false positive rate", "true positive rate"), _roc_lines(models),
         f"Area under the curve: {_listed(results, 'bag', 'auroc')}.", {"diagonal": True}),
        ("Precision and recall, whole cases", ("recall", "precision"), _precision_lines(models),
         f"Average precision: {_listed(results, 'bag', 'auprc')}.", {}),
        ("Reliability", ("predicted probability", "observed frequency"), _reliability_lines(models),
         f"Expected calibration error: {_listed(results, 'bag', 'ece')}. {true}", {"diagonal": True, "dots": True}),
        ("FROC, lesions", ("false alarms per case", "share of lesions found"), _froc_lines(results),
         f"Mean share of lesions found: {_listed(results, 'froc', 'froc')}.", {"most": 8.0}),
    ]  # fmt: skip
    found = [_curve_chart(title, axes, lines, words=w, **how) for title, axes, lines, w, how in curves if lines]
    return found + [h for name, p in models.items() if (h := _histogram(name, p, column))]


def _histogram(name: str, predictions: Sequence[Prediction], column: int | None) -> str | None:
    try:
        shares = score_shares(predictions, column=column)
    except DataError:
        return None  # no instance label is known, so there is nothing to tell apart; the numbers say so too
    kind = str(predictions[0].meta.get("score_kind", "score"))
    words = f"Scores ({kind}) of positive and negative instances, from {shares.lowest:.3g} to {shares.highest:.3g}."
    return _histogram_chart(f"Instance scores, {name}", shares, words=words)


def _listed(results: Mapping[str, Mapping[str, Any]], *path: str) -> str:
    values = {name: (found.get(path[0]) or {}).get(path[1]) for name, found in results.items()}
    known = {name: isinstance(value, float) and value == value for name, value in values.items()}
    return ", ".join(f"{name} {value:.3f}" if known[name] else f"{name} undefined" for name, value in values.items())
