"""Score maps (heatmaps) of slides beside the ground truth; overlays on the slide itself are in `exports/raster.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.maps import canvas
from smmil.maps.raster import (
    Extent,
    _draw_dots,
    _draw_rings,
    _plane_coords,
    dots_extent,
    finer,
    interpolated_words,
    rasterize,
    scattered,
    truth_values,
)
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.image import AxesImage


def score_map(
    prediction: Prediction,
    path: str | Path,
    *,
    truth: bool = True,
    limits: tuple[float, float] | None = None,
    column: int | None = None,
    colour_scale: str = "viridis",
    title: str | None = None,
    interpolate: bool = False,
) -> Path:
    """A PNG of the scores of one slide, next to the truth when it is known.

    limits  lowest and highest score of the colours, to share one scale between cases; None: 2nd to 98th percentile of
            this case. The label of the colour bar names the choice.
    interpolate  colours go over into each other between the middles of neighbouring patches; the label says so
    """
    labels = truth_values(prediction) if truth else None
    scores = instance_score(prediction, column)
    figure, panels = canvas._row_of_panels(1 if labels is None else 2, *_panel_size(_map_shape(prediction)))
    if labels is not None:
        draw_truth(panels[0], prediction, labels)
    kind = canvas.plain(str(prediction.meta.get("score_kind", "score")), 40)
    draw_scores(panels[-1], prediction, scores, limits, colour_scale, above=f"{kind}\n", interpolate=interpolate)
    canvas.bare(panels[-1].map, title or ("score" if truth_values(prediction) is None else "score (outline: lesion)"))
    return canvas._write_with_headline(figure, canvas.headline(prediction), path)


def side_by_side(
    predictions_by_model: Mapping[str, Prediction],
    path: str | Path,
    *,
    column: int | None = None,
    colour_scale: str = "viridis",
    limits: Mapping[str, tuple[float, float]] | None = None,
) -> Path:
    """A PNG of one case: the truth, then one map per model, each on its own percentile scale (stated below it).

    `limits` gives the scale of each model where pictures of several cases are to be compared.
    """
    models = dict(predictions_by_model)
    cases = {p.id for p in models.values()}
    if len(cases) != 1:
        raise DataError(f"side_by_side shows one case, got {len(cases)}: {', '.join(sorted(cases)[:3]) or 'none'}")
    first = next(iter(models.values()))
    labels, shape = truth_values(first), _map_shape(first)
    count = len(models) + (labels is not None)
    if shape[0] == 1:  # a scan: panels below each other
        figure, panels = canvas._column_of_panels(count, 7, 0.4)
    else:
        figure, panels = canvas._row_of_panels(count, *_panel_size(shape))
    if labels is not None:
        draw_truth(panels.pop(0), first, labels)
    for panel, (name, prediction) in zip(panels, models.items(), strict=True):
        draw_scores(panel, prediction, instance_score(prediction, column), (limits or {}).get(name), colour_scale)
        canvas.bare(panel.map, canvas.panel_title(name, prediction))
    label = canvas.label_text(first)
    return canvas._write_with_headline(figure, f"{canvas.plain(first.id)}  ·  {label}", path)


def draw_scores(
    panel: canvas.Panel,
    prediction: Prediction,
    scores: np.ndarray,
    limits: tuple[float, float] | None,
    colour_scale: str,
    above: str = "",
    interpolate: bool = False,
) -> None:
    """The map, outline of the known lesion, scale bar and colour bar; scattered instances are dots, lesions rings."""
    low, high, scale = canvas.limits_of(scores, limits or prediction.fixed_scale)
    how = {"cmap": canvas.colours(colour_scale), "vmin": low, "vmax": high}
    lesion = truth_values(prediction)
    if scattered(prediction):
        drawn: ScalarMappable = _draw_dots(panel.map, prediction, scores, **how)
        extent, flat = dots_extent(prediction), False
        if lesion is not None:
            _draw_rings(panel.map, prediction, lesion > 0.5)
    else:
        image, extent = rasterize(prediction, scores)
        flat = image.shape[0] == 1
        if interpolate and not flat:
            step, frame = (extent[1] - extent[0]) / image.shape[1], prediction.frame
            spacing, unit = (None, "px") if frame is None or frame.spacing is None else (frame.spacing[0], frame.unit)
            above = f"{above.strip()}, {interpolated_words(step, spacing, unit)}\n".removeprefix(", ")
            image = finer(image, extent)
        drawn = _show(panel.map, image, extent, **how)
        if lesion is not None:
            _outline(panel.map, rasterize(prediction, lesion)[0] > 0.5, extent)
    if not flat:
        canvas._scale_bar(panel.map, prediction, extent)
    _colour_bar(drawn, panel, above + scale, vertical=flat)


def draw_truth(panel: canvas.Panel, prediction: Prediction, truth: np.ndarray) -> None:
    """Lesion, other tissue and instances of unknown label, with a legend."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    palette = ListedColormap([canvas.UNKNOWN, canvas.TISSUE, canvas.LESION]).with_extremes(bad=canvas.PAPER)
    if scattered(prediction):
        kinds = _kinds(np.zeros(prediction.n), truth)
        _draw_dots(panel.map, prediction, kinds, cmap=palette, vmin=-0.5, vmax=2.5)
    else:
        tissue, extent = rasterize(prediction, np.zeros(prediction.n))
        kinds = _kinds(tissue, rasterize(prediction, truth)[0])
        _show(panel.map, kinds, extent, cmap=palette, vmin=-0.5, vmax=2.5)
    canvas.bare(panel.map, "truth")
    panel.bar.set_axis_off()
    names = [("lesion", canvas.LESION), ("other", canvas.TISSUE)]
    names += [("unknown", canvas.UNKNOWN)] if (kinds == 0).any() else []
    boxes = [Patch(facecolor=colour, edgecolor=canvas.INK, lw=0.5, label=name) for name, colour in names]
    where: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 0.3}
    panel.map.legend(handles=boxes, ncols=3, fontsize=8, frameon=False, **where)


def _kinds(tissue: np.ndarray, known: np.ndarray) -> np.ndarray:
    """0 unknown, 1 other, 2 lesion, nan without tissue."""
    return np.where(np.isnan(tissue), np.nan, np.where(np.isnan(known), 0, np.where(known > 0.5, 2, 1)))


def _map_shape(prediction: Prediction) -> tuple[float, float]:
    """Height and width of the map, in cells or, for dots, in coordinate units; a height of 1 is a scan."""
    if scattered(prediction):
        left, right, bottom, top = dots_extent(prediction)
        return bottom - top, right - left
    _plane_coords(prediction)  # refuses scans cut into patches
    rows, columns = rasterize(prediction, np.zeros(prediction.n))[0].shape
    return rows, columns


def _panel_size(shape: tuple[float, float]) -> tuple[float, float]:
    """Width and height of a panel, 4 inches at most, for a map of that shape; wide enough for the words below it."""
    unit = 4.0 / max(shape)
    return max(unit * shape[1], 2.6), max(unit * shape[0], 1.2)


def _show(axes: "Axes", image: np.ndarray, extent: Extent, **how: object) -> "AxesImage":
    smoothing = "nearest" if max(image.shape) <= 500 else "auto"
    aspect = "auto" if image.shape[0] == 1 else "equal"
    return axes.imshow(image, extent=extent, interpolation=smoothing, aspect=aspect, **how)  # type: ignore[arg-type]


def _colour_bar(drawn: "ScalarMappable", panel: canvas.Panel, label: str, vertical: bool) -> None:
    figure = panel.map.get_figure(root=True)
    way = "vertical" if vertical else "horizontal"
    bar = figure.colorbar(drawn, cax=panel.bar, orientation=way, extend="both")  # type: ignore[union-attr]
    panel.bar.tick_params(labelsize=7, color=canvas.INK, labelcolor=canvas.INK)
    bar.outline.set_visible(False)
    if vertical:
        panel.map.set_xlabel(label, **canvas.SMALL)
    else:
        panel.bar.set_xlabel(label.replace(" (", "\n("), **canvas.SMALL)


def _outline(axes: "Axes", inside: np.ndarray, extent: Extent) -> None:
    """Borders of the True cells, white on dark so that they show on every colour."""
    from matplotlib.collections import LineCollection

    lines = list(_borders(inside, extent))
    for colour, width in (("#101010", 1.8), ("white", 0.9)):
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, capstyle="round"), autolim=False)


def _borders(inside: np.ndarray, extent: Extent) -> np.ndarray:
    """(m, 2, 2) line pieces between True cells and the rest, in the coordinates of `extent`."""
    left, right, bottom, top = extent
    wide, high = (right - left) / inside.shape[1], (bottom - top) / inside.shape[0]
    padded = np.pad(inside, 1)
    row, column = np.nonzero(padded[1:-1, 1:] != padded[1:-1, :-1])
    upright = np.stack([column, row, column, row + 1], 1)
    row, column = np.nonzero(padded[1:, 1:-1] != padded[:-1, 1:-1])
    level = np.stack([column, row, column + 1, row], 1)
    pieces = np.concatenate([upright, level]).reshape(-1, 2, 2).astype(np.float64)
    return pieces * (wide, high) + (left, top)
