"""Curves and histograms as SVG that follows the theme of the page; words for those who cannot see them."""

from collections.abc import Sequence
from html import escape

import numpy as np

from smmil.maps.histogram import Histogram
from smmil.report.curves import Line

_WIDTH, _HEIGHT = 340.0, 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 12.0, 12.0, 44.0
SLOTS = 6


class _Paper:
    """Places of data on the drawing."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]):
        self.x, self.y = x, y

    def right(self, value: float) -> float:
        share = (value - self.x[0]) / (self.x[1] - self.x[0])
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def down(self, value: float) -> float:
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def curve_chart(
    title: str,
    axes: tuple[str, str],
    lines: Sequence[Line],
    *,
    words: str,
    most: float = 1.0,
    diagonal: bool = False,
    dots: bool = False,
) -> str:
    """A figure with lines in the unit square (x up to `most`), a legend, and `words` that tell what it shows."""
    paper = _Paper((0, most), (0, 1))
    drawn = [_grid(paper, ticks(most), ticks(1.0), axes)]
    if diagonal:
        ends = (paper.right(0), paper.down(0), paper.right(most), paper.down(1))
        drawn.append('<line class="diagonal" x1="{}" y1="{}" x2="{}" y2="{}"/>'.format(*ends))
    drawn += [_path(paper, line) for line in lines]
    drawn += [_dots(paper, line) for line in lines if dots]
    return _figure(title, "".join(drawn), words, [(line.name, _sample(line)) for line in lines])


def histogram_chart(title: str, found: Histogram, *, words: str) -> str:
    """Shares of positive and negative instances per bin of the score."""
    top = float(max(found.positive.max(), found.negative.max())) or 1.0
    low = found.lowest
    high = found.highest if found.highest > low else low + 1.0  # all scores alike: all in the first bin
    paper = _Paper((low, high), (0, top * 1.05))
    drawn = [_grid(paper, ticks_between(low, high), ticks(top * 1.05), ("score", "share of instances"))]
    edges = low + found.edges * (high - low)
    drawn.append(_area(paper, edges, found.negative, "negative"))
    drawn.append(_area(paper, edges, found.positive, "positive"))
    legend = [(f"{kind} instances", f'<span class="key {kind}"></span>') for kind in ("negative", "positive")]
    return _figure(title, "".join(drawn), words, legend)


def _figure(title: str, drawing: str, words: str, legend: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f"<li>{key}{escape(name)}</li>" for name, key in legend)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(f"{title}. {words}")}">'
        f'{drawing}</svg><ul class="legend">{keys}</ul></figure>'
    )


def _grid(paper: _Paper, across: Sequence[float], up: Sequence[float], axes: tuple[str, str]) -> str:
    parts = []
    for value, words in zip(across, tick_words(across), strict=True):
        x = paper.right(value)
        parts.append(f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{words}</text>')
    for value, words in zip(up, tick_words(up), strict=True):
        y = paper.down(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{words}</text>')
    middle, height = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(axes[0])}</text>')
    turned = f'transform="translate(12 {height}) rotate(-90)"'
    parts.append(f'<text class="axis" {turned} text-anchor="middle">{escape(axes[1])}</text>')
    return "".join(parts)


def _path(paper: _Paper, line: Line) -> str:
    points = " ".join(f"{paper.right(x)},{paper.down(y)}" for x, y in zip(line.x, line.y, strict=True))
    return f'<polyline class="{_pen(line)}" points="{points}"/>'


def _pen(line: Line) -> str:
    """Classes of a line: colour and dashes."""
    dash = line.slot if line.dash is None else line.dash
    return f"line m{line.slot % SLOTS} d{dash % SLOTS}"


def _sample(line: Line) -> str:
    """A piece of the line for the legend, with its colour and dashes."""
    return f'<svg class="sample" viewBox="0 0 44 10" aria-hidden="true"><path class="{_pen(line)}" d="M1 5h42"/></svg>'


def _dots(paper: _Paper, line: Line) -> str:
    """Dots whose area grows with the number of cases."""
    largest = max(line.sizes, default=1)
    return "".join(
        f'<circle class="dot m{line.slot % SLOTS}" cx="{paper.right(x)}" cy="{paper.down(y)}" '
        f'r="{2.5 + 4 * np.sqrt(size / largest):.1f}"><title>{size} cases: said {x:.2f}, came true {y:.2f}</title>'
        "</circle>"
        for x, y, size in zip(line.x, line.y, line.sizes, strict=True)
    )


def _area(paper: _Paper, edges: np.ndarray, shares: np.ndarray, kind: str) -> str:
    x, y = np.repeat(edges, 2), np.concatenate([[0], np.repeat(shares, 2), [0]])
    points = " ".join(f"{paper.right(a)},{paper.down(b)}" for a, b in zip(x, y, strict=True))
    return f'<polygon class="area {kind}" points="{points}"/>'


def ticks(most: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to at most `most`: about five steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(most / about))
    step = min((f * power for f in (1, 2, 5, 10)), key=lambda s: abs(most / s - about))
    return [step * k for k in range(int(most / step * (1 + 1e-9)) + 1)]


def ticks_between(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, as far apart as those from 0 would be."""
    step = ticks(high - low)[1]
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return [float(k) * step for k in range(int(first), int(last) + 1)]


def tick_words(values: Sequence[float]) -> list[str]:
    """The numbers with as many digits as their distance needs, and no more."""
    step = values[1] - values[0] if len(values) > 1 else 1.0
    digits = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    plain = digits <= 6 and max(map(abs, values), default=0.0) < 1e6
    return ["0" if value == 0 else f"{value:.{digits}f}" if plain else f"{value:.3g}" for value in values]
