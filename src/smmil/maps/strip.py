"""Scans as strips: one bar per slice above a band of truth."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.maps import canvas
from smmil.maps.raster import truth_values
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    place = slice_positions(prediction)
    figure, bars, band = canvas.bars_and_band(6.4, 1.7)
    _bars(bars, prediction, instance_score(prediction, column), limits, threshold, colour_scale)
    _band(band, place, truth_values(prediction))
    for axes in (bars, band):
        axes.set_xlim(place.min() - 0.5 * _gap(place), place.max() + 0.5 * _gap(place))
    return canvas.write_with_headline(figure, canvas.headline(prediction), path)


def _bars(
    axes: "Axes",
    prediction: Prediction,
    scores: np.ndarray,
    limits: tuple[float, float] | None,
    threshold: float | None,
    colour_scale: str,
) -> None:
    low, high, scale = canvas.limits_of(scores, limits)
    place = slice_positions(prediction)
    colours = canvas.colours(colour_scale)((scores - low) / (high - low))
    marks = [low, high, float(scores.min()), float(scores.max()), *([] if threshold is None else [threshold])]
    margin = 0.05 * (max(marks) - min(marks))
    floor = min(marks) - margin
    axes.bar(place, scores - floor, bottom=floor, width=0.92 * _gap(place), color=colours)
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
    for name, (where, colour) in kinds.items():
        if where.any():
            axes.bar(place[where], 1, width=0.92 * _gap(place), color=colour, edgecolor=canvas.INK, lw=0.3, label=name)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("slice", **canvas.SMALL)
    axes.set_ylabel("truth", rotation=0, ha="right", va="center", **canvas.SMALL)
    axes.legend(loc="upper right", bbox_to_anchor=(1, -0.9), ncols=3, fontsize=8, frameon=False, borderaxespad=0)


def slice_positions(prediction: Prediction) -> np.ndarray:
    """Middle of each slice along the only coordinate."""
    if prediction.coords is None or prediction.coords.shape[1] != 1:
        got = "none" if prediction.coords is None else f"{prediction.coords.shape[1]} coordinates"
        raise DataError(f"{prediction.id}: a strip needs one coordinate per slice, got {got}; use score_map for slides")
    return prediction.coords[:, 0].astype(np.float64)


def _gap(place: np.ndarray) -> float:
    gaps = np.diff(np.unique(place))
    return float(gaps.min()) if gaps.size else 1.0
