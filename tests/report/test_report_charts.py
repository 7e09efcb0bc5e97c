"""Charts: round ticks, and lines that can be told apart without colour."""

import re

import numpy as np
import pytest

from smmil.maps.charts import Histogram
from smmil.prediction import Prediction
from smmil.report.charts import SLOTS, _curve_chart, _histogram_chart, _Line, _roc_lines, _tick_words, _ticks
from smmil.web import static_text


@pytest.mark.parametrize(
    ("most", "words"),
    [(1, "0 0.2 0.4 0.6 0.8 1.0"), (8, "0 2 4 6 8"), (0.19, "0 0.05 0.10 0.15"), (0.55, "0 0.1 0.2 0.3 0.4 0.5"),
     (0.031, "0 0.005 0.010 0.015 0.020 0.025 0.030"), (47, "0 10 20 30 40")],
)  # fmt: skip
def test_ticks_are_round_with_no_more_digits_than_needed(most, words):
    assert " ".join(_tick_words(_ticks(most))) == words


@pytest.mark.parametrize("most", np.geomspace(1e-4, 1e4, 60))
def test_there_are_never_too_many_or_too_few_ticks(most):
    found = _ticks(most)
    assert 3 <= len(found) <= 9
    assert found[-1] <= most * (1 + 1e-9)
    assert float(_tick_words(found)[-1]) == pytest.approx(found[-1])


def test_the_ticks_of_a_histogram_say_where_they_stand():
    shares = Histogram(np.linspace(0, 1, 5), np.array([0, 0, 0.3, 0.7]), np.array([0.6, 0.4, 0, 0]), -1.0, 3.0)
    drawn = _histogram_chart("t", shares, words="w")
    up = {words: float(y) - 4 for y, words in re.findall(r'y="([\d.]+)" text-anchor="end">([\d.]+)<', drawn)}
    assert list(up) == ["0", "0.2", "0.4", "0.6"]
    top = min(float(p.split(",")[1]) for p in re.search(r'positive" points="([^"]+)"', drawn)[1].split())
    # the highest bar is 0.7: half a step above the tick at 0.6
    assert up["0.6"] - top == pytest.approx((up["0.4"] - up["0.6"]) / 2, abs=0.2)


def test_the_axis_of_a_histogram_counts_scores():
    """Bins are quarters from -1 to 3: the bar of the third one begins at the tick of score 1."""
    shares = Histogram(np.linspace(0, 1, 5), np.array([0, 0, 1.0, 0]), np.array([1.0, 0, 0, 0]), -1.0, 3.0)
    drawn = _histogram_chart("t", shares, words="w")
    across = {
        words: float(x) for x, words in re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">(-?[\d.]+)<', drawn)
    }
    assert list(across) == ["-1", "0", "1", "2", "3"]
    points = [p.split(",") for p in re.search(r'positive" points="([^"]+)"', drawn)[1].split()]
    highest = min(float(y) for _, y in points)
    assert [float(x) for x, y in points if float(y) == highest] == [across["1"], across["2"]]


def test_scores_that_are_all_alike_still_have_an_axis():
    shares = Histogram(np.linspace(0, 1, 5), np.array([1.0, 0, 0, 0]), np.array([1.0, 0, 0, 0]), 2.0, 2.0)
    assert ">2.0<" in _histogram_chart("t", shares, words="w")


def line(slot, **more):
    return _Line(f"model {slot}", slot, np.array([0, 1]), np.array([0, 1]), **more)


def test_the_legend_shows_each_line_as_it_is_drawn():
    drawn = _curve_chart("t", ("x", "y"), [line(i) for i in range(3)], words="w")
    lines = re.findall(r'<polyline class="([^"]+)"', drawn)
    samples = re.findall(r'<path class="([^"]+)"', drawn)
    assert lines == samples == ["line m0 d0", "line m1 d1", "line m2 d2"]


def test_dashes_of_all_slots_differ():
    style = static_text("report.css")
    dashes = dict(re.findall(r"\.line\.d(\d) \{ stroke-dasharray: ([\d. ]+); \}", style))
    assert set(dashes) == {str(i) for i in range(1, SLOTS)}  # the first is a whole line
    assert len(set(dashes.values())) == SLOTS - 1


def test_classes_of_a_model_can_be_told_apart():
    rng = np.random.default_rng(0)
    cases = [Prediction(f"c{i}", rng.dirichlet([1, 1, 1]), [0.0], y=i % 3) for i in range(30)]
    assert [(one.slot, one.dash) for one in _roc_lines({"m": cases})] == [(0, 0), (1, 1), (2, 2)]
    two = [(one.slot, one.dash) for one in _roc_lines({"m": cases, "n": cases})]
    assert two == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
