"""Figures over many variants at once: differences with intervals, and metrics by the difficulty of the data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from smmil.experiments.certainty_page import SURE
from smmil.experiments.drawing import title_above, write_both
from smmil.experiments.metric_words import metric_name
from smmil.maps import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_ROW = 0.26  # inches of a variant
_WIDTH = 40  # characters below a panel
_ABOVE, _BELOW = "#1b6ca8", "#d95f02"
_STYLES = ("o-", "s-", "^-", "D-", "v-", "P-", "X-", "*-")


def differences(rows: "DataFrame", path: Path, title: str) -> list[Path]:
    """A panel per metric: how far each variant is above the one it is compared with, and the 95 % interval.

    rows  of one data set, as from `certainty.comparisons` or `pair_differences`; what has no difference is left out
    """
    rows = rows[rows["difference"].notna()]
    metrics, names = list(dict.fromkeys(rows["metric"])), list(dict.fromkeys(rows["variant"]))
    others = dict(zip(rows["variant"], rows["reference"], strict=True))
    figure = canvas.new_figure(2.9 * len(metrics) + 1.5, _ROW * len(names) + 1.6, layout="constrained")
    axes = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    for ax, metric in zip(axes, metrics, strict=True):
        _whiskers(ax, rows[rows["metric"] == metric].set_index("variant").reindex(names), metric)
    same = len(set(others.values())) == 1
    labels = names if same else [f"{name} − {others[name]}" for name in names]
    axes[0].set_yticks(range(len(names)), [canvas.plain(label) for label in labels], fontsize=8)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    from_whom = f"difference from {next(iter(others.values()))}; " if same else ""
    told = f"{from_whom}95 % percentile intervals; filled: p < {SURE} after Holm's correction"
    title_above(figure, f"{title}\n{told}")
    return write_both(figure, path)


def _whiskers(ax: "Axes", mine: "DataFrame", metric: str) -> None:
    for place, row in enumerate(mine.to_dict("records")):
        colour = _ABOVE if row["difference"] > 0 else _BELOW
        ax.plot([row["difference_low"], row["difference_high"]], [place, place], color=colour, lw=1.4)
        ax.plot(row["difference"], place, "o", ms=5, mec=colour, mfc=colour if row["p_holm"] < SURE else "white")
    ax.axvline(0, color=canvas.INK, lw=0.8)
    words = dict.fromkeys(mine["resampled"].dropna())  # per panel: fewer where only some cases take part in a metric
    ax.set_xlabel("\n".join([metric_name(metric), *(fill(text, _WIDTH) for text in words)]), **canvas.SMALL)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", lw=0.4, alpha=0.5)


def by_difficulty(
    lines: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]], path: Path, label: str, title: str
) -> list[Path]:
    """A panel per metric, a line per variant: mean with one standard deviation against an option of the data sets."""
    figure = canvas.new_figure(3.4 * len(lines) + 1.4, 3.4, layout="constrained")
    axes = figure.subplots(1, len(lines), squeeze=False)[0]
    for ax, (metric, variants) in zip(axes, lines.items(), strict=True):
        for (name, points), style in zip(variants.items(), _STYLES * len(variants), strict=False):
            x, y, s = (np.array(part, dtype=float) for part in zip(*sorted(points), strict=True))
            ax.errorbar(x, y, np.nan_to_num(s), fmt=style, ms=4, lw=1.2, capsize=2, label=canvas.plain(name))
        ax.set_xlabel(canvas.plain(label), **canvas.SMALL)
        ax.set_ylabel(metric_name(metric), **canvas.SMALL)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    title_above(figure, f"{title}\nbars: one standard deviation over folds and seeds")
    return write_both(figure, path)
