"""The lattice covers the scanned area, counts in whole pixels, and keeps what has enough tissue."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import prepare_makers as makers

from smmil.errors import ConfigError, DataError
from smmil.images import open_slide
from smmil.prepare.selection import _Lattice
from smmil.prepare.tissue import _TissueMask

side = st.integers(1, 400)


@settings(max_examples=80, deadline=None)
@given(side, side, st.integers(1, 60), st.data())
def test_every_pixel_is_covered_and_no_tile_is_wholly_outside(width, height, footprint, data):
    step = data.draw(st.integers(1, footprint))
    cells = _Lattice((7, 5), (width, height), footprint, step, 0.5)
    coords = cells.coords()
    assert len(np.unique(coords, axis=0)) == len(coords) == cells.counts[0] * cells.counts[1]
    assert ((coords - (7, 5)) % step == 0).all()
    for axis, size, first in ((0, width, 7), (1, height, 5)):
        starts = np.unique(coords[:, axis]) - first
        covered = np.zeros(size, bool)
        for start in starts:
            covered[start : start + footprint] = True
        assert covered.all()
        assert starts[0] == 0
        assert starts[-1] < size
        assert not covered.all() or len(starts) == 1 or starts[-2] + footprint < size  # none too many


def test_sizes_are_rounded_to_whole_pixels_and_the_frame_tells_them(tmp_path):
    path = makers.write_slide(tmp_path / "s.svs", makers.glass(300, 400), 0.499)
    with open_slide(path) as slide:
        cells = _Lattice.over(slide, makers.recipe(tile_um=50.3, overlap_um=10.2))  # 100.80 and 20.44 pixels
    assert (cells.footprint, cells.step) == (101, 81)
    assert cells.frame.to_dict() == {"patch": [101, 101], "spacing": [0.499] * 2, "stride": [81, 81], "unit": "um"}


def test_a_tile_is_kept_from_the_stated_share_on():
    mask = _TissueMask(np.array([[True, False, False, False]]), (8, 32))
    cells = _Lattice((0, 0), (32, 32), 32, 32, 1.0)
    assert len(cells.tissue_tiles(mask, 0.25)) == 1
    assert len(cells.tissue_tiles(mask, 0.2501)) == 0


def test_tiles_less_than_a_pixel_apart_are_refused(tmp_path):
    path = makers.write_slide(tmp_path / "s.svs", makers.glass(64, 64), 0.5)
    with open_slide(path) as slide, pytest.raises(ConfigError, match="less than one pixel apart"):
        _Lattice.over(slide, makers.recipe(tile_um=1.0, overlap_um=0.9))


def test_a_slide_that_does_not_tell_its_pixel_size_asks_for_it(tmp_path):
    path = makers.write_slide(tmp_path / "s.svs", makers.glass(64, 64), None)
    with open_slide(path) as slide, pytest.raises(DataError, match="give it with --mpp"):
        _Lattice.over(slide, makers.recipe())
