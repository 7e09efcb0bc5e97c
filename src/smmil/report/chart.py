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
    drawn = [_grid(paper, _ticks(most), _ticks(1.0), axes)]
    if diagonal:
        ends = (paper.right(0), paper.down(0), paper.right(most), paper.down(1))
        drawn.append('<line class="diagonal" x1="{}" y1="{}" x2="{}" y2="{}"/>'.format(*ends))
    drawn += [_path(paper, line) for line in lines]
    drawn += [_dots(paper, line) for line in lines if dots]
    return _figure(title, "".join(drawn), words, [(line.name, f"m{line.slot % SLOTS}") for line in lines])


def histogram_chart(title: str, found: Histogram, *, words: str) -> str:
    """Shares of positive and negative instances per bin of the score."""
    top = float(max(found.positive.max(), found.negative.max())) or 1.0
    paper = _Paper((0, 1), (0, top * 1.05))
    ends = f"score, 0 = {found.lowest:.3g}, 1 = {found.highest:.3g}"
    drawn = [_grid(paper, _ticks(1.0), [0, top / 2, top], (ends, "share of instances"))]
    drawn.append(_area(paper, found.edges, found.negative, "negative"))
    drawn.append(_area(paper, found.edges, found.positive, "positive"))
    legend = [("negative instances", "negative"), ("positive instances", "positive")]
    return _figure(title, "".join(drawn), words, legend)


def _figure(title: str, drawing: str, words: str, legend: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<li><span class="key {kind}"></span>{escape(name)}</li>' for name, kind in legend)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(f"{title}. {words}")}">'
        f'{drawing}</svg><ul class="legend">{keys}</ul></figure>'
    )


def _grid(paper: _Paper, across: Sequence[float], up: Sequence[float], axes: tuple[str, str]) -> str:
    parts = []
    for value in across:
        x = paper.right(value)
        parts.append(f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle">{value:.3g}</text>')
    for value in up:
        y = paper.down(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:.2f}</text>')
    middle, height = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(axes[0])}</text>')
    turned = f'transform="translate(12 {height}) rotate(-90)"'
    parts.append(f'<text class="axis" {turned} text-anchor="middle">{escape(axes[1])}</text>')
    return "".join(parts)


def _path(paper: _Paper, line: Line) -> str:
    points = " ".join(f"{paper.right(x)},{paper.down(y)}" for x, y in zip(line.x, line.y, strict=True))
    return f'<polyline class="line m{line.slot % SLOTS}" points="{points}"/>'


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


def _ticks(most: float) -> list[float]:
    return [most * k / 4 for k in range(5)]
