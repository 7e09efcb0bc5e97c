"""What is planted at known level-0 pixels is read back at exactly those pixels, whatever the file and the scale."""

import numpy as np
import pytest
from support.pyramids import FLAVOURS, OFFSET, PLANTED, TISSUE, noise, origin, planted, slide_file

from smmil.images import open_slide

X, Y, SIDE = 128, 96, 64


def found_box(slide, footprint: int, pixels: int, stride: int, colour=PLANTED) -> tuple[float, float, float, float]:
    """Level-0 box (left, top, right, bottom) of all pixels of a colour over a lattice of tiles."""
    left, top, right, bottom = np.inf, np.inf, -np.inf, -np.inf
    scale = footprint / pixels
    for y in range(0, slide.size[1], stride):
        for x in range(0, slide.size[0], stride):
            rows, columns = np.nonzero((slide.read(x, y, footprint, pixels) == colour).all(-1))
            if len(rows):
                left, right = min(left, x + columns.min() * scale), max(right, x + (columns.max() + 1) * scale)
                top, bottom = min(top, y + rows.min() * scale), max(bottom, y + (rows.max() + 1) * scale)
    return left, top, right, bottom


@pytest.mark.parametrize("mpp", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("overlap", [0, 16])
@pytest.mark.parametrize("scale", [1, 2, 4, 16])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_planted_square_is_found_at_its_pixels(tmp_path, flavour, scale, overlap, mpp):
    path = slide_file(tmp_path, planted(256, 320, X, Y, SIDE), flavour, mpp=mpp, factors=(1, 4, 16))
    ox, oy = origin(flavour)
    with open_slide(path) as slide:
        assert slide.mpp == pytest.approx(mpp, rel=1e-6)
        assert slide.downsamples == (1, 4, 16)
        box = found_box(slide, 64, 64 // scale, 64 - overlap)
    assert box == (ox + X, oy + Y, ox + X + SIDE, oy + Y + SIDE)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("pixels", [40, 50, 60])
def test_at_fractional_scales_edges_stay_within_one_output_pixel(tmp_path, flavour, pixels):
    path = slide_file(tmp_path, planted(256, 320, X, Y, SIDE), flavour)
    ox, oy = origin(flavour)
    with open_slide(path) as slide:
        box = np.array(found_box(slide, 192, pixels, 64))
    inside = np.array([1, 1, -1, -1]) * (box - [ox + X, oy + Y, ox + X + SIDE, oy + Y + SIDE])
    assert inside.min() >= -1e-9
    assert inside.max() < 192 / pixels


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_pixels_of_a_level_come_back_unchanged(tmp_path, flavour):
    image = noise(256, 320)
    ox, oy = origin(flavour)
    with open_slide(slide_file(tmp_path, image, flavour)) as slide:
        assert np.array_equal(slide.read(ox + 33, oy + 17, 100, 100), image[17:117, 33:133])
        level = image.reshape(64, 4, 80, 4, 3).mean((1, 3))
        assert np.abs(slide.read(ox + 32, oy + 16, 160, 40) - level[4:44, 8:48]).max() <= 0.5


def test_a_level_whose_size_was_rounded_keeps_its_places(tmp_path):
    """1003 pixels shrunk by 4 are 250: OpenSlide says downsample 4.01 and would drift by two pixels at the far end."""
    image = planted(1001, 1003, 900, 880, 40)
    path = slide_file(tmp_path, image)
    for reader in ("openslide", "tifffile"):
        with open_slide(path, reader=reader) as slide:
            assert slide.downsamples == (1, 4)
            tile = slide.read(864, 864, 128, 32).astype(float)
        weight = (tile[..., 1] - TISSUE[1]) / (PLANTED[1] - TISSUE[1])
        centre = 864 + 4 * ((weight.sum(0) * (np.arange(32) + 0.5)).sum() / weight.sum())
        assert centre == pytest.approx(920, abs=0.5)
        if reader == "tifffile":
            assert np.array_equal(np.argwhere(weight == 1)[[0, -1]], [[4, 9], [13, 18]])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_outside_is_white_and_inside_is_not(tmp_path, flavour):
    image = np.full((100, 120, 3), TISSUE, np.uint8)
    ox, oy = origin(flavour)
    with open_slide(slide_file(tmp_path, image, flavour)) as slide:
        tile = slide.read(ox - 10, oy - 20, 160, 160)
        assert np.all(slide.read(-5000, 7000, 64, 64) == 255)
    expected = np.full((160, 160, 3), 255, np.uint8)
    expected[20:120, 10:130] = TISSUE
    assert np.array_equal(tile, expected)


def test_the_scanned_area_is_told_where_the_file_has_one(tmp_path):
    with open_slide(slide_file(tmp_path, noise(96, 128), "leica")) as slide:
        assert slide.bounds == (*OFFSET, 128, 96)
        assert slide.size == (128 + 2 * OFFSET[0], 96 + 2 * OFFSET[1])
    with open_slide(slide_file(tmp_path, noise(96, 128), "aperio")) as slide:
        assert slide.bounds == (0, 0, 128, 96)


def test_micrometres_are_divided_by_the_pixel_size(tmp_path):
    with open_slide(slide_file(tmp_path, noise(256, 256), mpp=0.25)) as slide:
        assert np.array_equal(slide.read_um(8, 16, 32.0, 64), slide.read(8, 16, 128, 64))


def test_enlarged_tiles_at_the_edge_hold_no_white_of_the_outside(tmp_path):
    with open_slide(slide_file(tmp_path, np.full((64, 96, 3), TISSUE, np.uint8), factors=(1,))) as slide:
        for x, y in ((0, 0), (64, 32), (64, 0), (0, 32)):
            assert np.all(slide.read(x, y, 32, 50) == TISSUE)
        assert np.all(slide.read(-32, 0, 32, 64) == 255)
