"""Figures without global state, written atomically with reproducible bytes."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from smmil.errors import check_choice
from smmil.evaluate.case_words import case_words
from smmil.files import replacing
from smmil.prediction import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Panel(NamedTuple):
    """A place for a map and the place of its colour bar or legend."""

    map: "Axes"
    bar: "Axes"


SCALES = ("viridis", "cividis", "magma")
LESION, TISSUE, UNKNOWN, PAPER, INK = "#d95f02", "#c9ccd1", "#bcd0ee", "#f6f5f2", "#22252a"
SMALL: dict[str, Any] = {"fontsize": 8, "color": INK, "parse_math": False}


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> "Figure":
    """An empty figure in inches that draws itself without a screen."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if Path(matplotlib.matplotlib_fname()).resolve().parent == Path.cwd():  # such settings may start programs
        matplotlib.rcdefaults()
    figure = Figure(figsize=(width, height), dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _row_of_panels(count: int, width: float, height: float) -> tuple["Figure", list["Panel"]]:
    """A figure with panels of that size in inches side by side, each with room for a colour bar below."""
    side, gap, top, below = 0.25, 0.3, 0.62, 1.2
    figure = new_figure(2 * side + count * width + (count - 1) * gap, top + height + below)
    panels = []
    for left in side + np.arange(count) * (width + gap):
        bar = _place(figure, left + 0.1 * width, below - 0.48, 0.8 * width, 0.11)
        panels.append(Panel(_place(figure, left, below, width, height), bar))
    return figure, panels


def _column_of_panels(count: int, width: float, height: float) -> tuple["Figure", list["Panel"]]:
    """A figure with wide, flat panels below each other, each with room for a colour bar at its right."""
    side, right, top, between = 0.25, 0.8, 0.4, 0.62
    figure = new_figure(side + width + right, top + count * (height + between))
    panels = []
    for bottom in (between - 0.27 + np.arange(count) * (height + between))[::-1]:
        bar = _place(figure, side + width + 0.12, bottom, 0.1, height)
        panels.append(Panel(_place(figure, side, bottom, width, height), bar))
    return figure, panels


def _bars_and_band(width: float, height: float) -> tuple["Figure", "Axes", "Axes"]:
    """A figure with a large panel of that size in inches and a low one below it."""
    left, right, top, band, below = 0.75, 0.8, 0.55, 0.24, 0.55
    figure = new_figure(left + width + right, top + height + 0.12 + band + below)
    bars = _place(figure, left, below + band + 0.12, width, height)
    return figure, bars, _place(figure, left, below, width, band)


def _place(figure: "Figure", left: float, bottom: float, width: float, height: float) -> "Axes":
    wide, high = figure.get_size_inches()
    return figure.add_axes((left / wide, bottom / high, width / wide, height / high))


def write_png(figure: "Figure", path: str | Path) -> Path:
    """The figure as PNG without date or version, so the same picture gives the same bytes."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return Path(path)


def colours(name: str) -> Any:
    """One of the colour scales that colour-blind readers can follow; cells without tissue take the paper's colour."""
    from matplotlib import colormaps

    return colormaps[check_choice(name, SCALES, "colour scale")].with_extremes(bad=PAPER)


def palette(name: str) -> str:
    """256 colours of a scale as base64 of red, green and blue bytes, for pages."""
    rgb = colours(name)(np.arange(256))[:, :3]
    return base64.b64encode(np.rint(rgb * 255).astype(np.uint8).tobytes()).decode()


def plain(text: str, longest: int = 60) -> str:
    """Text that is safe to draw: one line, printable, not too long."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def headline(prediction: Prediction) -> str:
    """Id, label and probability of a case in one line; of a target that is no class what was predicted and is true."""
    if prediction.target_kind != "class":
        return f"{plain(prediction.id)}  ·  {plain(case_words(prediction).text, 120)}"
    label = "label unknown" if prediction.y is None else f"label {prediction.y}"
    if len(prediction.probs) > 2:
        best = int(prediction.probs.argmax())
        return f"{plain(prediction.id)}  ·  {label}  ·  P(class {best}) = {prediction.probs[best]:.3f}"
    return f"{plain(prediction.id)}  ·  {label}  ·  P(positive) = {prediction.positive_prob:.3f}"


def label_text(prediction: Prediction) -> str:
    """What is known of a case, in few words: its class, or the truth of another target."""
    if prediction.target_kind != "class":
        truth = case_words(prediction).truth
        return f"true: {plain(truth)}" if truth else "label unknown"
    return "label unknown" if prediction.y is None else f"label {prediction.y}"


def panel_title(name: str, prediction: Prediction) -> str:
    """Name of a model above its map, with what it predicted where that is short."""
    if prediction.target_kind != "class":
        return f"{name}: {plain(case_words(prediction).said, 48)}"
    return f"{name}: P = {prediction.probs[-1]:.3f}" if len(prediction.probs) < 3 else name


def limits_of(values: np.ndarray, given: tuple[float, float] | None) -> tuple[float, float, str]:
    """Lowest and highest value of the colour scale and a label for them."""
    if given is not None:
        return float(given[0]), float(given[1]), f"common scale {given[0]:.3g} to {given[1]:.3g}"
    low, high = (float(v) for v in np.percentile(values, (2, 98)))
    label = f"own scale {low:.3g} to {high:.3g} (2nd to 98th percentile)"
    return (low, high, label) if high > low else (low - 0.5, high + 0.5, label)


def _write_with_headline(figure: "Figure", headline: str, path: str | Path) -> Path:
    """The figure as PNG with a line of text on top."""
    top = 1 - 0.08 / figure.get_size_inches()[1]
    figure.text(0.5, top, headline, ha="center", va="top", fontsize=10, color=INK, parse_math=False)
    return write_png(figure, path)


def bare(axes: "Axes", title: str) -> None:
    """No ticks, no frame, a small title."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(PAPER)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(plain(title, 48), fontsize=9, color=INK, parse_math=False)


def _scale_bar(axes: "Axes", prediction: Prediction, extent: tuple[float, ...]) -> None:
    """A bar of a round length below the map; in mm or µm when the spacing is known, else in level-0 pixels."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    frame = prediction.frame
    spacing, unit = (frame.spacing[0], frame.unit) if frame and frame.spacing else (1.0, "px")
    length = _round_length((extent[1] - extent[0]) * spacing / 3)
    left, right = extent[0], extent[0] + length / spacing
    inches = axes.get_figure(root=True).dpi_scale_trans  # type: ignore[union-attr]
    below = blended_transform_factory(axes.transData, axes.transAxes) + ScaledTranslation(0, -0.09, inches)
    axes.plot([left, right], [0, 0], color=INK, lw=2, transform=below, clip_on=False, solid_capstyle="butt")
    right_of_bar = below + ScaledTranslation(0.07, 0, inches)
    axes.text(right, 0, _length_words(length, unit), va="center", ha="left", transform=right_of_bar, **SMALL)


def _round_length(about: float) -> float:
    """The largest of 1, 2, 5 times a power of ten that is not above `about`."""
    power = 10.0 ** np.floor(np.log10(about))
    return float(max(f * power for f in (1, 2, 5) if f * power <= about * (1 + 1e-9)))


def _length_words(length: float, unit: str) -> str:
    """A length in words: 2000 um is 2 mm."""
    if unit == "um":
        return f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
    return f"{length:,.10g} {'px (level 0)' if unit == 'px' else unit}"
