"""Pictures below the maps: cut to the tissue, exactly placed, small enough, and missing ones are named."""

import numpy as np
import pytest
from PIL import Image
from support.lesion_cases import SIDE, TILE, save_all, scan_case, slide_case, write_slide_picture
from support.report_pictures import app, marked_slide, pixels
from typer.testing import CliRunner

from smmil.errors import ConfigError, DataError
from smmil.images.matching import Original, find_case_images
from smmil.report import write_report
from smmil.report.cases import _all_cases
from smmil.report.pictures import _all_pictures, _case_picture

ROOM = 10_000_000


@pytest.mark.parametrize("place", [(14, 8), (9, 15)])
@pytest.mark.parametrize("room", [ROOM, 12_000])
def test_a_tile_of_the_slide_lies_where_the_picture_says(tmp_path, place, room):
    case = _all_cases({"m": [slide_case("s", 1, place=place)]})[0]
    picture = _case_picture(Original(marked_slide(tmp_path / "s.png", place)), case, room)
    image, (left, top, width, height) = pixels(picture), picture.area
    rows, columns = np.nonzero(image.mean(2) < 128)
    for found, start, size, side, tile in (
        (columns, left, width, image.shape[1], place[0]),
        (rows, top, height, image.shape[0], place[1]),
    ):
        per_pixel = size / side
        assert start + found.min() * per_pixel == pytest.approx(tile * TILE, abs=per_pixel)
        assert start + (found.max() + 1) * per_pixel == pytest.approx((tile + 1) * TILE, abs=per_pixel)


def test_the_picture_covers_all_tissue_and_stays_on_the_slide(tmp_path):
    case = _all_cases({"m": [slide_case("s", 2)]})[0]
    left, top, width, height = _case_picture(Original(write_slide_picture(tmp_path / "s.png", 2)), case, ROOM).area
    extent = case.rasters[0]["score"].facts["extent"]
    assert 0 <= left <= extent[0]
    assert 0 <= top <= extent[1]
    assert extent[2] <= left + width <= SIDE * TILE + 1
    assert extent[3] <= top + height <= SIDE * TILE + 1


def test_less_room_gives_smaller_pictures(tmp_path):
    case = _all_cases({"m": [slide_case("s", 2)]})[0]
    path = Original(write_slide_picture(tmp_path / "s.png", 2))
    large, small = (_case_picture(path, case, room) for room in (ROOM, 15_000))
    assert len(small.jpeg) <= 15_000 < len(large.jpeg)


def test_slides_are_found_by_name_in_a_folder_or_in_a_table(tmp_path):
    marked_slide(tmp_path / "s1.png", (1, 1))
    (tmp_path / "m").mkdir()
    marked_slide(tmp_path / "m" / "x.png", (1, 1))
    (tmp_path / "slides.csv").write_text("id,slide\n007,m/x.png\nother,y.png\n", encoding="utf-8")
    assert find_case_images(tmp_path, ["s1", "s2"]) == {"s1": Original(tmp_path / "s1.png")}
    assert find_case_images(tmp_path / "slides.csv", ["007"]) == {"007": Original(tmp_path / "m" / "x.png")}
    (tmp_path / "wrong.csv").write_text("name,slide\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="expected id and slide"):
        find_case_images(tmp_path / "wrong.csv", ["1"])
    with pytest.raises(DataError, match="no such folder"):
        find_case_images(tmp_path / "none", ["1"])


def test_ids_never_lead_out_of_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    marked_slide(tmp_path / "secret.png", (1, 1))
    assert find_case_images(tmp_path / "in", ["../secret", "../secret.png", str(tmp_path / "secret.png")]) == {}


def test_missing_and_damaged_slides_are_named_and_the_others_go_on(tmp_path):
    marked_slide(tmp_path / "good.png", (14, 8))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG not really")
    cases = _all_cases(
        {"m": [slide_case(n, i) for i, n in enumerate(["good", "broken", "absent"])] + [scan_case("ct")]}
    )
    found, failed = _all_pictures(cases, tmp_path, ROOM)
    assert list(found) == ["good"]
    assert sorted(failed) == ["absent", "broken", "ct"]
    assert failed["absent"] == "no slide of this name was found"
    assert failed["ct"] == "no scan of this name was found"


def test_a_slide_too_small_for_the_tiles_is_refused(tmp_path):
    Image.fromarray(np.zeros((50, 50, 3), np.uint8)).save(tmp_path / "s.png")
    case = _all_cases({"m": [slide_case("s", 0)]})[0]
    with pytest.raises(DataError, match="right slide"):
        _case_picture(Original(tmp_path / "s.png"), case, ROOM)


def test_the_command_writes_the_page_and_exits_with_3_when_pictures_are_missing(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [slide_case("a", 1), slide_case("b", 2, y=0)])
    marked_slide(tmp_path / "a.png", (14, 8))
    out = tmp_path / "r.html"
    fine = CliRunner().invoke(app(), [str(tmp_path / "m"), "--out", str(out), "--resamples", "50"])
    assert fine.exit_code == 0, fine.output
    assert "2 cases, m," in fine.output
    assert "95 % intervals, 50 resamples" in out.read_text(encoding="utf-8")
    partial = CliRunner().invoke(app(), [str(tmp_path / "m"), "--out", str(out), "--slides", str(tmp_path)])
    assert partial.exit_code == 3
    assert "no picture: b" in partial.output
    assert 'id="p0"' in out.read_text(encoding="utf-8") or 'id="p1"' in out.read_text(encoding="utf-8")


def test_the_command_refuses_two_thresholds(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [slide_case("a", 1)])
    done = CliRunner().invoke(app(), [str(tmp_path / "m"), "--threshold", "1", "--validation", str(tmp_path / "m")])
    assert isinstance(done.exception, ConfigError)


def test_pictures_reach_the_page(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [slide_case("a", 1)])
    done = write_report([tmp_path / "m"], tmp_path / "r.html", resamples=0, slides=_folder(tmp_path))
    assert done.without_picture == {}
    assert done.n_bytes == (tmp_path / "r.html").stat().st_size


def _folder(tmp_path):
    (tmp_path / "slides").mkdir()
    write_slide_picture(tmp_path / "slides" / "a.png", 1)
    return tmp_path / "slides"
