"""Shrinking gives the exact mean over the area of each output pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pyramids import noise

from smmil.images.slide import _resample


def overlap(a: float, b: float, c: float, d: float) -> float:
    return max(0.0, min(b, d) - max(a, c))


def slow_mean(region: np.ndarray, left: float, top: float, step: float, width: int, height: int) -> np.ndarray:
    """The definition, pixel by pixel: sum of value times shared area, divided by the area."""
    out = np.zeros((height, width, 3))
    for i in range(height):
        for j in range(width):
            y, x = top + i * step, left + j * step
            for row in range(region.shape[0]):
                for column in range(region.shape[1]):
                    share = overlap(y, y + step, row, row + 1) * overlap(x, x + step, column, column + 1)
                    out[i, j] += share * region[row, column]
    return out / step**2


@settings(max_examples=40, deadline=None)
@given(st.floats(1.01, 4.3), st.floats(0, 2), st.floats(0, 2), st.integers(1, 4), st.integers(1, 4))
def test_every_output_pixel_is_the_mean_of_its_area(step, left, top, width, height):
    region = noise(int(np.ceil(top + height * step)), int(np.ceil(left + width * step)))
    error = _resample(region, left, top, step, width, height) - slow_mean(region, left, top, step, width, height)
    assert np.abs(error).max() <= 0.51


@pytest.mark.parametrize("step", [2, 3, 4, 6, 7, 16])
def test_whole_steps_give_the_mean_over_whole_pixels(step):
    region = noise(5 * step + 2, 4 * step + 1)
    expected = region[2:, 1:].reshape(5, step, 4, step, 3).mean((1, 3))
    assert np.abs(_resample(region, 1, 2, step, 4, 5) - expected).max() <= 0.5001


def test_an_edge_touches_one_output_pixel_and_divides_it_by_area():
    region = np.zeros((30, 30, 3), np.uint8)
    region[:, 10:] = 250
    row = _resample(region, 0, 0, 1.5, 20, 20)[5, :, 0]
    assert row.tolist() == [0] * 6 + [round(250 * 0.5 / 1.5)] + [250] * 13


@pytest.mark.parametrize("step", [0.5, 0.7, 1, 1.3, 2, 2.7])
@pytest.mark.parametrize("value", [0, 1, 127, 254, 255])
def test_a_uniform_region_stays_uniform(step, value):
    region = np.full((60, 60, 3), value, np.uint8)
    assert np.all(_resample(region, 1.25, 2.5, step, 20, 20) == value)


def test_enlarging_keeps_positions():
    ramp = np.repeat(np.arange(40, dtype=np.uint8)[None, :, None] * 6, 40, 0).repeat(3, 2)
    row = _resample(ramp, 5, 5, 0.5, 40, 40)[20, :, 0].astype(float)
    centres = 5 + (np.arange(40) + 0.5) * 0.5  # in source pixels, whose centres lie at index + 0.5
    assert np.abs(row - (centres - 0.5) * 6).max() <= 1
