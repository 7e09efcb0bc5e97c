"""Heat maps of slides as TIFF and PNG: the hot pixels are the pixels of the planted lesion."""

import json

import numpy as np
import pytest
import tifffile
from PIL import Image
from support.export_makers import META, SIDE, X, Y, lesion_box, slide_case
from support.pyramids import FLAVOURS, PLANTED, TISSUE, origin

from smmil.errors import DataError
from smmil.exports import export
from smmil.exports.geometry import _reduction, paint
from smmil.exports.raster import OPACITY
from smmil.frame import Frame
from smmil.images import open_slide
from smmil.prediction import Prediction


def slow_paint(boxes, values, shape):
    """Pixel by pixel: the mean of all instances that cover it."""
    heat = np.full(shape, np.nan)
    for place in np.ndindex(*shape):
        at = np.array(place[::-1])
        inside = (boxes[:, : len(shape)] <= at).all(1) & (at < boxes[:, len(shape) :]).all(1)
        if inside.any():
            heat[place] = values[inside].mean()
    return heat


@pytest.mark.parametrize("axes", [2, 3])
def test_painting_is_the_mean_of_the_instances_that_cover_a_pixel(axes):
    rng = np.random.default_rng(0)
    first = rng.integers(-3, 8, (20, axes))
    boxes = np.hstack([first, first + rng.integers(1, 5, (20, axes))]).astype(float)
    values = rng.normal(size=20)
    shape = (6, 9) if axes == 2 else (4, 6, 9)
    assert np.allclose(paint(boxes, values, shape), slow_paint(boxes, values, shape), atol=1e-6, equal_nan=True)


def test_an_instance_smaller_than_a_pixel_is_still_seen():
    heat = paint(np.array([[2.1, 1.1, 2.3, 1.3]]), np.array([7.0]), (3, 4))
    assert np.argwhere(~np.isnan(heat)).tolist() == [[1, 2]]


def test_the_reduction_is_the_coarsest_power_of_two_that_keeps_every_edge():
    assert _reduction(np.array([[0, 0, 512, 512.0]]), (1024, 1024)) == (32, True)
    assert _reduction(np.array([[8, 0, 512, 512.0]]), (1024, 1024)) == (8, True)
    assert _reduction(np.array([[3, 0, 515, 512.0]]), (1024, 1024)) == (1, True)
    assert _reduction(np.array([[0.5, 0, 512.5, 512]]), (1024, 1024)) == (1, False)
    # 10^10 pixels are too many: the finest map of at most 2^25 pixels has 100 000 / 32 of them a side
    assert _reduction(np.array([[3, 0, 515, 512.0]]), (100_000, 100_000)) == (32, False)
    assert _reduction(np.array([[0, 0, 512, 512.0]]), (400_000, 400_000)) == (128, True)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_hot_pixels_of_the_tiff_are_the_lesion_on_the_slide(tmp_path, flavour):
    path, prediction = slide_case(tmp_path, flavour)
    done = export(prediction, "tiff", tmp_path / "map.tif", image=path)
    assert not done.notes
    with tifffile.TiffFile(tmp_path / "map.tif") as file:
        page, heat = file.pages[0], file.asarray()
        about = json.loads(page.description)
        assert page.is_tiled
        assert heat.dtype == np.float32
        r = about["level0_pixels_per_pixel"]
        resolution = page.tags["XResolution"].value
        assert page.tags["ResolutionUnit"].value == 3
        assert (page.tags[340].value, page.tags[341].value) == (-1, 1)
    rows, columns = np.nonzero(heat == 1)
    box = (columns.min() * r, rows.min() * r, (columns.max() + 1) * r, (rows.max() + 1) * r)
    assert box == lesion_box(flavour)
    with open_slide(path) as slide:
        assert heat.shape == (-(-slide.size[1] // r), -(-slide.size[0] // r))
        assert tuple(about["bounds"]) == slide.bounds
    assert 1e4 / (resolution[0] / resolution[1]) == pytest.approx(0.5 * r, rel=1e-6)
    covered = ~np.isnan(heat)
    assert covered.sum() * r * r == 320 * 256
    assert np.argwhere(covered)[0].tolist() == [origin(flavour)[1] // r, origin(flavour)[0] // r]
    assert (about["model"], about["use"]) == ("sm_ap", "research use only")


def test_smaller_levels_of_the_tiff_are_means_and_hold_no_invented_tissue(tmp_path):
    cells = np.stack(np.meshgrid(np.arange(40), np.arange(24)), -1).reshape(-1, 2)[:-7]
    scores = np.random.default_rng(0).normal(size=len(cells)).astype(np.float32)
    prediction = Prediction("s", [0.5], scores, coords=cells * 33, frame=Frame((33, 33)), meta=META)
    export(prediction, "tiff", tmp_path / "map.tif")
    with tifffile.TiffFile(tmp_path / "map.tif") as file:
        full, half, quarter = (page.asarray() for page in file.pages)
        assert [page.subfiletype for page in file.pages] == [0, 1, 1]
    assert full.shape == (792, 1320)
    assert quarter.shape == (198, 330)
    fours = full.reshape(396, 2, 660, 2)
    some = ~np.isnan(fours).all((1, 3))
    assert np.array_equal(~np.isnan(half), some)
    assert np.allclose(half[some], np.nanmean(fours.transpose(0, 2, 1, 3)[some], axis=(1, 2)), atol=1e-6)
    assert np.nanmean(full) == pytest.approx(scores.mean(), abs=1e-5)


def test_without_the_slide_the_tiff_says_what_it_could_not_know(tmp_path):
    _, prediction = slide_case(tmp_path)
    notes = [note for _, note in export(prediction, "tiff", tmp_path / "map.tif").notes]
    assert any("bounds are unknown" in note for note in notes)
    assert any("size of the slide is not known" in note for note in notes)
    sized = Prediction(**{**vars(prediction), "meta": {**META, "size": [640, 512], "bounds": [0, 0, 640, 512]}})
    assert not export(sized, "tiff", tmp_path / "map.tif").notes
    assert tifffile.imread(tmp_path / "map.tif").shape == (16, 20)


@pytest.mark.parametrize("flavour", ["aperio", "leica"])
@pytest.mark.parametrize("size", [1000, 160])
def test_the_picture_shows_the_slide_with_the_lesion_hottest_on_its_pixels(tmp_path, flavour, size):
    from matplotlib import colormaps

    path, prediction = slide_case(tmp_path, flavour)
    export(prediction, "png", tmp_path / "a.png", image=path, size=size)
    with open_slide(path) as slide:
        small = slide.thumbnail(size)
    picture = np.asarray(Image.open(tmp_path / "a.png")).astype(float)
    assert picture.shape == small.image.shape
    hot, cold = (np.array(colormaps["viridis"](v)[:3]) * 255 for v in (1.0, 0.0))
    expected = (1 - OPACITY) * np.array(PLANTED) + OPACITY * hot
    rows, columns = np.nonzero(np.abs(picture - expected).max(-1) <= 1)
    box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * small.scale
    assert np.abs(box - lesion_box(flavour)).max() <= (0 if size == 1000 else small.scale)
    elsewhere = (1 - OPACITY) * np.array(TISSUE) + OPACITY * cold
    middle = (np.array(origin(flavour)) + 16) / small.scale
    assert np.abs(picture[int(middle[1]), int(middle[0])] - elsewhere).max() <= 1
    if flavour == "leica":
        assert (picture[2, 2] == 255).all()  # outside the scanned area nothing is painted


def test_with_a_threshold_only_what_reaches_it_is_coloured(tmp_path):
    path, prediction = slide_case(tmp_path)
    export(prediction, "png", tmp_path / "a.png", image=path, threshold=0)
    picture = np.asarray(Image.open(tmp_path / "a.png"))
    changed = (picture != np.asarray(TISSUE, np.uint8)).any(-1)
    rows, columns = np.nonzero(changed)
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (X, Y, X + SIDE, Y + SIDE)


def test_pictures_without_the_slide_are_no_larger_than_asked_for_and_carry_provenance(tmp_path):
    _, prediction = slide_case(tmp_path)
    export(prediction, "png", tmp_path / "a.png", size=100)
    picture = Image.open(tmp_path / "a.png")
    assert picture.size == (100, 80)
    assert json.loads(picture.text["Comment"])["weights"] == "ab" * 32


@pytest.mark.parametrize("to", ["tiff", "png"])
def test_the_same_case_gives_the_same_bytes(tmp_path, to):
    path, prediction = slide_case(tmp_path)
    for name in ("a", "b"):
        export(prediction, to, tmp_path / f"{name}.{to}", image=path)
    assert (tmp_path / f"a.{to}").read_bytes() == (tmp_path / f"b.{to}").read_bytes()


def test_a_scan_is_no_tiff(tmp_path):
    scan = Prediction("s", [0.5], [1, 2], coords=[[0], [1]], frame=Frame((1,)))
    with pytest.raises(DataError, match="a TIFF map is for slides"):
        export(scan, "tiff", tmp_path / "a.tif")
