"""Mean ranks on a line, with bars over models that are not told apart."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.evaluate.friedman import friedman_nemenyi
from smmil.maps import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 0.22  # inches between two names or bars


def critical_difference(values: Any, path: str | Path, *, alpha: float = 0.05, title: str = "Mean ranks") -> Path:
    """A PNG of Demšar's diagram: best model leftmost, thick bars join models that Nemenyi's test does not tell apart.

    values  models x columns, higher is better, as for `smmil.evaluate.mean_ranks`
    """
    found = friedman_nemenyi(values, alpha)
    figure = rank_diagram(found, room=1.25)
    words = f"{canvas.plain(title)}  ·  {friedman_verdict(found)}"
    figure.axes[0].set_title(words, fontsize=9, color=canvas.INK, parse_math=False)
    return canvas.write_png(figure, path)


def rank_diagram(found: dict[str, Any], room: float) -> "Figure":
    """The diagram alone, from what `friedman_nemenyi` gives, with `room` inches for words above and below."""
    ranks, groups = found["mean_ranks"], found["groups"]
    rows, bars = -(-len(ranks) // 2), len(groups)
    below = 0.25 + _LINE * (bars + rows)
    figure = canvas.new_figure(7.5, room + below, layout="constrained")
    axes = figure.subplots()
    axes.set_ylim(-below, 0.6)
    _scale(axes, found)
    for level, group in enumerate(groups, start=1):
        ends = [ranks[group[0]] - 0.04, ranks[group[-1]] + 0.04]
        axes.plot(ends, [-_LINE * level] * 2, color=canvas.LESION, lw=3.5, solid_capstyle="butt", gid="group")
    _names(axes, ranks, _LINE * (bars + 1))
    return figure


def friedman_verdict(found: dict[str, Any]) -> str:
    """Friedman's test in words; a large p is no proof that models are equal."""
    said = "the models differ" if found["p"] < found["alpha"] else "no difference shown"
    return f"Friedman p = {found['p']:.2g} over {found['n_columns']} columns: {said} at {found['alpha']:g}"


def _scale(axes: "Axes", found: dict[str, Any]) -> None:
    """The line of ranks from 1 to the number of models, and a ruler as long as the critical difference."""
    k, reach = found["n_models"], found["critical_difference"]
    axes.set_xlim(1 - 0.42 * (k - 1), max(k + 0.42 * (k - 1), 1 + reach))
    axes.plot([1, k], [0, 0], color=canvas.INK, lw=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.07], color=canvas.INK, lw=1)
        axes.text(rank, 0.1, str(rank), ha="center", va="bottom", **canvas.SMALL)
    axes.plot([1, 1 + reach], [0.38, 0.38], color=canvas.INK, lw=2, solid_capstyle="butt", gid="ruler")
    axes.text(1 + reach / 2, 0.42, f"critical difference {reach:.3g}", ha="center", va="bottom", **canvas.SMALL)
    axes.axis("off")


def _names(axes: "Axes", ranks: dict[str, float], first: float) -> None:
    """Names of the better half at the left and of the others at the right, joined to their place on the line."""
    half, (low, high) = -(-len(ranks) // 2), axes.get_xlim()
    left = np.arange(len(ranks)) < half
    for i, (name, rank) in enumerate(ranks.items()):
        depth = -first - _LINE * (i if left[i] else len(ranks) - 1 - i)
        end, side = (low, "left") if left[i] else (high, "right")
        axes.plot([rank, rank, end], [0, depth, depth], color=canvas.INK, lw=0.8)
        words = f"{canvas.plain(name, 24)}  {rank:.2f}"
        axes.text(end, depth + 0.02, words, ha=side, va="bottom", **canvas.SMALL)
