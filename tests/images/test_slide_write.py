"""Written slides open elsewhere, say the truth about themselves and are the same bytes every time."""

import numpy as np
import openslide
import pytest
from support.pyramids import FLAVOURS, OFFSET, noise, slide_file

from smmil.errors import ConfigError, DataError
from smmil.synthetic import write_pyramid
from smmil.synthetic.slide_files import _build_levels

VENDORS = {"aperio": "aperio", "generic": "generic-tiff", "leica": "leica", "dicom": "dicom"}


def content(path) -> dict[str, bytes]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("compression", ["jpeg", "none"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_same_slide_is_the_same_bytes(tmp_path, flavour, compression):
    first = content(slide_file(tmp_path / "a", noise(100, 130), flavour, compression=compression))
    again = content(slide_file(tmp_path / "b", noise(100, 130), flavour, compression=compression))
    assert first == again
    assert content(slide_file(tmp_path / "c", noise(100, 130, seed=1), flavour, compression=compression)) != first


@pytest.mark.parametrize("mpp", [0.25, 0.499, 1.0])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_openslide_knows_them_by_their_makers(tmp_path, flavour, mpp):
    path = slide_file(tmp_path, noise(128, 192), flavour, mpp=mpp)
    with openslide.OpenSlide(path / "level_0.dcm" if path.is_dir() else path) as slide:
        properties = slide.properties
        assert properties["openslide.vendor"] == VENDORS[flavour]
        assert float(properties["openslide.mpp-x"]) == pytest.approx(mpp, rel=1e-5)
        assert float(properties["openslide.mpp-y"]) == pytest.approx(mpp, rel=1e-5)
        assert slide.level_downsamples == (1.0, 4.0)
        assert not slide.associated_images
        if flavour == "leica":
            assert [int(properties[f"openslide.bounds-{side}"]) for side in ("x", "y")] == list(OFFSET)


def test_jpeg_stays_near_the_image(tmp_path):
    smooth = np.add.outer(np.arange(128), np.arange(128))[..., None].repeat(3, 2).astype(np.uint8) // 2 + 60
    for flavour in FLAVOURS:
        path = slide_file(tmp_path, smooth, flavour, compression="jpeg")
        with openslide.OpenSlide(path / "level_0.dcm" if path.is_dir() else path) as slide:
            x, y = OFFSET if flavour == "leica" else (0, 0)
            pixels = np.asarray(slide.read_region((x, y), 0, (128, 128)).convert("RGB")).astype(int)
        assert np.abs(pixels - smooth).mean() < 2


def test_levels_are_means_without_the_incomplete_rest():
    image = noise(50, 70)
    levels = _build_levels(image, (1, 4, 16, 64))
    assert [level.shape for level in levels] == [(50, 70, 3), (12, 17, 3), (3, 4, 3)]
    assert np.abs(levels[1] - image[:48, :68].reshape(12, 4, 17, 4, 3).mean((1, 3))).max() <= 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flavour": "aperoi"}, "did you mean aperio"),
        ({"compression": "zip"}, "compression"),
        ({"mpp": -1}, "mpp"),
        ({"mpp": None, "flavour": "dicom"}, "without it"),
        ({"bounds_offset": (5, 5)}, "flavour='leica'"),
        ({"flavour": "leica"}, "bounds_offset"),
        ({"flavour": "leica", "bounds_offset": (5, 5), "mpp": 0.1234567}, "whole nanometres"),
        ({"tile": 100}, "multiple of 16"),
        ({"factors": (2, 4)}, "rise from 1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        write_pyramid(tmp_path / "slide.svs", noise(64, 64), **({"mpp": 0.5} | options))
    assert not list(tmp_path.iterdir())


def test_only_eight_bit_colour_images_are_written(tmp_path):
    for wrong in (np.zeros((64, 64), np.uint8), np.zeros((64, 64, 3)), np.zeros((0, 64, 3), np.uint8)):
        with pytest.raises(DataError, match="expected uint8"):
            write_pyramid(tmp_path / "slide.svs", wrong, mpp=0.5)
