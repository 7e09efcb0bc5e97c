"""Rings that cross themselves, and shapes that cross each other, thousands of times: quick, right, or refused."""

import json

import numpy as np
import pytest
import shapely
from support import drawings
from support.sandbox import outcomes

from smmil.annotations.polygons import read_asap, read_boxes, read_geojson
from smmil.errors import DataError


def tangle(corners, seed=0):
    """Corners in no order: every side crosses a third of the others."""
    return np.random.default_rng(seed).random((corners, 2)).round(6) * 1000


def comb(teeth):
    """Long slanted teeth side by side: no side crosses another, yet each must be compared with each."""
    x, y = np.repeat(np.arange(teeth) * 0.02, 2), np.tile([0.0, 1000.0], teeth)
    return np.concatenate([np.stack([x + y / 2, y], 1), [[2e4, -10], [-10, -10]]])


def enclosed_oddly(points, ring):
    """By counting the sides to the right of each point."""
    (x, y), (u, v) = ring.T[:, None], np.roll(ring, -1, 0).T[:, None]
    px, py = points.T[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        right = ((y > py) != (v > py)) & (px < x + (py - y) * (u - x) / (v - y))
    return right.sum(1) % 2 == 1


def geojson(path, rings, name="Tumor"):
    properties = {"classification": {"name": name}}
    shapes = [
        {
            "type": "Feature",
            "properties": properties,
            "geometry": {"type": "Polygon", "coordinates": [np.asarray(ring).tolist()]},
        }
        for ring in rings
    ]
    path.write_text(json.dumps(shapes))
    return path


@pytest.mark.parametrize("corners", [7, 40, 90, 200])
def test_areas_enclosed_an_odd_number_of_times_count_however_often_a_ring_crosses_itself(tmp_path, corners):
    ring = tangle(corners)
    area = read_geojson(geojson(tmp_path / "a.geojson", [ring])).area
    points = np.random.default_rng(1).random((4000, 2)) * 1000
    assert np.array_equal(shapely.contains_xy(area, points), enclosed_oddly(points, ring))


def test_a_long_contour_with_many_small_loops_keeps_its_area(tmp_path):
    turns = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    steps = np.random.default_rng(0).normal(size=(20_000, 2)) * 0.8
    ring = 5000 * np.stack([np.cos(turns), np.sin(turns)], 1) + 6000 + steps
    found = read_geojson(geojson(tmp_path / "a.geojson", [ring]))
    assert "crossed themselves" in found.notes[0]
    assert found.area.area == pytest.approx(np.pi * 5000**2, rel=1e-4)


@pytest.mark.parametrize("ring", [tangle(3000), tangle(100_000), comb(50_000)], ids=["3000", "100000", "comb"])
def test_a_tangle_is_refused_by_name_within_seconds_and_little_memory(tmp_path, ring):
    files = [geojson(tmp_path / "a.geojson", [drawings.square(0, 0, 10), ring])]
    files.append(drawings.asap(tmp_path / "a.xml", [("_0", drawings.square(0, 0, 10)), ("_0", ring)]))
    for file, found in zip(files, outcomes(_read_either, files, None, memory=1 << 30), strict=True):
        assert found.kind == "error", (file, found)
        assert "annotation 2 (class '" in found.detail
        assert "draw it again" in found.detail


def _read_either(path):
    return (read_asap if path.suffix == ".xml" else read_geojson)(path)


def test_boxes_that_cross_like_cloth_are_refused_and_a_heap_of_boxes_is_not(tmp_path):
    def table(name, boxes):
        rows = "".join(f"{','.join(map(str, box))}\n" for box in boxes)
        (tmp_path / name).write_text(f"x,y,width,height\n{rows}")
        return tmp_path / name

    cloth = [(0, 2 * i, 2000, 1) for i in range(1000)] + [(2 * i, 0, 1, 2000) for i in range(1000)]
    (found,) = outcomes(read_boxes, [table("cloth.csv", cloth)], None)
    assert found.kind == "error"
    assert "the shapes together are too tangled" in found.detail
    heap = [(x % 97, x % 89, 500, 500) for x in range(1000)]
    assert read_boxes(table("heap.csv", heap)).area.bounds == (0, 0, 596, 588)


def test_a_hole_that_tangles_with_the_lesion_is_refused(tmp_path):
    teeth = np.stack([np.arange(400) * 5.0, np.tile([0.0, 1990.0], 200)], 1)
    closed = np.concatenate([teeth, [[2000, -10], [-10, -10]]])
    path = drawings.asap(tmp_path / "a.xml", [("_0", closed), ("_2", closed[:, ::-1])])
    with pytest.raises(DataError, match="lesions and holes are too tangled"):
        read_asap(path)
