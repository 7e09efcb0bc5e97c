"""Mean ranks on a line with Nemenyi's critical difference, and a warning where that test means little."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.evaluate.friedman import friedman_nemenyi
from smmil.experiments.certainty_page import p_text
from smmil.experiments.drawing import title_above, write_both
from smmil.experiments.metric_words import metric_name
from smmil.files import write_text
from smmil.maps import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

ENOUGH = 10  # independent data sets from which Friedman's approximation holds (Demšar 2006)
_LINE = 0.22  # inches between two names or bars


def rank_figure(values: "DataFrame", path: Path, title: str) -> list[Path]:
    """Demšar's diagram as PNG and SVG, and path.txt with its numbers; all three carry the warning.

    values  models x columns (data set, extractor, metric), higher is better
    """
    found = friedman_nemenyi(values)
    listed: list[Any] = list(values.columns)
    columns = [f"{f'{data} {extractor}'.strip()}: {metric_name(metric)}" for data, extractor, metric in listed]
    warning = rank_warning([str(column[0]) for column in listed])
    figure = _diagram(found)
    _words_below(figure, [_verdict(found), *([warning] if warning else [])])
    title_above(figure, title)
    text = _text(found, columns, title, warning)
    write_text(path.with_name(f"{path.name}.txt"), text)
    return [*write_both(figure, path), path.with_name(f"{path.name}.txt")]


def rank_warning(datasets: list[str]) -> str:
    """Why the test should not be relied on: too few independent data sets; empty where there are enough."""
    different = len(set(datasets))
    if different >= ENOUGH:
        return ""
    sets = "one data set" if different == 1 else f"{different} data sets"
    return (
        f"Caution: {len(datasets)} columns of {sets}. Metrics, extractors and splits of one data set are not "
        f"independent data sets, and Nemenyi's test wants {ENOUGH} or more: read the order, not the bars; paired "
        "tests over patients (comparisons.md) say more."
    )


def _diagram(found: dict[str, Any]) -> "Figure":
    """Best model leftmost; thick bars join models that Nemenyi's test does not tell apart."""
    ranks, groups = found["mean_ranks"], found["groups"]
    rows = -(-len(ranks) // 2)
    below = 0.25 + _LINE * (len(groups) + rows)
    figure = canvas.new_figure(7.5, 2.1 + below, layout="constrained")
    axes = figure.subplots()
    axes.set_ylim(-below, 0.62)
    _scale(axes, found)
    for level, group in enumerate(groups, start=1):
        ends = [ranks[group[0]] - 0.04, ranks[group[-1]] + 0.04]
        axes.plot(ends, [-_LINE * level] * 2, color=canvas.LESION, lw=3.5, solid_capstyle="butt")
    _names(axes, ranks, _LINE * (len(groups) + 1))
    return figure


def _scale(axes: "Axes", found: dict[str, Any]) -> None:
    """The line of ranks from 1 to the number of models, and a ruler as long as the critical difference."""
    k, reach = found["n_models"], found["critical_difference"]
    axes.set_xlim(1 - 0.42 * (k - 1), max(k + 0.42 * (k - 1), 1 + reach))
    axes.plot([1, k], [0, 0], color=canvas.INK, lw=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.07], color=canvas.INK, lw=1)
        axes.text(rank, 0.1, str(rank), ha="center", va="bottom", **canvas.SMALL)
    axes.plot([1, 1 + reach], [0.38, 0.38], color=canvas.INK, lw=2, solid_capstyle="butt")
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


def _words_below(figure: "Figure", sentences: list[str]) -> None:
    from textwrap import wrap

    lines = [line for sentence in sentences for line in wrap(sentence, 105)]
    figure.supxlabel("\n".join(lines), **canvas.SMALL)


def _verdict(found: dict[str, Any]) -> str:
    said = "differ" if found["p"] < found["alpha"] else "do not differ"
    return (
        f"Mean rank, 1 is best. Friedman p = {found['p']:.2g} over {found['n_columns']} columns: the models {said} at "
        f"{found['alpha']:g}. Bars join models that Nemenyi's test does not tell apart."
    )


def _text(found: dict[str, Any], columns: list[str], title: str, warning: str) -> str:
    """The numbers of the diagram in words."""
    ranks = [f"  {rank:6.3f}  {name}" for name, rank in found["mean_ranks"].items()]
    pairs = [f"  {p['model']} - {p['other']}: {p['difference']:.3f}, p = {p_text(p['p'])}" for p in found["pairs"]]
    lines = [title, "", *([warning, ""] if warning else []), _verdict(found), "", "Mean ranks:", *ranks, ""]
    lines += [f"Critical difference at {found['alpha']:g}: {found['critical_difference']:.3f}", ""]
    lines += ["Columns:", *(f"  {c}" for c in columns), "", "Differences of mean ranks (Nemenyi):", *pairs, ""]
    return "\n".join(lines)
