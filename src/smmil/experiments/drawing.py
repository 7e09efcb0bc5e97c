"""The pens of the figures: PNG and SVG of the same picture, with the same bytes for the same numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.experiments.metric_words import metric_name
from smmil.files import replacing
from smmil.maps import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[Any, float, float]
_COLOURS = ("#1b6ca8", "#d95f02", "#4d9221", "#7b3294", "#8c6d31", "#636363")
_OPTIONS = {
    "alpha": "strength of smoothing α (0: none)",
    "steps": "steps of smoothing T (0: none)",
    "penalty.weight": "weight of the penalty",
}
_WIDE = 10.0  # above this ratio numbers stand at logarithmic distances, so that small ones do not lie on each other


def write_both(figure: "Figure", path: Path) -> list[Path]:
    """path.png and path.svg; neither holds a date, and the names inside the SVG do not change from call to call."""
    from matplotlib import rc_context

    picture, drawing = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    canvas.write_png(figure, picture)
    with rc_context({"svg.hashsalt": "smmil"}), replacing(drawing) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
    return [picture, drawing]


def title_above(figure: "Figure", title: str) -> None:
    """The title of a figure, broken where it says so and where it is longer than the figure is wide."""
    words = "\n".join(canvas.plain(part, 300) for part in title.split("\n"))
    figure.suptitle(broken(words, figure, 13), fontsize=9, color=canvas.INK, parse_math=False)


def broken(text: str, figure: "Figure", per_inch: int = 14) -> str:
    """Text broken into lines as wide as the figure, at so many letters to the inch; line breaks of its own stay."""
    from textwrap import wrap

    room = max(int(figure.get_size_inches()[0] * per_inch), 30)
    return "\n".join(line for part in text.split("\n") for line in wrap(part, room))


def curves(
    lines: Mapping[str, Sequence[Point]], path: Path, label: str, title: str, learned: float | None = None
) -> list[Path]:
    """One panel per metric: mean with one standard deviation against a setting; words (exact) stand after numbers.

    learned  where the learned value ended on average; its result is drawn there with a star
    """
    figure = canvas.new_figure(3.4 * len(lines) + 0.4, 3.5, layout="constrained")
    axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for ax, (metric, points), colour in zip(axes, lines.items(), _COLOURS * len(lines), strict=False):
        _curve(ax, list(points), learned, colour)
        ax.set_xlabel(_axis_label(label, points), **canvas.SMALL)
        ax.set_ylabel(metric_name(metric), **canvas.SMALL)
        ax.tick_params(labelsize=8)
        ax.margins(x=0.08, y=0.1)
        ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, [point for points in lines.values() for point in points], learned)
    title_above(figure, title)
    return write_both(figure, path)


def is_number(value: Any) -> bool:
    """Whether a setting is a number, which `true` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve(ax: "Axes", points: list[Point], learned: float | None, colour: str) -> None:
    numbers = sorted((point for point in points if is_number(point[0])), key=lambda point: point[0])
    words = [point for point in points if not is_number(point[0])]
    values = [point[0] for point in numbers]
    places = dict(zip(values, _places(values), strict=True))
    ticks = {place: f"{value:g}" for value, place in places.items()}
    if numbers:
        x, y, s = [places[v] for v in values], [p[1] for p in numbers], np.nan_to_num([p[2] for p in numbers])
        ax.errorbar(x, y, s, color=colour, marker="o", ms=4, lw=1.2, capsize=3)
    free = max(places.values(), default=0.0)
    for word, y_, s_ in words:
        if word == "learned" and learned is not None:
            x_ = float(np.interp(learned, values, list(places.values()))) if numbers else learned
        else:
            free += _step(list(places.values()))
            x_, ticks[free] = free, str(word)
        ax.errorbar([x_], [y_], [np.nan_to_num(s_)], color=colour, mec="white", marker="*", ms=12, capsize=3, zorder=3)
    ax.set_xticks(list(ticks), list(ticks.values()))


def _places(values: Sequence[float]) -> list[float]:
    """Where numbers stand along the axis: at their value, or at its logarithm when they span a wide range."""
    if not _is_wide(values):
        return [float(value) for value in values]
    least = min(value for value in values if value > 0)
    return [float(np.log1p(value / least)) for value in values]


def _is_wide(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) / min(positive) > _WIDE


def _axis_label(option: str, points: Sequence[Point]) -> str:
    wide = _is_wide([point[0] for point in points if is_number(point[0])])
    return canvas.plain(_OPTIONS.get(option, option)) + (", logarithmic" if wide else "")


def _step(places: Sequence[float]) -> float:
    """The distance of a word to what stands before it."""
    return (max(places) - min(places)) / max(len(places) - 1, 1) or 1.0 if places else 1.0


def _legend(figure: "Figure", points: Sequence[Point], learned: float | None) -> None:
    """What dots, bars and stars mean, below the panels."""
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"color": "#555555", "mec": "white"}
    marks = [Line2D([], [], marker="o", ms=5, lw=1.2, label="mean over folds and seeds", **grey)]
    marks.append(Line2D([], [], marker="|", ms=11, lw=0, mew=1.2, color="#555555", label="± one standard deviation"))
    words = [str(word) for word in dict.fromkeys(point[0] for point in points) if not is_number(word)]
    if "learned" in words and learned is not None:
        words.remove("learned")
        told = f"learned, where it ended on average ({learned:.3g})"
        marks.append(Line2D([], [], marker="*", ms=11, lw=0, label=told, **grey))
    if words:
        marks.append(Line2D([], [], marker="*", ms=11, lw=0, label=canvas.plain(", ".join(words)), **grey))
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8, frameon=False)
