"""How far apart the scores of positive and negative instances lie."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import gather, known_instances
from smmil.maps import canvas
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Histogram(NamedTuple):
    """Share of the positive and of the negative instances in each bin; each adds up to 1 (or 0 without any)."""

    edges: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    lowest: float
    highest: float


def score_shares(predictions: Sequence[Prediction], bins: int = 40, column: int | None = None) -> Histogram:
    """Histogram of the scores scaled so that the lowest of the whole set is 0 and the highest 1; known labels only."""
    known = gather([known_instances(p, column) for p in predictions])
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
