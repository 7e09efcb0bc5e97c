"""Rasters: every value lands where its instance lies."""

import time

import numpy as np
import pytest

from smmil.errors import DataError
from smmil.frame import Frame
from smmil.maps import rasterize, score_map
from smmil.maps.score_maps import _borders
from smmil.prediction import Prediction

NAN = np.nan


def at(coords, values, frame=None, **more):
    return Prediction("a", [0.5], np.asarray(values, dtype=float), coords=np.asarray(coords), frame=frame, **more)


def test_a_small_slide_by_hand():
    image, extent = rasterize(at([[100, 50], [300, 50], [200, 150]], [1, 2, 3], Frame((100, 100))))
    np.testing.assert_array_equal(image, [[1, NAN, 2], [NAN, 3, NAN]])
    assert extent == (100, 400, 250, 50)


def test_x_is_the_column_and_y_the_row():
    image, _ = rasterize(at([[0, 0], [2, 0], [0, 1]], [1, 2, 3], Frame((1, 1))))
    assert image[0, 2] == 2
    assert image[1, 0] == 3


def test_order_of_instances_does_not_matter():
    rng = np.random.default_rng(0)
    coords, values, order = rng.integers(0, 9, (60, 2)), rng.normal(size=60), rng.permutation(60)
    one, _ = rasterize(at(coords, values, Frame((1, 1))))
    other, _ = rasterize(at(coords[order], values[order], Frame((1, 1))))
    np.testing.assert_allclose(one, other)


def test_instances_that_share_a_cell_are_averaged():
    image, _ = rasterize(at([[0, 0], [3, 2], [10, 0]], [1, 5, 7], Frame((10, 10))))
    np.testing.assert_array_equal(image, [[3, 7]])


def test_overlapping_patches_average_where_they_overlap():
    image, extent = rasterize(at([[0, 0], [5, 0]], [1, 3], Frame((10, 5), stride=(5, 5))))
    np.testing.assert_array_equal(image, [[1, 2, 3]])
    assert extent == (0, 15, 5, 0)


def test_a_piece_half_a_step_off_keeps_its_shape():
    piece = [[100 + 10 * i, 5 + 10 * j] for j in range(3) for i in range(4)]
    image, _ = rasterize(at([[0, 0], *piece], np.arange(13.0), Frame((10, 10))))
    assert np.isfinite(image).sum() == 13
    np.testing.assert_array_equal(image[1:, 10:], np.arange(1.0, 13).reshape(3, 4))


def test_without_a_frame_the_smallest_gap_is_the_step():
    image, extent = rasterize(at([[0, 0], [256, 0], [1024, 512]], [1, 2, 3]))
    assert image.shape == (2, 5)
    assert extent == (0, 1280, 1024, 0)


def test_a_scan_becomes_one_row_with_its_gap():
    image, _ = rasterize(at([[3], [0], [1]], [30, 0, 10], Frame((1,))))
    np.testing.assert_array_equal(image, [[0, 10, NAN, 30]])


def test_a_single_patch_is_a_single_cell():
    assert rasterize(at([[7, 9]], [4]))[0].tolist() == [[4]]


def test_values_without_number_leave_their_cell_empty():
    image, _ = rasterize(at([[0, 0], [1, 0]], [1, 2], Frame((1, 1))), np.array([NAN, 5]))
    np.testing.assert_array_equal(image, [[NAN, 5]])


def test_what_cannot_be_drawn_is_refused_with_the_reason():
    with pytest.raises(DataError, match="a: a map needs coords"):
        rasterize(Prediction("a", [0.5], [1.0]))
    with pytest.raises(DataError, match="one or two coordinates, got 4"):
        rasterize(at([[0, 0, 0, 0]], [1]))
    with pytest.raises(DataError, match="one or two coordinates, got 3; smmil report"):
        score_map(at([[0, 0, 0]], [1]), "nowhere.png")
    with pytest.raises(DataError, match="3 values for 1 instances"):
        rasterize(at([[0, 0]], [1]), np.zeros(3))
    with pytest.raises(DataError, match=r"100,001 x 100,001 cells; give the right frame"):
        rasterize(at([[0, 0], [100000, 100000]], [1, 2], Frame((1, 1))))


@pytest.mark.parametrize("stride", [None, (8, 4, 1), (5, 8, 2)])
def test_patches_of_a_scan_become_layers_of_cells_each_the_mean_of_what_covers_it(stride):
    rng = np.random.default_rng(1)
    step = np.array(stride or (8, 8, 3))
    cells = np.argwhere(rng.random((5, 6, 4)) < 0.5)[:, ::-1]
    coords, values = cells * step + (16, 8, 2), rng.normal(size=len(cells))
    image, extent = rasterize(at(coords, values, Frame((8, 8, 3), (1.0, 1.0, 5.0), "mm", stride)))
    reach = np.clip(np.rint(np.array([8, 8, 3]) / step), 1, 16).astype(int)
    low = cells.min(0)
    assert image.shape == tuple((cells.max(0) - low + reach)[::-1])
    for z, y, x in np.ndindex(*image.shape):
        over = [
            v
            for c, v in zip(cells - low, values, strict=True)
            if all(0 <= p - q < r for p, q, r in zip((x, y, z), c, reach, strict=True))
        ]
        assert image[z, y, x] == pytest.approx(np.mean(over)) if over else np.isnan(image[z, y, x])
    first, last = (low * step + (16, 8, 2)), (low * step + (16, 8, 2)) + np.array(image.shape[::-1]) * step
    assert extent == pytest.approx((first[0], last[0], last[1], first[1], first[2], last[2]))


def test_sixty_thousand_instances_take_less_than_half_a_second():
    grid = np.stack(np.meshgrid(np.arange(300), np.arange(200)), -1).reshape(-1, 2) * 512
    big = at(grid, np.arange(len(grid)), Frame((1024, 1024), stride=(512, 512)))
    start = time.process_time()
    image, _ = rasterize(big)
    assert time.process_time() - start < 0.5
    assert image.shape == (201, 301)


def test_the_outline_of_one_cell_is_its_four_sides():
    inside = np.zeros((3, 3), dtype=bool)
    inside[1, 2] = True
    sides = {tuple(map(tuple, side)) for side in _borders(inside, (0, 30, 60, 0)).tolist()}
    assert sides == {((20, 20), (20, 40)), ((30, 20), (30, 40)), ((20, 20), (30, 20)), ((20, 40), (30, 40))}


def test_cells_of_one_lesion_have_no_line_between_them():
    assert len(_borders(np.ones((2, 3), dtype=bool), (0, 3, 2, 0))) == 2 * (2 + 3)
