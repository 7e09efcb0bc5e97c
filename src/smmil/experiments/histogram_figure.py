"""Scores of positive and negative instances, a panel per model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from smmil.evaluate.instances import instance_score
from smmil.experiments.drawing import broken, title_above, write_both
from smmil.maps import canvas
from smmil.maps.histogram import draw_histogram, score_shares
from smmil.prediction import Prediction

TAILS = (0.5, 99.5)  # percentiles of all scores of a model that become 0 and 1: one outlier must not hide the rest
BINS = 40
_X_LABEL = (
    f"score, the same {BINS} bins for all models: 0 and 1 are the {TAILS[0]} and {TAILS[1]} percentile of a model's "
    "scores; what lies beyond is in the outermost bins"
)


def histograms(found: Mapping[str, Sequence[Prediction]], path: Path, title: str, columns: int = 4) -> list[Path]:
    """Shares of positive and of negative instances over the scaled score, a panel per model."""
    wide = min(len(found), columns)
    rows = -(-len(found) // wide)
    figure = canvas.new_figure(max(2.5 * wide, 5.5) + 0.6, 1.9 * rows + 1.1, layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False, sharex=True)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    for number, (ax, (name, predictions)) in enumerate(zip(axes.flat, found.items(), strict=False)):
        draw_histogram(ax, score_shares(without_tails(predictions), BINS), name)
        ax.tick_params(labelbottom=number + wide >= len(found))  # nothing below it
    figure.supylabel("share of the instances of a class", **canvas.SMALL)
    figure.supxlabel(broken(_X_LABEL, figure), **canvas.SMALL)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    title_above(figure, title)
    return write_both(figure, path)


def without_tails(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The predictions with one score each, cut off at the outermost percentiles of the whole set."""
    scores = [instance_score(p) for p in predictions]
    low, high = np.percentile(np.concatenate(scores), TAILS)
    return [replace(p, scores=np.clip(s, low, high)[:, None]) for p, s in zip(predictions, scores, strict=True)]
