"""Opening slides, levels, pixel sizes, thumbnails, readers."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pyramids import FLAVOURS, noise, origin, planted, qptiff, slide_file

from smmil.errors import ConfigError, DataError
from smmil.images import need_mpp, open_slide
from smmil.images.openslide_slide import OpenSlideSlide
from smmil.images.slide import choose_mpp

REAL = Path(os.environ.get("SMMIL_DATA", "")) / "cmu_small_svs" / "cmu_small_region.svs"
needs_real = pytest.mark.skipif(
    not os.environ.get("SMMIL_DATA") or not REAL.is_file(), reason="set SMMIL_DATA to a folder with cmu_small_svs/"
)


def test_the_coarsest_level_that_loses_nothing_is_read(tmp_path):
    levels = [np.full((size, size, 3), value, np.uint8) for size, value in ((256, 10), (64, 20), (16, 30))]
    with open_slide(slide_file(tmp_path, levels)) as slide:
        values = {
            scale: int(slide.read(0, 0, 16 * scale, 16)[0, 0, 0]) for scale in (0.5, 1, 3.9, 3.97, 4, 15, 15.9, 16)
        }
    assert values == {0.5: 10, 1: 10, 3.9: 10, 3.97: 20, 4: 20, 15: 20, 15.9: 30, 16: 30}


def test_a_missing_pixel_size_is_none_and_asked_for(tmp_path):
    path = slide_file(tmp_path, noise(64, 64), mpp=None)
    with open_slide(path) as slide:
        assert slide.mpp is None
        with pytest.raises(DataError, match=r"slide\.svs.*--mpp"):
            need_mpp(slide)
        with pytest.raises(DataError, match="--mpp"):
            slide.read_um(0, 0, 64, 64)
    with open_slide(path, mpp=0.25) as slide:
        assert need_mpp(slide) == 0.25
        assert slide.notes == ()


def test_a_pixel_size_that_contradicts_the_file_is_used_and_noted(tmp_path):
    with open_slide(slide_file(tmp_path, noise(64, 64), mpp=0.5), mpp=0.25) as slide:
        assert slide.mpp == 0.25
        assert slide.notes == ("mpp: the file says 0.5, the user 0.25; the user's is used",)


def test_pixel_sizes_are_believed_only_when_a_microscope_could_have_them():
    assert choose_mpp((0.25, 0.252), None) == (pytest.approx(0.251), ())
    mean, notes = choose_mpp((0.25, 0.26), None)
    assert mean == pytest.approx(0.255)
    assert "not square" in notes[0]
    assert choose_mpp((352.8, 352.8), None)[0] is None
    assert "352.8" in choose_mpp((352.8, 352.8), None)[1][0]
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--mpp"):
            choose_mpp((None, None), wrong)


@pytest.mark.parametrize("max_side", [1000, 300, 100, 77, 9])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_thumbnail_has_its_exact_scale(tmp_path, flavour, max_side):
    x, y, side = 100, 60, 80
    ox, oy = origin(flavour)
    with open_slide(slide_file(tmp_path, planted(256, 320, x, y, side), flavour)) as slide:
        thumbnail = slide.thumbnail(max_side)
        assert thumbnail.scale == max(1, max(slide.size) / max_side)
        assert max(thumbnail.image.shape[:2]) == min(max_side, max(slide.size))
    greenness = (thumbnail.image[..., 1].astype(float) - thumbnail.image[..., 0]).clip(0) > 0
    rows, columns = np.nonzero(greenness)
    found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * thumbnail.scale
    assert np.abs(found - [ox + x, oy + y, ox + x + side, oy + y + side]).max() <= thumbnail.scale
    assert thumbnail.damaged == ()


def test_large_requests_are_put_together_from_blocks(tmp_path, monkeypatch):
    image = noise(300, 340)
    with open_slide(slide_file(tmp_path, image, factors=(1,))) as slide:
        whole = [slide.thumbnail(300).image, slide.read(-10, 5, 320, 320), slide.read(3, 4, 300, 77)]
        monkeypatch.setattr("smmil.images.slide._BLOCK", 50)
        parts = [slide.thumbnail(300).image, slide.read(-10, 5, 320, 320), slide.read(3, 4, 300, 77)]
    for a, b in zip(whole, parts, strict=True):
        assert np.abs(a.astype(int) - b).max() <= 1  # the rounding of a position


@pytest.mark.parametrize("compression", ["jpeg", "none"])
@pytest.mark.parametrize("flavour", ["aperio", "generic"])
def test_direct_decoding_gives_openslides_pixels_to_the_bit(tmp_path, flavour, compression):
    path = slide_file(tmp_path, noise(300, 340), flavour, compression=compression)
    direct, composed = OpenSlideSlide(path), OpenSlideSlide(path, fast=False)
    for x, y, footprint, pixels in ((0, 0, 64, 64), (30, 50, 128, 128), (250, 200, 100, 100), (7, 9, 200, 61)):
        assert np.array_equal(direct.read(x, y, footprint, pixels), composed.read(x, y, footprint, pixels))
    assert direct._trusts(0)
    assert not composed._trusts(0)
    assert direct.reader == composed.reader == "openslide"


def test_direct_decoding_is_not_trusted_when_it_differs(tmp_path):
    path = slide_file(tmp_path, noise(128, 128), factors=(1,))
    with OpenSlideSlide(path) as slide:
        level = slide._tiles.levels[0]
        object.__setattr__(level, "decode", lambda data, honest=level.decode: 255 - honest(data))
        assert np.array_equal(slide.read(0, 0, 128, 128), noise(128, 128))
        assert not slide._trusts(0)


def test_where_openslide_shifts_pixels_direct_decoding_waits_to_be_asked(tmp_path):
    path = slide_file(tmp_path, noise(301, 343))
    with OpenSlideSlide(path) as slide, open_slide(path, reader="tifffile") as exact:
        assert (slide._trusts(0), slide._trusts(1)) == (True, False)
        assert (exact.reader, exact._trusts(1)) == ("tifffile", True)
        level = noise(301, 343)[:300, :340].reshape(75, 4, 85, 4, 3).mean((1, 3))
        assert np.abs(exact.read(80, 40, 200, 50) - level[10:60, 20:70]).max() <= 0.5


def test_dicom_gives_the_same_pixels_as_wsidicom(tmp_path):
    wsidicom = pytest.importorskip("wsidicom")
    path = slide_file(tmp_path, noise(200, 260), "dicom", compression="jpeg")
    with wsidicom.WsiDicom.open(path) as other, open_slide(path) as slide:
        assert slide.size == (other.size.width, other.size.height)
        expected = np.asarray(other.read_region((30, 20), 0, (150, 150)))
        assert np.array_equal(slide.read(30, 20, 150, 150), expected)


def test_a_dicom_slide_opens_from_any_of_its_files(tmp_path):
    folder = slide_file(tmp_path, noise(128, 128), "dicom")
    with open_slide(folder) as whole, open_slide(folder / "level_1.dcm") as part:
        assert whole.path == folder
        assert np.array_equal(whole.read(0, 0, 128, 128), part.read(0, 0, 128, 128))


def test_two_dicom_slides_in_one_folder_are_refused(tmp_path):
    folder = slide_file(tmp_path, noise(64, 64), "dicom", factors=(1,))
    (folder / "level_0.dcm").rename(folder / "other.dcm")
    slide_file(tmp_path, noise(64, 64, seed=1), "dicom", factors=(1,))
    with pytest.raises(DataError, match="2 DICOM series"):
        open_slide(folder)


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp"])
def test_plain_images_are_slides_of_one_level(tmp_path, suffix):
    image = noise(90, 110)
    Image.fromarray(image).save(tmp_path / f"plain.{suffix}")
    with open_slide(tmp_path / f"plain.{suffix}", mpp=0.5) as slide:
        assert (slide.reader, slide.size, slide.mpp, slide.downsamples) == ("pillow", (110, 90), 0.5, (1.0,))
        assert np.array_equal(slide.read(20, 10, 64, 64), image[10:74, 20:84])


@pytest.mark.parametrize("compression", ["none", "lzw"])
def test_a_bright_field_qptiff_is_a_slide_without_its_label(tmp_path, compression):
    image = planted(512, 640, 128, 64, 64)
    with open_slide(qptiff(tmp_path / "slide.qptiff", image, compression=compression, mpp=0.4988)) as slide:
        assert slide.level_sizes == ((640, 512), (320, 256), (160, 128))
        assert slide.mpp == pytest.approx(0.4988, rel=1e-4)
        assert np.array_equal(slide.read(64, 0, 256, 256), image[:256, 64:320])
        assert np.array_equal(slide.read(64, 0, 256, 64), image[:256:4, 64:320:4])


def test_fluorescence_in_a_qptiff_is_refused_with_its_channels(tmp_path):
    path = qptiff(tmp_path / "codex.qptiff", noise(256, 256), channels=("DAPI", "CD8"))
    with pytest.raises(DataError, match=r"codex\.qptiff: 2 fluorescence channel\(s\) \(DAPI, CD8\) and no RGB picture"):
        open_slide(path)
    hidden = qptiff(tmp_path / "l.tif", noise(256, 256), label={"tile": (64, 64), "subfiletype": 1})
    with pytest.raises(DataError, match="Label image is marked as a level"):
        open_slide(hidden)


def test_transparency_lies_over_white(tmp_path):
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[:32, :, 3] = 255
    pixels[32:48, :, 3] = 51
    Image.fromarray(pixels).save(tmp_path / "clear.png")
    with open_slide(tmp_path / "clear.png") as slide:
        column = slide.read(0, 0, 64, 64)[:, 0, 0]
    assert column[:32].max() == 0
    assert np.all(column[32:48] == 204)
    assert np.all(column[48:] == 255)


def test_sixteen_bit_images_are_refused(tmp_path):
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="8 bits"):
        open_slide(tmp_path / "deep.png")


def test_an_image_that_asks_to_be_turned_is_noted(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(noise(20, 30)).save(tmp_path / "turned.jpg", exif=exif)
    with open_slide(tmp_path / "turned.jpg") as slide:
        assert slide.size == (30, 20)
        assert "as stored" in slide.notes[0]


def test_readers_are_chosen_by_name_and_refuse_what_they_cannot_read(tmp_path):
    Image.fromarray(noise(20, 30)).save(tmp_path / "plain.png")
    with pytest.raises(ConfigError, match="did you mean openslide"):
        open_slide(tmp_path / "plain.png", reader="openslid")
    with pytest.raises(DataError, match="supported are"):
        open_slide(tmp_path / "plain.png", reader="openslide")
    with pytest.raises(ConfigError, match="use reader 'openslide'"):
        open_slide(slide_file(tmp_path, noise(64, 64), "leica"), reader="tifffile")


@pytest.mark.parametrize("wrong", [{"pixels": 0}, {"footprint": 0}, {"footprint": float("inf")}, {"x": float("nan")}])
def test_squares_that_are_none_are_refused(tmp_path, wrong):
    with open_slide(slide_file(tmp_path, noise(64, 64))) as slide, pytest.raises(ConfigError, match="not a square"):
        slide.read(**({"x": 0, "y": 0, "footprint": 64, "pixels": 64} | wrong))


def test_an_open_slide_is_not_sent_to_other_processes(tmp_path):
    with open_slide(slide_file(tmp_path, noise(64, 64))) as slide, pytest.raises(TypeError, match="send its path"):
        pickle.dumps(slide)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forking is for POSIX systems")
@pytest.mark.parametrize("flavour", ["aperio", "leica"])
def test_a_forked_process_reads_the_same_pixels(tmp_path, flavour):
    code = f"""
import os, sys
from smmil.images import open_slide
slide = open_slide({str(slide_file(tmp_path, noise(256, 256), flavour))!r})
expected = [slide.read(64 * i, 32, 64, 64).tobytes() for i in range(4)]
child = os.fork()
same = all(slide.read(64 * (i % 4), 32, 64, 64).tobytes() == expected[i % 4] for i in range(200))
if child == 0:
    os._exit(0 if same else 1)
sys.exit(0 if same and os.waitpid(child, 0)[1] == 0 else 1)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_closed_slide_says_so(tmp_path):
    slide = open_slide(slide_file(tmp_path, noise(64, 64)))
    slide.close()
    slide.close()
    with pytest.raises(ValueError, match="after close"):
        slide.read(0, 0, 64, 64)


def test_importing_is_cheap():
    heavy = ("openslide", "tifffile", "pydicom", "PIL", "scipy", "torch")
    code = f"import sys, smmil.images; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@needs_real
@pytest.mark.parametrize("reader", ["openslide", "tifffile"])
def test_a_real_slide_gives_openslides_own_pixels(reader):
    import openslide

    with openslide.OpenSlide(REAL) as raw, open_slide(REAL, reader=reader) as slide:
        assert slide.size == (2220, 2967)
        assert slide.mpp == pytest.approx(0.499)
        assert slide.bounds == (0, 0, 2220, 2967)
        for x, y in ((0, 0), (240, 480), (777, 1313), (1900, 2700)):
            expected = np.asarray(raw.read_region((x, y), 0, (240, 240)).convert("RGB"))
            assert np.array_equal(slide.read(x, y, 240, 240), expected)
        assert slide._trusts(0)
