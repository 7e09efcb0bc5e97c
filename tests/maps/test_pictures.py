"""Pictures: the right colours at the right place, the same bytes every time, nothing global touched."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from smmil.errors import ConfigError, DataError
from smmil.frame import Frame
from smmil.maps import canvas, scan_strip, score_histograms, score_map, side_by_side
from smmil.maps.charts import score_shares
from smmil.prediction import Prediction

pytestmark = pytest.mark.filterwarnings("error")


def slide(name="slide 1", labels=True, shift=0.0):
    coords = np.stack(np.meshgrid(np.arange(12), np.arange(8)), -1).reshape(-1, 2)
    lesion = ((coords - (4, 3)) ** 2).sum(1) < 6
    frame = Frame((512, 512), (0.5, 0.5), "um")
    return Prediction(
        name, [0.8], lesion + shift, coords * 512, frame, y=1, y_inst=lesion if labels else None,
        meta={"score_kind": "attention logit"},
    )  # fmt: skip


def scan(name="scan 1"):
    lesion = np.arange(30) // 10 == 1
    return Prediction(name, [0.7], 1.0 * lesion, np.arange(30)[:, None], Frame((1,)), y=1, y_inst=lesion)


def share_of(path, colour):
    """Share of the pixels of a picture that have a colour."""
    return float((np.abs(imread(path)[..., :3] - to_rgb(colour)).max(-1) < 0.01).mean())


DRAW = {
    "score map": lambda path: score_map(slide(), path),
    "scan strip": lambda path: scan_strip(scan(), path, threshold=0.5),
    "side by side": lambda path: side_by_side({"abmil": slide(), "sm_ap": slide(shift=1)}, path),
    "scans side by side": lambda path: side_by_side({"abmil": scan(), "sm_ap": scan()}, path),
    "histograms": lambda path: score_histograms({"abmil": [slide()], "sm_ap": [scan()]}, path),
}


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW.keys())
def test_the_same_picture_has_the_same_bytes_and_no_date(draw, tmp_path):
    draw(tmp_path / "a.png")
    draw(tmp_path / "b.png")
    data = (tmp_path / "a.png").read_bytes()
    assert data == (tmp_path / "b.png").read_bytes()
    assert b"tEXt" not in data
    assert b"tIME" not in data
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.png"]


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW.keys())
def test_drawing_leaves_the_global_state_of_matplotlib_alone(draw, tmp_path):
    import matplotlib
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    draw(tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before
    assert _pylab_helpers.Gcf.figs == {}


def test_the_lesion_is_drawn_in_its_colour_beside_the_map(tmp_path):
    score_map(slide(), tmp_path / "a.png")
    with_truth = share_of(tmp_path / "a.png", canvas.LESION)
    score_map(slide(), tmp_path / "b.png", truth=False)
    assert with_truth > 0.01
    assert share_of(tmp_path / "b.png", canvas.LESION) == 0


def test_a_common_scale_gives_the_same_score_the_same_colour(tmp_path):
    from matplotlib import colormaps

    middle = colormaps["viridis"](0.5)[:3]
    score_map(slide(labels=False), tmp_path / "a.png", limits=(-1.0, 1.0))
    score_map(slide(labels=False, shift=-1), tmp_path / "b.png", limits=(-1.0, 1.0))
    background, lesion = share_of(tmp_path / "a.png", middle), share_of(tmp_path / "b.png", middle)
    assert background > 3 * lesion > 0


def test_an_own_scale_is_stated_and_follows_the_percentiles():
    low, high, words = canvas.limits_of(np.arange(101.0), None)
    assert (low, high) == (2, 98)
    assert words == "own scale 2 to 98 (2nd to 98th percentile)"
    assert canvas.limits_of(np.zeros(3), (0, 5))[2] == "common scale 0 to 5"
    low, high, _ = canvas.limits_of(np.full(3, 7.0), None)
    assert low < 7 < high


def test_the_scale_bar_has_a_round_length_in_words():
    assert [canvas._round_length(v) for v in (1, 1.9, 2, 49, 5.3, 0.07)] == [1, 1, 2, 20, 5, 0.05]
    assert canvas._length_words(2000, "um") == "2 mm"
    assert canvas._length_words(500, "um") == "500 µm"
    assert canvas._length_words(10000, "px") == "10,000 px (level 0)"


@pytest.mark.parametrize("name", ["$x_{$", "a\nb\tc", "<b>&\"'", "x" * 500, "Größe µ", "100% $\\frac{1}$"])
def test_no_id_can_break_a_picture(name, tmp_path):
    score_map(slide(name), tmp_path / "a.png")
    side_by_side({name: slide(name)}, tmp_path / "b.png")
    assert canvas.headline(slide(name)).count("\n") == 0


def test_pictures_without_labels_frame_or_probability_of_two_classes(tmp_path):
    bare = Prediction("a", [0.2, 0.3, 0.5], np.arange(6.0), coords=[[i, 0] for i in range(6)])
    assert "P(class 2) = 0.500" in canvas.headline(bare)
    assert "label unknown" in canvas.headline(bare)
    score_map(bare, tmp_path / "a.png")
    side_by_side({"m": bare}, tmp_path / "b.png")
    score_map(Prediction("one", [0.5], [1.0], coords=[[5, 5]]), tmp_path / "c.png")


def test_only_colour_scales_that_everybody_can_read_are_offered(tmp_path):
    with pytest.raises(ConfigError, match="colour scale: unknown value 'jet'"):
        score_map(slide(), tmp_path / "a.png", colour_scale="jet")
    assert not (tmp_path / "a.png").exists()


def test_on_a_scale_given_for_several_cases_low_scores_stay_dark(tmp_path):
    healthy, dark, bright = slide(shift=-1000), "#440154", "#fde725"
    own = side_by_side({"m": healthy}, tmp_path / "own.png")
    common = side_by_side({"m": healthy}, tmp_path / "common.png", limits={"m": (0.0, 10.0)})
    assert share_of(own, bright) > 0.02
    assert share_of(common, bright) < 0.005  # the end of the colour bar
    assert share_of(common, dark) > share_of(own, dark)


def test_side_by_side_shows_one_case_only(tmp_path):
    with pytest.raises(DataError, match="one case, got 2: a, b"):
        side_by_side({"m": slide("a"), "n": slide("b")}, tmp_path / "a.png")


def test_a_strip_wants_a_scan(tmp_path):
    with pytest.raises(DataError, match="one coordinate per slice, got 2 coordinates; use score_map"):
        scan_strip(slide(), tmp_path / "a.png")


def test_the_truth_band_of_a_scan_shows_its_share_of_slices(tmp_path):
    scan_strip(scan(), tmp_path / "a.png")
    lesion, other = share_of(tmp_path / "a.png", canvas.LESION), share_of(tmp_path / "a.png", canvas.TISSUE)
    assert lesion / other == pytest.approx(10 / 20, rel=0.1)


def test_a_threshold_outside_the_scores_still_fits_in_the_picture(tmp_path):
    sizes = []
    for threshold in (None, 0.5, 25.0, -25.0):
        scan_strip(scan(), tmp_path / "a.png", threshold=threshold)
        sizes.append(imread(tmp_path / "a.png").shape)
        assert share_of(tmp_path / "a.png", canvas.LESION) > 0.005
    assert len(set(sizes)) == 1


def test_histograms_by_hand():
    # scores 0, 1, 2, 4 and an unknown 99 that must not stretch the scale
    one = Prediction("a", [0.5], [0.0, 1, 2, 99], y_inst=[0, 0, 1, -1])
    two = Prediction("b", [0.5], [4.0], y_inst=[1])
    found = score_shares([one, two], bins=4)
    assert (found.lowest, found.highest) == (0, 4)
    np.testing.assert_allclose(found.negative, [0.5, 0.5, 0, 0])
    np.testing.assert_allclose(found.positive, [0, 0, 0.5, 0.5])
    with pytest.raises(DataError, match="no instance label"):
        score_shares([Prediction("a", [0.5], [1.0])])
