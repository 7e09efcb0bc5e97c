"""Maps of one case by several models on one scale, and labelled cases, each panel with its name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.evaluate.instances import instance_score
from smmil.experiments.drawing import broken, title_above, write_both
from smmil.maps import canvas
from smmil.maps.overlay import draw_scores, draw_truth
from smmil.maps.points import dots_extent, scattered
from smmil.maps.raster import rasterize, truth_values
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST, _NARROWEST, _STRIP = 2.6, 1.7, (7.0, 0.42)  # inches: sides of a slide's panel, width and height of a scan's
_COLUMNS = 6
_SCALE = "viridis"
_MEANING = (
    "score, one scale for all maps: 0 and 1 are the 2nd and 98th percentile of that model's scores in this case "
    "(colours compare instances of a map, not models)"
)


def maps(models: Mapping[str, Prediction], path: Path, title: str) -> list[Path]:
    """The truth and the map of every model for one case, with one colour bar that says what it means."""
    first = next(iter(models.values()))
    truth = truth_values(first)
    figure, axes = _grid(first, len(models) + (truth is not None), below=0.75)
    shown = axes[: len(models) + (truth is not None)]
    if truth is not None:
        _draw(shown[0], draw_truth, first, truth)
    for ax, (name, prediction) in zip(shown[truth is not None :], models.items(), strict=True):
        _draw(ax, draw_scores, prediction, scaled(instance_score(prediction)), (0.0, 1.0), _SCALE)
        ax.set_xlabel("")
        canvas.bare(ax, f"{name}: P = {prediction.probs[-1]:.3f}")
    _colour_bar(figure, shown, f"{_MEANING}{'' if truth is None else '; outline or ring: lesion'}")
    title_above(figure, title)
    return write_both(figure, path)


def scaled(scores: np.ndarray) -> np.ndarray:
    """The scores of a case with their 2nd percentile at 0 and their 98th at 1; a constant map is 0.5 everywhere."""
    low, high, _ = canvas.limits_of(scores, None)
    return (scores - low) / (high - low)


def examples(cases: Sequence[Prediction], agreement: Sequence[float], path: Path, title: str) -> list[Path]:
    """The labels of some cases, each with the share of neighbouring pairs that agree."""
    figure, axes = _grid(cases[0], len(cases), below=0.5)
    for ax, case, share in zip(axes, cases, agreement, strict=False):
        truth = truth_values(case)
        assert truth is not None
        _draw(ax, draw_truth, case, truth)
        canvas.bare(ax, f"{case.id}: {share:.1%} of pairs agree")
    _one_legend(figure, axes[: len(cases)])
    title_above(figure, title)
    return write_both(figure, path)


def _grid(case: Prediction, count: int, below: float) -> tuple["Figure", list["Axes"]]:
    """A figure with panels in the shape of the case, in even rows of at most six; strips below each other for scans."""
    width, height = _panel_size(case)
    rows = count if height == _STRIP[1] else -(-count // _COLUMNS)
    columns = -(-count // rows)
    size = (max(columns * (width + 0.15), 6.0), rows * (height + 0.42) + 0.5 + below)
    figure = canvas.new_figure(*size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in axes:
        ax.set_anchor("N")
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure, axes


def _panel_size(case: Prediction) -> tuple[float, float]:
    if scattered(case):
        left, right, bottom, top = dots_extent(case)
        shape = bottom - top, right - left
    else:
        shape = rasterize(case, np.zeros(case.n))[0].shape
        if shape[0] == 1:
            return _STRIP
    unit = _LONGEST / max(shape)
    return max(unit * shape[1], _NARROWEST), max(unit * shape[0], 1.0)


def _draw(ax: "Axes", pen: Any, prediction: Prediction, *what: Any) -> None:
    """What the pen draws into a panel, without the colour bar it would give each of them."""
    figure: Any = ax.get_figure(root=True)
    bar = figure.add_axes((0, 0, 0.1, 0.1))
    pen(canvas.Panel(ax, bar), prediction, *what)
    bar.remove()


def _colour_bar(figure: "Figure", axes: Sequence["Axes"], label: str) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    width = figure.get_size_inches()[0]
    scale = ScalarMappable(Normalize(0, 1), canvas.colours(_SCALE))
    bar = figure.colorbar(
        scale, ax=list(axes), location="bottom", extend="both", shrink=min(1.0, 4 / width), aspect=35, pad=0.02
    )
    bar.ax.tick_params(labelsize=7, color=canvas.INK, labelcolor=canvas.INK)
    bar.outline.set_visible(False)
    bar.set_label(broken(label, figure), **canvas.SMALL)


def _one_legend(figure: "Figure", axes: Sequence["Axes"]) -> None:
    """The legends of all panels as one below them."""
    found: dict[str, Any] = {}
    for ax in axes:
        legend = ax.get_legend()
        if legend is not None:
            handles = zip(legend.get_texts(), legend.legend_handles, strict=True)
            found |= {text.get_text(): handle for text, handle in handles}
            legend.remove()
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=len(found), fontsize=8, frameon=False)
