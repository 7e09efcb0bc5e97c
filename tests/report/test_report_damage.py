"""Parts of a slide that cannot be decoded are hatched and told, never shown as white glass; names stay out."""

from dataclasses import replace

import numpy as np
import pytest
from support.lesion_cases import META, SIDE, TILE, save_all, slide_case
from support.report_pictures import app, marked_slide, pixels
from support.slide_damage import spoil_tile
from typer.testing import CliRunner

from smmil.errors import DataError
from smmil.images import Thumbnail
from smmil.images.matching import Original
from smmil.report import write_report
from smmil.report.cases import _all_cases
from smmil.report.pictures import _case_picture, _hatched, _lost_pixels
from smmil.synthetic import write_pyramid

EDGE = SIDE * TILE
ROOM = 10_000_000


def pink_slide(path, spoilt=()):
    """Pink everywhere, in tiles of 256 pixels; those named cannot be decoded."""
    image = np.empty((EDGE, EDGE, 3), np.uint8)
    image[:] = (220, 130, 180)
    write_pyramid(path, image, mpp=0.5)
    for column, row in spoilt:
        spoil_tile(path, column, row)
    return path


def is_grey(image):
    return np.ptp(image, axis=2) < 25


def test_lost_squares_are_those_of_the_thumbnail():
    shown = Thumbnail(np.zeros((4, 6, 3), np.uint8), 8.0, ((16.0, 8.0, 16.0, 16.0),))
    assert np.argwhere(_lost_pixels(shown)).tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]


def test_stripes_are_only_where_pixels_were_lost():
    image = np.full((200, 200, 3), 255, np.uint8)
    lost = np.zeros((200, 200), bool)
    lost[50:100, 20:60] = True
    drawn = _hatched(image, lost)
    assert (drawn[~lost] == 255).all()
    assert sorted(np.unique(drawn[lost])) == [96, 160]
    assert np.shares_memory(_hatched(image, np.zeros_like(lost)), image)


def test_damage_is_hatched_where_it_is_and_the_rest_is_shown(tmp_path):
    case = _all_cases({"m": [slide_case("s", 1)]})[0]
    picture = _case_picture(Original(pink_slide(tmp_path / "s.tiff", [(1, 1)])), case, ROOM)
    image, (left, top, width, height) = pixels(picture), picture.area
    y, x = np.indices(image.shape[:2])
    x, y = left + (x + 0.5) * width / image.shape[1], top + (y + 0.5) * height / image.shape[0]
    inside = (x > 264) & (x < 504) & (y > 264) & (y < 504)
    grey = is_grey(image)
    assert grey[inside].all()
    assert image[inside].max() < 200
    assert not grey[(x < 120) | (x > 640) | (y < 120) | (y > 640)].any()
    assert "cannot be decoded (" in picture.damage
    share = int(picture.damage.split(" %")[0].split()[-1])
    assert share == pytest.approx(100 * grey.mean(), abs=2)


def test_a_sound_slide_has_no_stripes_and_no_remark(tmp_path):
    case = _all_cases({"m": [slide_case("s", 1)]})[0]
    picture = _case_picture(Original(pink_slide(tmp_path / "s.tiff")), case, ROOM)
    assert picture.damage is None
    assert not is_grey(pixels(picture)).any()


def test_a_slide_that_is_nothing_but_damage_has_no_picture(tmp_path):
    case = _all_cases({"m": [slide_case("s", 1)]})[0]
    spoilt = pink_slide(tmp_path / "s.tiff", [(i, j) for i in range(3) for j in range(3)])
    with pytest.raises(DataError, match="nothing here can be decoded"):
        _case_picture(Original(spoilt), case, ROOM)


def test_the_command_names_the_damage_and_the_page_names_no_file(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [slide_case("s", 1)])
    pink_slide(tmp_path / "Mueller_Erika.tiff", [(1, 1)])
    (tmp_path / "t.csv").write_text("id,slide\ns,Mueller_Erika.tiff\n", encoding="utf-8")
    out = tmp_path / "r.html"
    done = CliRunner().invoke(app(), [str(tmp_path / "m"), "--out", str(out), "--slides", str(tmp_path / "t.csv")])
    assert done.exit_code == 3
    assert "damaged: s: the slide is damaged: " in done.output
    page = out.read_text(encoding="utf-8")
    assert '"missing":null,"damage":"the slide is damaged: ' in page
    assert 'id="p0"' in page
    assert "Mueller" not in page


def test_the_names_of_refused_images_are_on_the_screen_but_not_on_the_page(tmp_path):
    (tmp_path / "m").mkdir()
    known = {**META, "slide": {"size": [9, 9], "bounds": [0, 0, 9, 9], "mpp": 0.5}}
    save_all(tmp_path / "m", [replace(slide_case("s", 1), meta=known)])
    (tmp_path / "Mueller").mkdir()
    marked_slide(tmp_path / "Mueller" / "Erika 1970.png", (1, 1))
    (tmp_path / "t.csv").write_text("id,slide\ns,Mueller/Erika 1970.png\n", encoding="utf-8")
    done = write_report([tmp_path / "m"], tmp_path / "r.html", slides=tmp_path / "t.csv", resamples=0)
    assert "Erika 1970.png" in done.without_picture["s"]
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"pixels 9 x 9, but s has {EDGE} x {EDGE}" in page
    assert "Mueller" not in page
    assert "Erika" not in page
