"""Instances on no lattice: recognised, never merged, each dot at its own place."""

import numpy as np
import pytest
from matplotlib.image import imread

from smmil.frame import Frame
from smmil.maps import canvas, rasterize, score_map, side_by_side
from smmil.maps.raster import _draw_dots, dot_positions, dots_extent, scattered
from smmil.prediction import Prediction

GRID = np.stack(np.meshgrid(np.arange(30), np.arange(20)), -1).reshape(-1, 2)


def case(coords, frame=None, scores=None, **more):
    scores = np.arange(len(coords)) if scores is None else scores
    return Prediction("a", [0.5], np.asarray(scores, float), coords=np.asarray(coords), frame=frame, **more)


def nuclei(n=400, seed=0, frame=Frame((27, 27)), whole=True):
    xy = np.random.default_rng(seed).uniform(0, 3000, (n, 2))
    return case(xy.round() if whole else xy, frame)


def pieces():
    """Two pieces of tissue, each with a lattice of its own, as CLAM cuts them."""
    return np.concatenate([GRID * 256, GRID * 256 + (9001, 37)])


@pytest.mark.parametrize(
    ("coords", "frame"),
    [(GRID * 256, Frame((256, 256))), (pieces(), Frame((256, 256))), (GRID * 128, Frame((256, 256), stride=(128, 128))),
     (GRID[np.random.default_rng(0).permutation(600)[:40]] * 256, Frame((256, 256))), (GRID, None), (GRID * 224, None),
     ([[5, 9]], None), ([[5, 9]], Frame((27, 27))), (np.repeat(GRID, 2, 0) * 256, Frame((256, 256))),
     (GRID * 255.9999 + 0.3, Frame((255.9999, 255.9999))), (np.arange(9)[:, None], Frame((1,)))],
)  # fmt: skip
def test_tiles_are_on_a_lattice(coords, frame):
    assert not scattered(case(coords, frame))


@pytest.mark.parametrize(
    "points",
    [nuclei(), nuclei(whole=False), nuclei(9), nuclei(frame=None), nuclei(frame=None, whole=False),
     nuclei(20_000), nuclei(100, frame=Frame((256, 256))), case([[0, 0], [3, 2], [10, 0]], Frame((10, 10)))],
)  # fmt: skip
def test_points_are_not(points):
    assert scattered(points)


def test_a_lattice_would_have_merged_what_dots_keep_apart():
    points = nuclei(2000)
    lost = points.n - np.isfinite(rasterize(points)[0]).sum()
    assert lost > 50
    figure = canvas.new_figure(4, 4)
    drawn = _draw_dots(figure.add_axes((0, 0, 1, 1)), points, points.scores[:, 0])
    assert len(drawn.get_offsets()) == points.n


def test_a_dot_is_the_middle_of_its_instance_and_the_hottest_is_drawn_last():
    points = case([[0, 0], [100, 10], [7, 53]], Frame((10, 20)), [3.0, 9.0, 1.0])
    figure = canvas.new_figure(4, 4)
    drawn = _draw_dots(figure.add_axes((0, 0, 1, 1)), points, points.scores[:, 0])
    assert drawn.get_offsets().tolist() == [[12, 63], [5, 10], [105, 20]]
    assert drawn.get_array().tolist() == [1, 3, 9]


def test_the_extent_holds_every_instance_whole():
    points = nuclei()
    left, right, bottom, top = dots_extent(points)
    assert left <= points.coords[:, 0].min()
    assert top <= points.coords[:, 1].min()
    assert right >= points.coords[:, 0].max() + 27
    assert bottom >= points.coords[:, 1].max() + 27
    assert dot_positions(nuclei(frame=None))[1] is None


def test_the_hot_dot_of_a_picture_lies_where_its_instance_lies(tmp_path):
    rng = np.random.default_rng(1)
    xy = rng.uniform(0, 1000, (300, 2))
    xy[0] = 800, 250
    points = case(xy, Frame((12, 12)), np.where(np.arange(300) == 0, 9.0, 0.0))
    image = imread(score_map(points, tmp_path / "a.png", limits=(0, 9)))[..., :3]
    image = image[: round(0.75 * len(image))]  # above the colour bar
    cold, hot = (np.abs(image - np.array(canvas.colours("viridis")(v)[:3])).max(2) < 0.02 for v in (0.0, 1.0))
    rows, columns = np.nonzero(cold)
    share = [
        (np.nonzero(hot)[1].mean() - columns.min()) / np.ptp(columns),
        (np.nonzero(hot)[0].mean() - rows.min()) / np.ptp(rows),
    ]
    np.testing.assert_allclose(share, [0.8, 0.25], atol=0.02)


@pytest.mark.filterwarnings("error")
def test_points_with_truth_are_drawn_beside_each_other(tmp_path):
    xy = np.random.default_rng(2).uniform(0, 900, (80, 2))
    labels = np.where(xy[:, 0] > 700, 1, np.where(xy[:, 1] > 700, -1, 0))
    points = case(xy, Frame((9, 9), (0.5, 0.5), "um"), y=1, y_inst=labels)
    path = side_by_side({"m": points, "n": points}, tmp_path / "a.png")
    image = imread(path)[..., :3]
    for colour in (canvas.LESION, canvas.TISSUE, canvas.UNKNOWN):
        rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        assert (np.abs(image - rgb).max(2) < 0.01).sum() > 50, colour
    assert path.read_bytes() == side_by_side({"m": points, "n": points}, tmp_path / "b.png").read_bytes()


def test_telling_a_hundred_thousand_apart_takes_less_than_a_second():
    import time

    points = nuclei(100_000)
    start = time.process_time()
    assert scattered(points)
    assert time.process_time() - start < 1
