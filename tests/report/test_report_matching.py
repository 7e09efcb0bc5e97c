"""Only the image a case was made from lies below its map; every other is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.lesion_cases import META, SIDE, TILE, save_all, slide_case
from support.report_pictures import app, marked_slide, pixels
from typer.testing import CliRunner

from smmil.errors import ConfigError, DataError
from smmil.frame import Frame
from smmil.images.matching import Original, find_case_images
from smmil.prediction import Prediction
from smmil.report import write_report
from smmil.report.cases import _all_cases
from smmil.report.pictures import _case_picture
from smmil.synthetic import write_pyramid

ROOM = 10_000_000
EDGE = SIDE * TILE
RIGHT = {"size": [EDGE, EDGE], "bounds": [0, 0, EDGE, EDGE], "mpp": 0.5}


def case_from(slide, **more):
    return _all_cases({"m": [replace(slide_case("s", 1), meta={**META, "slide": slide}, **more)]})[0]


def pyramid(path, mpp=0.5):
    image = np.full((EDGE, EDGE, 3), 255, np.uint8)
    image[8 * TILE : 9 * TILE, 14 * TILE : 15 * TILE] = 0
    write_pyramid(path, image, mpp=mpp)
    return path


def test_the_right_slide_is_taken(tmp_path):
    for slide in (RIGHT, {**RIGHT, "mpp": None}, {**RIGHT, "mpp": 0.5004}, {}, "a name"):
        assert _case_picture(Original(pyramid(tmp_path / "s.tiff")), case_from(slide), ROOM).jpeg


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"size": [EDGE + 1, EDGE]}, rf"pixels {EDGE + 1} x {EDGE}, but .*s.tiff has {EDGE} x {EDGE}"),
     ({"bounds": [1, 0, EDGE, EDGE]}, r"bounds \(x, y, width, height\) 1 x 0 x .* but"),
     ({"mpp": 0.25}, r"0.25 µm per pixel, but .* has 0.5")],
)  # fmt: skip
def test_another_slide_is_refused_with_what_differs(tmp_path, wrong, words):
    with pytest.raises(DataError, match=words):
        _case_picture(Original(pyramid(tmp_path / "s.tiff")), case_from({**RIGHT, **wrong}), ROOM)


def test_any_model_may_remember_the_slide(tmp_path):
    known = replace(slide_case("s", 1), meta={**META, "slide": {**RIGHT, "size": [9, 9]}})
    case = _all_cases({"m": [slide_case("s", 1)], "n": [known]})[0]
    with pytest.raises(DataError, match="pixels 9 x 9"):
        _case_picture(Original(marked_slide(tmp_path / "s.png", (1, 1))), case, ROOM)


def test_a_table_may_correct_the_pixel_size(tmp_path):
    pyramid(tmp_path / "s.tiff", mpp=0.25)
    (tmp_path / "t.csv").write_text("id,path,mpp\ns,s.tiff,0.5\nt,t.tiff,\n", encoding="utf-8")
    files = find_case_images(tmp_path / "t.csv", ["s", "t"])
    assert (files["s"].mpp, files["t"].mpp) == (0.5, None)
    assert _case_picture(files["s"], case_from(RIGHT), ROOM).jpeg
    (tmp_path / "t.csv").write_text("id,path,mpp\ns,s.tiff,fine\n", encoding="utf-8")
    with pytest.raises(DataError, match="mpp of s is 'fine'"):
        find_case_images(tmp_path / "t.csv", ["s"])


def test_coordinates_in_micrometres_lie_on_the_right_pixels(tmp_path):
    """STAMP counts micrometres: with 0.25 µm per pixel a tile of 8 µm is 32 pixels."""
    pixel = slide_case("s", 1)
    case = replace(pixel, coords=pixel.coords * 0.25, frame=Frame((8, 8), (1.0, 1.0), "um"))
    picture = _case_picture(Original(pyramid(tmp_path / "s.tiff", 0.25)), _all_cases({"m": [case]})[0], ROOM)
    image, (left, top, width, height) = pixels(picture), picture.area
    rows, columns = np.nonzero(image.mean(2) < 128)
    assert left + (columns.mean() + 0.5) * width / image.shape[1] == pytest.approx(14.5 * 8, abs=0.3)
    assert top + (rows.mean() + 0.5) * height / image.shape[0] == pytest.approx(8.5 * 8, abs=0.3)
    blank = Image.fromarray(np.zeros((EDGE, EDGE, 3), np.uint8))
    blank.save(tmp_path / "s.png")
    with pytest.raises(DataError, match="column mpp"):
        _case_picture(Original(tmp_path / "s.png"), _all_cases({"m": [case]})[0], ROOM)


def test_the_command_tells_a_wrong_slide_and_exits_with_3(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [replace(slide_case("s", 1), meta={**META, "slide": {**RIGHT, "size": [4096, 4096]}})])
    (tmp_path / "slides").mkdir()
    marked_slide(tmp_path / "slides" / "s.png", (14, 8))
    out = tmp_path / "r.html"
    done = CliRunner().invoke(
        app(), [str(tmp_path / "m"), "--out", str(out), "--slides", str(tmp_path / "slides"), "--resamples", "0"]
    )
    assert done.exit_code == 3
    assert "no picture: s: was made from a slide with pixels 4096 x 4096" in done.output
    page = out.read_text(encoding="utf-8")
    assert 'id="p0"' not in page
    assert "was made from a slide with pixels 4096 x 4096" in page
    assert str(tmp_path) not in page


def test_a_picture_without_a_map_is_told(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [Prediction("bare", [0.5], [1.0, 2.0], y=1)])
    done = write_report([tmp_path / "m"], tmp_path / "r.html", slides=tmp_path, resamples=0)
    assert "no map" in done.without_picture["bare"]


def test_a_page_is_not_a_folder(tmp_path):
    save_all(tmp_path, [slide_case("s", 1)])
    with pytest.raises(ConfigError, match=r"is a folder; name the page to write, such as .*report\.html"):
        write_report([tmp_path], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        write_report([tmp_path], tmp_path / "file" / "r.html")
