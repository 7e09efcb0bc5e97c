"""Tiles are the slide's pixels: a planted square appears in the right tile at the right place, on every level."""

import io
from math import ceil

import numpy as np
import pytest
from PIL import Image
from support.export_makers import SIDE, TILE, X, Y, lesion_box, slide_case
from support.pyramids import FLAVOURS, PLANTED, TISSUE, noise, origin, slide_file
from support.viewer_cases import client_of, renamed, save, small_study

from smmil.frame import Frame
from smmil.images import open_slide
from smmil.prediction import Prediction
from smmil.viewer.data import ViewerData
from smmil.viewer.tiles import _SlidePicture


def pixels_of(answer):
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content))).astype(int)


def put_together(ask, image, level):
    """A whole level from its tiles, as a Deep Zoom viewer does it."""
    scale = 2 ** (image["levels"] - 1 - level)
    width, height = (ceil(image[side] / scale) for side in ("width", "height"))
    canvas = np.zeros((height, width, 3), int)
    for row in range(ceil(height / 256)):
        for column in range(ceil(width / 256)):
            tile = ask(level, column, row)
            top, left = row * 256, column * 256
            assert tile.shape[:2] == (min(256, height - top), min(256, width - left))
            canvas[top : top + 256, left : left + 256] = tile
    return canvas


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_planted_square_lies_where_the_address_says_on_every_level(tmp_path, flavour):
    client = client_of(small_study(tmp_path, flavour))
    image = client.get("/api/case/0").json()["image"]
    assert (image["width"], image["height"], image["tile"], image["levels"]) == (320, 256, 256, 10)
    assert tuple(image["origin"]) == origin(flavour)
    for level in range(image["levels"]):
        shown = put_together(lambda *at: pixels_of(client.get("/tiles/0/{}/{}_{}.jpg".format(*at))), image, level)
        scale = 2 ** (image["levels"] - 1 - level)
        rows, columns = np.nonzero(np.abs(shown - PLANTED).max(2) < 60)  # JPEG rings a little at edges
        if scale <= 32:  # the square's corner is a multiple of 32, so each of its pixels is wholly green
            box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert box == (X // scale, Y // scale, (X + SIDE) // scale, (Y + SIDE) // scale)
            assert len(rows) == (SIDE // scale) ** 2
        assert shown.shape[:2] == (ceil(256 / scale), ceil(320 / scale))


def test_a_tile_is_the_slide_read_pixel_by_pixel_without_a_pyramid_of_ours(tmp_path):
    """Independent slow reference: means over squares of the known pixels, edges included."""
    pixels = noise(700, 900)
    path = slide_file(tmp_path, pixels, "aperio", factors=(1, 4), tile=64)
    frame = Frame((64, 64))
    from smmil.images.matching import Original

    picture = _SlidePicture.open(Original(path), Prediction("s", [0.5], [[0.0]], coords=[[0, 0]], frame=frame))
    with open_slide(path) as slide:
        for level in range(picture.levels - 4, picture.levels):
            scale = picture.scale(level)
            columns, rows = picture.size(level)
            for column, row in ((0, 0), (columns // 256, rows // 256), (columns // 512, 0)):
                tile = picture.tile(slide, level, column, row)
                inner = [min(side, (length // scale) - place * 256) for side, length, place in
                         zip(tile.shape[:2], (700, 900), (row, column), strict=True)]  # fmt: skip
                part = pixels[row * 256 * scale :, column * 256 * scale :][: inner[0] * scale, : inner[1] * scale]
                mean = part.reshape(inner[0], scale, inner[1], scale, 3).mean((1, 3))
                assert np.abs(tile[: inner[0], : inner[1]] - mean).max() <= (0 if scale == 1 else 1.01)


@pytest.mark.parametrize("flavour", ["aperio", "leica"])
def test_the_map_and_the_picture_share_one_coordinate_system(tmp_path, flavour):
    client = client_of(small_study(tmp_path, flavour))
    case = client.get("/api/case/0").json()
    coords = np.frombuffer(client.get("/api/case/0/coords").content, "<f4").reshape(-1, 2)
    scores = np.frombuffer(client.get("/api/case/0/scores/0").content, "<f4")
    left, top, right, bottom = lesion_box(flavour)
    hot = coords[scores > 0]
    assert (hot.min(0) == (left, top)).all()
    assert (hot.max(0) + TILE == (right, bottom)).all()
    place = (hot[0] - case["image"]["origin"]).astype(int)
    tile = pixels_of(client.get(f"/tiles/0/{case['image']['levels'] - 1}/0_0.jpg"))
    assert np.abs(tile[place[1] + 2, place[0] + 2] - PLANTED).max() < 12
    assert np.abs(tile[place[1] - 3, place[0] - 3] - TISSUE).max() < 12


def test_a_patch_is_shown_at_full_resolution_and_never_enlarged(tmp_path):
    study = small_study(tmp_path, "leica")
    client = client_of(study)
    scores = np.frombuffer(client.get("/api/case/0/scores/0").content, "<f4")
    for index, colour in ((int(scores.argmax()), PLANTED), (int(scores.argmin()), TISSUE)):
        patch = pixels_of(client.get(f"/patch/0/{index}.jpg"))
        assert patch.shape == (TILE, TILE, 3)
        assert np.abs(patch - colour).max() < 12
        assert pixels_of(client.get(f"/patch/0/{index}.jpg?size=16")).shape == (16, 16, 3)


def test_a_long_patch_keeps_its_shape(tmp_path):
    path, prediction = slide_case(tmp_path / "slides")
    path.rename(path.with_name("case.svs"))
    wide = renamed(prediction, "case", coords=[[X, Y], [0, 0]], scores=[[1.0], [0.0]], frame=Frame((64, 32)))
    study = ViewerData.read([save(tmp_path / "p", wide)], slides=tmp_path / "slides")
    client = client_of(study)
    patch = pixels_of(client.get("/patch/0/0.jpg"))
    assert patch.shape == (32, 64, 3)
    assert np.abs(patch - PLANTED).max() < 12


def test_tiles_that_do_not_exist_are_not_made_up(tmp_path):
    client = client_of(small_study(tmp_path))
    for place in ("9/2_0", "9/0_1", "10/0_0", "0/1_0", "8/1_0", "99/0_0"):
        assert client.get(f"/tiles/0/{place}.jpg").status_code == 404


def test_coordinates_in_micrometres_are_shown_in_pixels(tmp_path):
    path, prediction = slide_case(tmp_path / "slides")
    path.rename(path.with_name("case.svs"))
    in_um = renamed(
        prediction, "case", coords=prediction.coords * 0.5, frame=Frame((TILE / 2, TILE / 2), (1.0, 1.0), "um")
    )
    client = client_of(ViewerData.read([save(tmp_path / "p", in_um)], slides=tmp_path / "slides"))
    case = client.get("/api/case/0").json()
    assert (case["patch"], case["step"], case["mpp"]) == ([TILE, TILE], [TILE, TILE], 0.5)
    coords = np.frombuffer(client.get("/api/case/0/coords").content, "<f4").reshape(-1, 2)
    assert np.array_equal(coords, prediction.coords.astype(np.float32))


def test_a_thumbnail_is_small_and_its_hottest_place_is_the_lesion(tmp_path):
    for flavour in ("aperio", "leica"):
        client = client_of(small_study(tmp_path / flavour, flavour))
        picture = pixels_of(client.get("/thumbnail/0.png"))
        assert max(picture.shape) <= 160
        yellow = picture[..., 0] + picture[..., 1] - picture[..., 2]
        rows, columns = np.nonzero(yellow == yellow.max())
        scale = 320 / picture.shape[1]
        assert X - scale <= columns.min() * scale
        assert columns.max() * scale <= X + SIDE
        assert Y - scale <= rows.min() * scale
        assert rows.max() * scale <= Y + SIDE
