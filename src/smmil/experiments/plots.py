"""Plots of the figures: curves, forests, histograms, maps and rank diagrams, the same bytes for the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from smmil.errors import DataError
from smmil.evaluate.instances import instance_score
from smmil.evaluate.metrics import metric_name
from smmil.evaluate.resampling import p_text
from smmil.evaluate.significance import friedman_nemenyi
from smmil.experiments.results import SURE
from smmil.files import replacing, write_text
from smmil.maps import canvas
from smmil.maps.charts import draw_histogram, friedman_verdict, rank_diagram, score_shares
from smmil.maps.raster import dots_extent, rasterize, scattered, truth_values
from smmil.maps.score_maps import draw_scores, draw_truth
from smmil.prediction import Prediction

Point = tuple[Any, float, float]
_COLOURS = ("#1b6ca8", "#d95f02", "#4d9221", "#7b3294", "#8c6d31", "#636363")
_OPTIONS = {
    "alpha": "strength of smoothing α (0: none)",
    "steps": "steps of smoothing T (0: none)",
    "penalty.weight": "weight of the penalty",
}
_WIDE = 10.0  # above this ratio of the largest to the smallest number the axis is logarithmic
_ROW = 0.26  # inches of a variant
_WIDTH = 40  # characters below a panel
_ABOVE, _BELOW = "#1b6ca8", "#d95f02"
_STYLES = ("o-", "s-", "^-", "D-", "v-", "P-", "X-", "*-")
TAILS = (0.5, 99.5)  # percentiles of all scores of a model that become 0 and 1: one outlier must not hide the rest
BINS = 40
_X_LABEL = (
    f"score, the same {BINS} bins for all models: 0 and 1 are the {TAILS[0]} and {TAILS[1]} percentile of a model's "
    "scores; what lies beyond is in the outermost bins"
)
_LONGEST, _NARROWEST, _STRIP = 2.6, 1.7, (7.0, 0.42)  # inches: sides of a slide's panel, width and height of a scan's
_COLUMNS = 6
_SCALE = "viridis"
_MEANING = (
    "score, one scale for all maps: 0 and 1 are the 2nd and 98th percentile of that model's scores in this case "
    "(colours compare instances of a map, not models)"
)
ENOUGH = 10  # independent data sets from which Friedman's approximation holds (Demšar 2006)


def _write(figure: Figure, title: str, path: Path) -> list[Path]:
    """Set the title, wrapped to the width with its line breaks kept, and write the figure."""
    words = "\n".join(canvas.plain(part, 300) for part in title.split("\n"))
    figure.suptitle(_broken(words, figure, 13), fontsize=9, color=canvas.INK, parse_math=False)
    return _write_both(figure, path)


def _write_both(figure: Figure, path: Path) -> list[Path]:
    """Write path.png and path.svg with reproducible bytes: no dates, fixed ids inside the SVG."""
    picture, drawing = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    canvas.write_png(figure, picture)
    with rc_context({"svg.hashsalt": "smmil"}), replacing(drawing) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
    return [picture, drawing]


def _broken(text: str, figure: Figure, per_inch: int = 14) -> str:
    """Wrap text to the width of the figure, `per_inch` characters to the inch; existing line breaks are kept."""
    room = max(int(figure.get_size_inches()[0] * per_inch), 30)
    return "\n".join(line for part in text.split("\n") for line in wrap(part, room))


def _label(ax: Axes, x: str, y: str = "") -> None:
    """Labels of a panel in small print, no frame at its top and right."""
    ax.set_xlabel(x, **canvas.SMALL)
    ax.set_ylabel(y, **canvas.SMALL)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_curves(
    lines: Mapping[str, Sequence[Point]], path: Path, label: str, title: str, learned: float | None = None
) -> list[Path]:
    """One panel per metric: mean with one standard deviation against a setting; texts ("exact") follow numbers.

    learned  where the learned value ended on average; its result is drawn there with a star
    """
    figure = canvas.new_figure(3.4 * len(lines) + 0.4, 3.5, layout="constrained")
    axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for ax, (metric, points), colour in zip(axes, lines.items(), _COLOURS * len(lines), strict=False):
        _curve(ax, list(points), learned, colour)
        wide = _is_wide([point[0] for point in points if _is_number(point[0])])
        _label(ax, canvas.plain(_OPTIONS.get(label, label)) + (", logarithmic" if wide else ""), metric_name(metric))
        ax.margins(x=0.08, y=0.1)
    _legend(figure, [point for points in lines.values() for point in points], learned)
    return _write(figure, title, path)


def _is_number(value: Any) -> bool:
    """Whether a setting is a number, which `true` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve(ax: Axes, points: list[Point], learned: float | None, colour: str) -> None:
    numbers = sorted((point for point in points if _is_number(point[0])), key=lambda point: point[0])
    words = [point for point in points if not _is_number(point[0])]
    values = [point[0] for point in numbers]
    least = min((value for value in values if value > 0), default=1)
    scale = (lambda value: float(np.log1p(value / least))) if _is_wide(values) else float
    places = {value: scale(value) for value in values}
    ticks = {place: f"{value:g}" for value, place in places.items()}
    if numbers:
        x, y, s = [places[v] for v in values], [p[1] for p in numbers], np.nan_to_num([p[2] for p in numbers])
        ax.errorbar(x, y, s, color=colour, marker="o", ms=4, lw=1.2, capsize=3)
    on_axis = list(places.values())
    free, step = max(on_axis, default=0.0), float(np.ptp(on_axis or [0.0])) / max(len(on_axis) - 1, 1) or 1.0
    for word, y_, s_ in words:
        if word == "learned" and learned is not None:
            x_ = float(np.interp(learned, values, on_axis)) if numbers else learned
        else:
            free += step
            x_, ticks[free] = free, str(word)
        ax.errorbar([x_], [y_], [np.nan_to_num(s_)], color=colour, mec="white", marker="*", ms=12, capsize=3, zorder=3)
    ax.set_xticks(list(ticks), list(ticks.values()))


def _is_wide(values: Sequence[float]) -> bool:
    """Whether the axis of these numbers is logarithmic."""
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) / min(positive) > _WIDE


def _legend(figure: Figure, points: Sequence[Point], learned: float | None) -> None:
    """Legend of dots, bars and stars, below the panels."""
    grey: dict[str, Any] = {"color": "#555555", "mec": "white"}
    marks = [Line2D([], [], marker="o", ms=5, lw=1.2, label="mean over folds and seeds", **grey)]
    marks.append(Line2D([], [], marker="|", ms=11, lw=0, mew=1.2, color="#555555", label="± one standard deviation"))
    words = [str(word) for word in dict.fromkeys(point[0] for point in points) if not _is_number(word)]
    if "learned" in words and learned is not None:
        words.remove("learned")
        caption = f"learned, where it ended on average ({learned:.3g})"
        marks.append(Line2D([], [], marker="*", ms=11, lw=0, label=caption, **grey))
    if words:
        marks.append(Line2D([], [], marker="*", ms=11, lw=0, label=canvas.plain(", ".join(words)), **grey))
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8, frameon=False)


def _draw_differences(rows: DataFrame, path: Path, title: str) -> list[Path]:
    """Forest plot, a panel per metric: difference of each variant from its reference with the 95 % interval.

    rows  of one data set, as from `_comparisons` or `_pair_differences`; what has no difference is left out
    """
    rows = rows[rows["difference"].notna()]
    metrics, names = list(dict.fromkeys(rows["metric"])), list(dict.fromkeys(rows["variant"]))
    others = dict(zip(rows["variant"], rows["reference"], strict=True))
    figure = canvas.new_figure(2.9 * len(metrics) + 1.5, _ROW * len(names) + 1.6, layout="constrained")
    axes = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    for ax, metric in zip(axes, metrics, strict=True):
        mine = rows[rows["metric"] == metric].set_index("variant").reindex(names)
        for place, row in enumerate(mine.to_dict("records")):
            colour = _ABOVE if row["difference"] > 0 else _BELOW
            ax.plot([row["difference_low"], row["difference_high"]], [place, place], color=colour, lw=1.4)
            ax.plot(row["difference"], place, "o", ms=5, mec=colour, mfc=colour if row["p_holm"] < SURE else "white")
        ax.axvline(0, color=canvas.INK, lw=0.8)
        resampled = dict.fromkeys(mine["resampled"].dropna())  # fewer where only some cases take part in a metric
        _label(ax, "\n".join([metric_name(metric), *(fill(text, _WIDTH) for text in resampled)]))
        ax.grid(axis="x", lw=0.4, alpha=0.5)
    same = len(set(others.values())) == 1
    labels = names if same else [f"{name} − {others[name]}" for name in names]
    axes[0].set_yticks(range(len(names)), [canvas.plain(label) for label in labels], fontsize=8)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    from_whom = f"difference from {next(iter(others.values()))}; " if same else ""
    caption = f"{from_whom}95 % percentile intervals; filled: p < {SURE} after Holm's correction"
    return _write(figure, f"{title}\n{caption}", path)


def _draw_difficulty(
    lines: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]], path: Path, label: str, title: str
) -> list[Path]:
    """A panel per metric, a line per variant: mean with one standard deviation against an option of the data sets."""
    figure = canvas.new_figure(3.4 * len(lines) + 1.4, 3.4, layout="constrained")
    axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for ax, (metric, variants) in zip(axes, lines.items(), strict=True):
        for (name, points), style in zip(variants.items(), _STYLES * len(variants), strict=False):
            x, y, s = (np.array(part, dtype=float) for part in zip(*sorted(points), strict=True))
            ax.errorbar(x, y, np.nan_to_num(s), fmt=style, ms=4, lw=1.2, capsize=2, label=canvas.plain(name))
        _label(ax, canvas.plain(label), metric_name(metric))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return _write(figure, f"{title}\nbars: one standard deviation over folds and seeds", path)


def _draw_histograms(found: Mapping[str, Sequence[Prediction]], path: Path, title: str, columns: int = 4) -> list[Path]:
    """Shares of positive and of negative instances over the scaled score, a panel per model."""
    wide = min(len(found), columns)
    rows = -(-len(found) // wide)
    figure = canvas.new_figure(max(2.5 * wide, 5.5) + 0.6, 1.9 * rows + 1.1, layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False, sharex=True)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    for number, (ax, (name, predictions)) in enumerate(zip(axes.flat, found.items(), strict=False)):
        draw_histogram(ax, score_shares(_without_tails(predictions), BINS), name)
        ax.tick_params(labelbottom=number + wide >= len(found))  # nothing below it
    figure.supylabel("share of the instances of a class", **canvas.SMALL)
    figure.supxlabel(_broken(_X_LABEL, figure), **canvas.SMALL)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    return _write(figure, title, path)


def _without_tails(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The predictions with one score each, cut off at the outermost percentiles of the whole set."""
    scores = [instance_score(p) for p in predictions]
    low, high = np.percentile(np.concatenate(scores), TAILS)
    return [replace(p, scores=np.clip(s, low, high)[:, None]) for p, s in zip(predictions, scores, strict=True)]


def _draw_maps(models: Mapping[str, Prediction], path: Path, title: str) -> list[Path]:
    """Truth and map of every model for one case, with one labelled colour bar."""
    first = next(iter(models.values()))
    truth = truth_values(first)
    figure, axes = _grid(first, len(models) + (truth is not None), below=0.75)
    panels = axes[: len(models) + (truth is not None)]
    if truth is not None:
        _draw(panels[0], draw_truth, first, truth)
    for ax, (name, prediction) in zip(panels[truth is not None :], models.items(), strict=True):
        _draw(ax, draw_scores, prediction, _scaled(instance_score(prediction)), (0.0, 1.0), _SCALE)
        ax.set_xlabel("")
        shown = f"{name}: P = {prediction.probs[-1]:.3f}" if prediction.target_kind == "class" else None
        canvas.bare(ax, shown or canvas.panel_title(name, prediction))
    scale = ScalarMappable(Normalize(0, 1), canvas.colours(_SCALE))
    size: dict[str, Any] = {"shrink": min(1.0, 4 / figure.get_size_inches()[0]), "aspect": 35, "pad": 0.02}
    bar = figure.colorbar(scale, ax=panels, location="bottom", extend="both", **size)
    bar.ax.tick_params(labelsize=7, color=canvas.INK, labelcolor=canvas.INK)
    bar.outline.set_visible(False)
    label = f"{_MEANING}{'' if truth is None else '; outline or ring: lesion'}"
    bar.set_label(_broken(label, figure), **canvas.SMALL)
    return _write(figure, title, path)


def _scaled(scores: np.ndarray) -> np.ndarray:
    """The scores of a case with their 2nd percentile at 0 and their 98th at 1; a constant map is 0.5 everywhere."""
    low, high, _ = canvas.limits_of(scores, None)
    return (scores - low) / (high - low)


def _draw_examples(cases: Sequence[Prediction], agreement: Sequence[float], path: Path, title: str) -> list[Path]:
    """The labels of some cases, each with the share of neighbouring pairs that agree."""
    figure, axes = _grid(cases[0], len(cases), below=0.5)
    for ax, case, share in zip(axes, cases, agreement, strict=False):
        truth = truth_values(case)
        assert truth is not None
        _draw(ax, draw_truth, case, truth)
        canvas.bare(ax, f"{case.id}: {share:.1%} of pairs agree")
    entries: dict[str, Any] = {}  # of the legends of all panels, merged into one below them
    for legend in filter(None, (ax.get_legend() for ax in axes[: len(cases)])):
        entries |= dict(zip([text.get_text() for text in legend.get_texts()], legend.legend_handles, strict=True))
        legend.remove()
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": len(entries), "fontsize": 8, "frameon": False}
    figure.legend(entries.values(), entries.keys(), **below)
    return _write(figure, title, path)


def _grid(case: Prediction, count: int, below: float) -> tuple[Figure, list[Axes]]:
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
        image = rasterize(case, np.zeros(case.n))[0]
        if image.ndim > 2:
            raise DataError(f"{case.id}: this picture shows one or two coordinates, got {image.ndim}; see smmil report")
        shape = image.shape
        if shape[0] == 1:
            return _STRIP
    unit = _LONGEST / max(shape)
    return max(unit * shape[1], _NARROWEST), max(unit * shape[0], 1.0)


def _draw(ax: Axes, pen: Any, prediction: Prediction, *what: Any) -> None:
    """Call a drawing function of `maps` on a panel and drop the colour bar it adds."""
    figure: Any = ax.get_figure(root=True)
    bar = figure.add_axes((0, 0, 0.1, 0.1))
    pen(canvas.Panel(ax, bar), prediction, *what)
    bar.remove()


def _draw_ranks(values: DataFrame, path: Path, title: str, notes: Sequence[str] = ()) -> list[Path]:
    """Demšar's diagram as PNG and SVG, and path.txt with its numbers; all three contain the warning.

    values  models x columns (data set, extractor, metric), higher is better
    notes   sentences about what is not ranked; all three contain them too
    """
    found = friedman_nemenyi(values)
    listed: list[Any] = list(values.columns)
    columns = [f"{f'{data} {extractor}'.strip()}: {metric_name(metric)}" for data, extractor, metric in listed]
    cautions = [*filter(None, [_rank_warning([str(column[0]) for column in listed])]), *notes]
    figure = rank_diagram(found, room=2.1 + 0.25 * len(notes))
    figure.supxlabel(_broken("\n".join([_verdict(found), *cautions]), figure), **canvas.SMALL)
    numbers = path.with_name(f"{path.name}.txt")
    write_text(numbers, _text(found, columns, title, cautions))
    return [*_write(figure, title, path), numbers]


def _rank_warning(datasets: list[str]) -> str:
    """Warning that there are too few independent data sets for the test; empty where there are enough."""
    different = len(set(datasets))
    if different >= ENOUGH:
        return ""
    sets = "one data set" if different == 1 else f"{different} data sets"
    return (
        f"Caution: {len(datasets)} columns of {sets}. Metrics, extractors and splits of one data set are not "
        f"independent data sets, and Nemenyi's test wants {ENOUGH} or more: read the order, not the bars; paired "
        "tests over patients (comparisons.md) say more."
    )


def _verdict(found: dict[str, Any]) -> str:
    bars = "Bars join models that Nemenyi's test does not tell apart."
    return f"Mean rank, 1 is best. {friedman_verdict(found)}. {bars}"


def _text(found: dict[str, Any], columns: list[str], title: str, cautions: list[str]) -> str:
    """Text file with the numbers of the diagram."""
    ranks = [f"  {rank:6.3f}  {name}" for name, rank in found["mean_ranks"].items()]
    pairs = [f"  {p['model']} - {p['other']}: {p['difference']:.3f}, p = {p_text(p['p'])}" for p in found["pairs"]]
    lines = [title, "", *(line for words in cautions for line in (words, "")), _verdict(found), ""]
    lines += ["Mean ranks:", *ranks, ""]
    lines += [f"Critical difference at {found['alpha']:g}: {found['critical_difference']:.3f}", ""]
    lines += ["Columns:", *(f"  {c}" for c in columns), "", "Differences of mean ranks (Nemenyi):", *pairs, ""]
    return "\n".join(lines)
