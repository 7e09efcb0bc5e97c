"""Slices of a scan in one picture: each at its place in the sheet, through the window that was asked for."""

import numpy as np
import pytest
from support.lesion_cases import save_all, scan_case
from support.report_pictures import app, pixels
from support.report_slices import ROOM, case_of, grey_scan
from typer.testing import CliRunner

from smmil.errors import ConfigError, DataError
from smmil.frame import Frame
from smmil.images.matching import Original, find_case_images
from smmil.report import write_report
from smmil.report.pictures import _all_pictures, _scan_picture


@pytest.mark.parametrize("room", [ROOM, 9_000])
def test_every_slice_stands_in_its_cell(tmp_path, room):
    picture = _scan_picture(Original(grey_scan(tmp_path / "ct.nii.gz")), case_of(), room)
    sheet = pixels(picture)
    across, width, height, count = picture.layout
    assert count == 36
    assert width / height == pytest.approx(1.5, rel=0.05)
    for k in range(36):
        row, column = divmod(k, across)
        cell = sheet[row * height : (row + 1) * height, column * width :][:, :width]
        assert cell[:, width // 2 : -3].mean() == pytest.approx(2 * k / 80 * 255, abs=5)
        assert cell[:, 2 : width // 4].mean() < 12


def test_the_window_decides_the_shades(tmp_path):
    path = Original(grey_scan(tmp_path / "ct.nii.gz"))
    bright, dark = (pixels(_scan_picture(path, case_of(), ROOM, w)).max() for w in ("10/20", "bone"))
    assert bright > 240
    assert dark < 100  # 70 HU lie at a third of the way from -800 to 2000
    with pytest.raises(ConfigError, match="window"):
        _all_pictures([case_of()], tmp_path, ROOM, "brian")


def test_less_room_gives_smaller_slices(tmp_path):
    path = Original(grey_scan(tmp_path / "ct.nii.gz", rows=128, columns=128))
    large, small = (_scan_picture(path, case_of(), room) for room in (ROOM, 9_000))
    assert len(small.jpeg) <= 9_000 < len(large.jpeg)
    assert small.layout[1] < large.layout[1] == 128


@pytest.mark.parametrize(
    ("scan", "more", "words"),
    [({"n": 30}, {}, "has a slice 35, but .* only 30 slices"),
     ({"apart": 2.5}, {}, "slices 5 mm apart, but .* 2.5 mm apart"),
     ({}, {"coords": np.arange(36)[:, None] / 2}, "should count slices")],
)  # fmt: skip
def test_another_scan_is_refused_with_what_differs(tmp_path, scan, more, words):
    with pytest.raises(DataError, match=words):
        _scan_picture(Original(grey_scan(tmp_path / "ct.nii.gz", **scan)), case_of(**more), ROOM)


def test_a_scan_without_spacing_is_checked_by_its_slices_alone(tmp_path):
    case = case_of(frame=Frame((1,)))
    assert _scan_picture(Original(grey_scan(tmp_path / "ct.nii.gz", apart=2.5)), case, ROOM).layout[-1] == 36


def test_scans_are_found_by_name_whatever_their_ending(tmp_path):
    grey_scan(tmp_path / "a.nii.gz")
    grey_scan(tmp_path / "b.nii")
    (tmp_path / "c").mkdir()
    assert {id_: found.path.name for id_, found in find_case_images(tmp_path, list("abcd")).items()} == {
        "a": "a.nii.gz",
        "b": "b.nii",
        "c": "c",
    }


def test_slices_reach_the_page_and_scans_without_are_named(tmp_path):
    (tmp_path / "m").mkdir()
    save_all(tmp_path / "m", [scan_case("one"), scan_case("two", y=0)])
    (tmp_path / "ct").mkdir()
    grey_scan(tmp_path / "ct" / "one.nii.gz")
    out = tmp_path / "r.html"
    done = write_report([tmp_path / "m"], out, slides=tmp_path / "ct", resamples=0)
    assert done.without_picture == {"two": "no scan of this name was found"}
    assert '"slices":[6,60,40,36]' in out.read_text(encoding="utf-8")
    said = CliRunner().invoke(
        app(), [str(tmp_path / "m"), "--out", str(out), "--slides", str(tmp_path / "ct"), "--window", "lung"]
    )
    assert said.exit_code == 3
    assert "no picture: two: no scan of this name was found" in said.output
