"""The pens of the figures: PNG and SVG of the same picture, with the same bytes for the same numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.evaluate.instances import instance_score
from smmil.files import replacing
from smmil.maps import canvas
from smmil.maps.histogram import draw_histogram, score_shares
from smmil.maps.overlay import draw_scores, draw_truth, panels_for
from smmil.maps.raster import truth_values
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[Any, float, float]
_PANEL = 3.2  # longer side of a map in inches
_COLOURS = ("#1b6ca8", "#d95f02", "#4d9221", "#7b3294", "#8c6d31", "#636363")


def write_both(figure: "Figure", path: Path) -> list[Path]:
    """path.png and path.svg; neither holds a date, and the names inside the SVG do not change from call to call."""
    from matplotlib import rc_context

    picture, drawing = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    canvas.write_png(figure, picture)
    with rc_context({"svg.hashsalt": "smmil"}), replacing(drawing) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
    return [picture, drawing]


def curves(
    lines: Mapping[str, Sequence[Point]], path: Path, label: str, title: str, learned: float | None = None
) -> list[Path]:
    """One panel per metric: mean with one standard deviation against a setting; words (exact) stand after numbers.

    learned  where the learned value ended on average; its result is drawn there with a star
    """
    figure = canvas.new_figure(3.6 * len(lines) + 0.4, 3.1, layout="constrained")
    axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for ax, (metric, points), colour in zip(axes, lines.items(), _COLOURS * len(lines), strict=False):
        _curve(ax, list(points), learned, colour)
        ax.set_xlabel(canvas.plain(label), **canvas.SMALL)
        ax.set_ylabel(metric.replace("_", " "), **canvas.SMALL)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(canvas.plain(title, 90), fontsize=9, color=canvas.INK, parse_math=False)
    return write_both(figure, path)


def _curve(ax: "Axes", points: list[Point], learned: float | None, colour: str) -> None:
    numbers = sorted((x, y, s) for x, y, s in points if isinstance(x, int | float) and not isinstance(x, bool))
    words = [(str(x), y, s) for x, y, s in points if not isinstance(x, int | float) or isinstance(x, bool)]
    step = (numbers[-1][0] - numbers[0][0]) / max(len(numbers) - 1, 1) if numbers else 1.0
    last = numbers[-1][0] if numbers else 0.0
    if numbers:
        x, y, s = (np.array(part, dtype=float) for part in zip(*numbers, strict=True))
        ax.errorbar(x, y, np.nan_to_num(s), color=colour, marker="o", ms=4, lw=1.2, capsize=2)
    for place, (word, y_, s_) in enumerate(words, start=1):
        x_ = learned if word == "learned" and learned is not None else last + place * (step or 1.0)
        ax.errorbar([x_], [y_], [np.nan_to_num(s_)], color=colour, marker="*", ms=8, capsize=2)
        ax.annotate(word, (x_, y_), xytext=(4, 6), textcoords="offset points", **canvas.SMALL)


def histograms(found: Mapping[str, Sequence[Prediction]], path: Path, title: str, columns: int = 4) -> list[Path]:
    """Scores of positive and negative instances, scaled to [0, 1] over the set, a panel per model."""
    rows = -(-len(found) // columns)
    wide = min(len(found), columns)
    figure = canvas.new_figure(2.5 * wide + 0.6, 1.9 * rows + 0.6, layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False, sharex=True)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    for ax, (name, predictions) in zip(axes.flat, found.items(), strict=False):
        draw_histogram(ax, score_shares(predictions), name)
    axes.flat[0].legend(fontsize=7, frameon=False)
    figure.suptitle(canvas.plain(title, 90), fontsize=9, color=canvas.INK, parse_math=False)
    return write_both(figure, path)


def maps(models: Mapping[str, Prediction], path: Path, title: str) -> list[Path]:
    """The truth and the map of every model for one case, each on its own percentile scale."""
    first = next(iter(models.values()))
    shown = truth_values(first)
    panels = [("truth", first)] * (shown is not None) + list(models.items())
    figure, places = panels_for(first, len(panels), _PANEL)
    if shown is not None:
        draw_truth(places[0], first, shown)
    for panel, (name, prediction) in zip(places[shown is not None :], models.items(), strict=True):
        draw_scores(panel, prediction, instance_score(prediction), None, "viridis")
        canvas.bare(panel.map, f"{name}: P = {prediction.probs[-1]:.3f}")
    return write_both(_headed(figure, f"{title}  ·  {first.id}  ·  label {first.y}"), path)


def examples(cases: Sequence[Prediction], agreement: Sequence[float], path: Path, title: str) -> list[Path]:
    """The labels of some cases, each with the share of neighbours that agree."""
    figure, places = panels_for(cases[0], len(cases), _PANEL)
    for panel, case, share in zip(places, cases, agreement, strict=False):
        shown = truth_values(case)
        assert shown is not None
        draw_truth(panel, case, shown)
        canvas.bare(panel.map, f"{case.id}: {share:.1%} agree")
    return write_both(_headed(figure, title), path)


def _headed(figure: "Figure", title: str) -> "Figure":
    top = 1 - 0.08 / figure.get_size_inches()[1]
    figure.text(0.5, top, canvas.plain(title, 110), ha="center", va="top", fontsize=9, parse_math=False)
    return figure
