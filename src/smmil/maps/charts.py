"""Charts of predictions: score histograms, scan strips and critical-difference diagrams."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import KnownInstances, instance_score
from smmil.evaluate.significance import friedman_nemenyi
from smmil.maps import canvas
from smmil.maps.raster import _smallest_gap, truth_values
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 0.22  # inches between two names or bars


class Histogram(NamedTuple):
    """Share of the positive and of the negative instances in each bin; each adds up to 1 (or 0 without any)."""

    edges: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    lowest: float
    highest: float


def score_shares(predictions: Sequence[Prediction], bins: int = 40, column: int | None = None) -> Histogram:
    """Histogram of the scores scaled so that the lowest of the whole set is 0 and the highest 1; known labels only."""
    known = KnownInstances.together([KnownInstances.of(p, column) for p in predictions])
    if len(known.truth) == 0:
        raise DataError("histogram: no instance label is known; histograms need instance labels")
    low, high = float(known.scores.min()), float(known.scores.max())
    scaled = (known.scores - low) / ((high - low) or 1.0)
    edges = np.linspace(0, 1, bins + 1)
    positive, negative = (np.histogram(scaled[known.truth == kind], edges)[0] for kind in (True, False))
    return Histogram(edges, positive / max(positive.sum(), 1), negative / max(negative.sum(), 1), low, high)


def score_histograms(
    predictions_by_model: Mapping[str, Sequence[Prediction]],
    path: str | Path,
    *,
    bins: int = 40,
    column: int | None = None,
) -> Path:
    """A PNG with one histogram per model: positive and negative instances, scaled to [0, 1] over the data set."""
    figure = canvas.new_figure(3.4 * len(predictions_by_model) + 0.4, 2.9, layout="constrained")
    axes = figure.subplots(1, len(predictions_by_model), squeeze=False, sharey=True)[0]
    for ax, (name, predictions) in zip(axes, predictions_by_model.items(), strict=True):
        found = score_shares(predictions, bins, column)
        draw_histogram(ax, found, name)
        ax.set_xlabel(
            f"score, 0 = {found.lowest:.3g}, 1 = {found.highest:.3g}\n(min and max of the set)", **canvas.SMALL
        )
    axes[0].set_ylabel("share of the instances", **canvas.SMALL)
    axes[0].legend(fontsize=8, frameon=False)
    return canvas.write_png(figure, path)


def draw_histogram(axes: "Axes", shares: Histogram, title: str) -> None:
    """Negative instances in grey and positive ones in the colour of lesions, below a title."""
    axes.stairs(shares.negative, shares.edges, fill=True, color="#7f8791", alpha=0.75, label="negative instances")
    axes.stairs(shares.positive, shares.edges, fill=True, color=canvas.LESION, alpha=0.6, label="positive instances")
    axes.set_title(canvas.plain(title, 40), fontsize=9, color=canvas.INK, parse_math=False)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def scan_strip(
    prediction: Prediction,
    path: str | Path,
    *,
    threshold: float | None = None,
    limits: tuple[float, float] | None = None,
    column: int | None = None,
    colour_scale: str = "viridis",
) -> Path:
    """A PNG of a scan: the score of every slice as a coloured bar, and below it the truth when it is known.

    Slices stand at their coordinate, so gaps are seen as gaps. `limits` shares one scale between scans.
    """
    place = _slice_positions(prediction)
    figure, bars, band = canvas._bars_and_band(6.4, 1.7)
    _bars(bars, prediction, instance_score(prediction, column), limits, threshold, colour_scale)
    _band(band, place, truth_values(prediction))
    for axes in (bars, band):
        axes.set_xlim(place.min() - 0.5 * _smallest_gap(place), place.max() + 0.5 * _smallest_gap(place))
    return canvas._write_with_headline(figure, canvas.headline(prediction), path)


def _bars(
    axes: "Axes",
    prediction: Prediction,
    scores: np.ndarray,
    limits: tuple[float, float] | None,
    threshold: float | None,
    colour_scale: str,
) -> None:
    low, high, scale = canvas.limits_of(scores, limits or prediction.fixed_scale)
    place = _slice_positions(prediction)
    colours = canvas.colours(colour_scale)((scores - low) / (high - low))
    marks = [low, high, float(scores.min()), float(scores.max()), *([] if threshold is None else [threshold])]
    margin = 0.05 * (max(marks) - min(marks))
    floor = min(marks) - margin
    axes.bar(place, scores - floor, bottom=floor, width=0.92 * _smallest_gap(place), color=colours)
    if threshold is not None:
        axes.axhline(threshold, color=canvas.INK, lw=1, ls="--")
        axes.text(1, threshold, " threshold", transform=axes.get_yaxis_transform(), va="center", **canvas.SMALL)
    axes.set_ylim(floor, max(marks) + margin)
    axes.set_xticks([])
    axes.set_ylabel(canvas.plain(str(prediction.meta.get("score_kind", "score")), 30), **canvas.SMALL)
    axes.set_title(f"colours: {scale}", loc="right", fontsize=7, color=canvas.INK)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _band(axes: "Axes", place: np.ndarray, truth: np.ndarray | None) -> None:
    truth = np.full(len(place), np.nan) if truth is None else truth
    kinds = {"lesion": (truth > 0.5, canvas.LESION), "other": (truth < 0.5, canvas.TISSUE)}
    kinds["unknown"] = (np.isnan(truth), canvas.UNKNOWN)
    width = 0.92 * _smallest_gap(place)
    for name, (where, colour) in kinds.items():
        if where.any():
            axes.bar(place[where], 1, width=width, color=colour, edgecolor=canvas.INK, lw=0.3, label=name)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("slice", **canvas.SMALL)
    axes.set_ylabel("truth", rotation=0, ha="right", va="center", **canvas.SMALL)
    axes.legend(loc="upper right", bbox_to_anchor=(1, -0.9), ncols=3, fontsize=8, frameon=False, borderaxespad=0)


def _slice_positions(prediction: Prediction) -> np.ndarray:
    """Middle of each slice along the only coordinate."""
    if prediction.coords is None or prediction.coords.shape[1] != 1:
        got = "none" if prediction.coords is None else f"{prediction.coords.shape[1]} coordinates"
        raise DataError(f"{prediction.id}: a strip needs one coordinate per slice, got {got}; use score_map for slides")
    return prediction.coords[:, 0].astype(np.float64)


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
    verdict = "the models differ" if found["p"] < found["alpha"] else "no difference shown"
    return f"Friedman p = {found['p']:.2g} over {found['n_columns']} columns: {verdict} at {found['alpha']:g}"


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
