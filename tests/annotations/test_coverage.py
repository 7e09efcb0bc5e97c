"""Areas: against a brute-force raster, against shapely pair by pair, and against what a pencil gives."""

import time

import numpy as np
import pytest
import shapely

from smmil.annotations.masks import pixel_share, polygon_share
from smmil.annotations.polygons import _joined, _RawPolygon, _ring


def boxes_of(corners, side):
    corners = np.asarray(corners, float)
    return np.hstack([corners, corners + side])


def star(rng, x, y, radius, corners):
    angle = np.sort(rng.uniform(0, 2 * np.pi, corners))
    reach = radius * rng.uniform(0.3, 1, corners)
    return np.stack([x + reach * np.cos(angle), y + reach * np.sin(angle)], 1)


def blob(rng, x, y, radius, corners):
    """A contour as a hand draws it: waves of a few frequencies around a circle."""
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    waves = sum(rng.uniform(0, 0.1) * np.cos(k * angle + rng.uniform(0, 6)) for k in (2, 3, 5, 17))
    return np.stack([x + radius * (1 + waves) * np.cos(angle), y + radius * (1 + waves) * np.sin(angle)], 1)


def pair_by_pair(boxes, area):
    return [shapely.box(*box).intersection(area).area / shapely.box(*box).area for box in boxes]


@pytest.mark.parametrize("seed", range(3))
def test_shares_of_wild_overlapping_polygons_with_holes_are_those_of_shapely_pair_by_pair(seed):
    rng = np.random.default_rng(seed)
    drawn = [_RawPolygon(star(rng, *rng.uniform(0, 1000, 2), 250, 400), name="tumor") for _ in range(6)]
    drawn += [_RawPolygon(star(rng, *rng.uniform(0, 1000, 2), 80, 30), name="_2") for _ in range(3)]
    area = _joined(drawn, None).area
    boxes = boxes_of(rng.uniform(-200, 1200, (300, 2)), 64)
    shares = polygon_share(boxes, area)
    assert np.allclose(shares, pair_by_pair(boxes, area), atol=1e-8)
    scattered = boxes_of(rng.uniform(0, 1000, (2100, 2)), 64)
    assert np.array_equal(polygon_share(scattered, area)[:20], polygon_share(scattered[:20], area))
    assert (shares == 1).any()
    assert ((shares > 0) & (shares < 1)).any()
    assert (shares == 0).any()


def test_whole_pixel_polygons_give_the_count_of_a_raster():
    canvas = np.zeros((60, 70), bool)
    canvas[10:40, 5:50] = True
    canvas[20:30, 20:60] = False
    area = _joined(
        [
            _RawPolygon(_ring([(5, 10), (50, 10), (50, 40), (5, 40)])),
            _RawPolygon(_ring([(20, 20), (60, 20), (60, 30), (20, 30)]), name="_2"),
        ],
        None,
    ).area
    corners = [(x, y) for y in range(0, 52, 4) for x in range(0, 62, 3)]
    boxes = boxes_of(corners, 8)
    counted = [canvas[y : y + 8, x : x + 8].sum() / 64 for x, y in corners]
    assert np.array_equal(polygon_share(boxes, area), counted)
    assert np.array_equal(pixel_share(boxes, [(0, 0, canvas)]), counted)


@pytest.mark.parametrize("seed", range(3))
def test_pixels_are_weighed_by_area_when_boxes_end_inside_them_and_blocks_add_up(seed):
    rng = np.random.default_rng(seed)
    canvas = rng.random((40, 50)) < 0.3
    fine = canvas.repeat(8, 0).repeat(8, 1)
    corners = rng.integers(-40, 360, (200, 2))
    padded = np.pad(fine, 200)
    expected = [padded[y + 200 : y + 300, x + 200 : x + 300].mean() for x, y in corners]
    boxes = boxes_of(corners, 100) / 8
    blocks = [(x, y, canvas[y : y + 16, x : x + 16]) for y in range(0, 40, 16) for x in range(0, 50, 16)]
    assert np.allclose(pixel_share(boxes, blocks), expected, atol=1e-8)
    assert np.array_equal(pixel_share(boxes, blocks), pixel_share(boxes, [(0, 0, canvas)]))


def test_overlapping_lesions_count_once_and_touching_ones_fill_the_patch():
    left, right = _ring([(0, 0), (6, 0), (6, 10), (0, 10)]), _ring([(4, 0), (10, 0), (10, 10), (4, 10)])
    box = boxes_of([(0, 0)], 10)
    assert polygon_share(box, _joined([_RawPolygon(left), _RawPolygon(right)], None).area) == 1
    assert polygon_share(box, _joined([_RawPolygon(left), _RawPolygon(left)], None).area) == 0.6
    halves = [
        _RawPolygon(_ring([(0, 0), (5, 0), (5, 10), (0, 10)])),
        _RawPolygon(_ring([(5, 0), (10, 0), (10, 10), (5, 10)])),
    ]
    assert polygon_share(box, _joined(halves, None).area) == 1


def test_a_ring_that_crosses_itself_counts_what_it_encloses_and_says_so():
    bow_tie = _joined([_RawPolygon(_ring([(0, 0), (10, 10), (10, 0), (0, 10)]))], None)
    assert polygon_share(boxes_of([(0, 0)], 10), bow_tie.area) == 0.5
    assert "crossed themselves" in bow_tie.notes[0]
    pinched = _joined([_RawPolygon(_ring([(0, 0), (5, 5), (10, 0), (10, 10), (5, 5), (0, 10)]))], None)
    assert polygon_share(boxes_of([(0, 0)], 10), pinched.area) == 0.5


def test_shapes_without_area_count_for_nothing_and_are_counted():
    shapes = _joined(
        [_RawPolygon(_ring([(0, 0), (5, 5)])), _RawPolygon(_ring([(0, 0), (5, 5), (9, 9)])), _RawPolygon(_ring([]))],
        None,
    )
    assert polygon_share(boxes_of([(0, 0)], 10), shapes.area).tolist() == [0]
    assert shapes.notes == ("3 shape(s) have no area and count for nothing",)


def test_half_of_a_patch_is_exactly_one_half_whatever_the_cuts():
    rng = np.random.default_rng(0)
    edge = np.stack([np.full(1000, 256.0), np.sort(rng.uniform(0, 5120, 1000))], 1)
    area = _joined([_RawPolygon(np.vstack([[(0, 0), (256, 0)], edge, [(256, 5120), (0, 5120)]]))], None).area
    shares = polygon_share(boxes_of([(0, y) for y in range(0, 5120, 512)], 512), area)
    assert shares.tolist() == [0.5] * 10


def test_sixty_thousand_patches_and_five_hundred_polygons_take_seconds():
    rng = np.random.default_rng(0)
    drawn = [_RawPolygon(blob(rng, *rng.uniform(0, 60000, 2), 1500, 2000)) for _ in range(500)]
    corners = np.stack(np.meshgrid(np.arange(245), np.arange(245)), -1).reshape(-1, 2)[:60000] * 256
    start = time.perf_counter()
    shares = polygon_share(boxes_of(corners, 256), _joined(drawn, None).area)
    assert time.perf_counter() - start < 15
    assert 0.05 < (shares > 0.5).mean() < 0.6
