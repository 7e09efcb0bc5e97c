import h5py
import numpy as np
import pytest
import torch
from support import foreign_files as foreign

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.formats.convert import convert
from smmil.frame import Frame

CELLS = foreign.cells()
X = foreign.features(len(CELLS), dtype=np.float16)


def test_micrometres_stay_micrometres_when_nobody_knows_the_pixel_size(tmp_path):
    bag = read_bag(foreign.stamp_file(tmp_path, X, (CELLS * 256.0).astype(np.float32), **foreign.STAMP))
    assert bag.frame == Frame((256, 256), (1.0, 1.0), "um")
    assert bag.x.dtype == torch.float16
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)
    assert read_provenance(tmp_path / "ctranspath-abc" / "case.h5") == {
        "encoder": "ctranspath",
        "stamp_version": "2.1.1",
        "code_hash": "abc",
        "tile_size_um": 256,
        "tile_size_px": 224,
    }


@pytest.mark.parametrize(
    ("attributes", "unit", "side", "um"),
    [
        ({"tile_size_um": 300.0}, 300.0, 300, 1.0),
        ({"tile_size": 300.0, "unit": "um"}, 300.0, 300, 1.0),
        ({"tile_size": 224, "unit": "um"}, 224.0, 224, 1.0),
        ({"tile_size": 224, "unit": "px"}, 224.0, 224, 256 / 224),
        ({}, 224.0, 224, 256 / 224),
    ],
)
def test_every_generation_of_files_has_its_tile_size(tmp_path, attributes, unit, side, um):
    """The oldest: 224 px are 256 um, so patches of 224 units at 256/224 um each."""
    bag = read_bag(foreign.stamp_file(tmp_path, X, CELLS * unit, **attributes))
    assert bag.frame == Frame((side, side), (um, um), "um")
    assert torch.equal(bag.coords, torch.from_numpy(CELLS * int(unit)))
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_coordinates_in_single_precision_have_the_same_neighbours(tmp_path):
    """Far from the origin float32 is off by 4e-3 um."""
    coords = ((CELLS + 300) * 256.0 * 1.0037).astype(np.float32)
    bag = read_bag(foreign.stamp_file(tmp_path, X, coords, **{**foreign.STAMP, "tile_size_um": 256 * 1.0037}))
    assert bag.frame.stride is None
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_an_unknown_tile_size_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"case\.h5: no tile size in the file, and tiles are 300 apart"):
        read_bag(foreign.stamp_file(tmp_path, X, CELLS * 300.0))


def test_features_of_a_whole_slide_are_refused(tmp_path):
    with h5py.File(tmp_path / "slide.h5", "w") as file:
        file["feats"] = X[:1]
        file.attrs["feat_type"] = "slide"
    with pytest.raises(DataError, match="of a whole slide or patient"):
        read_bag(tmp_path / "slide.h5")


@pytest.mark.parametrize("far", [7, 190_007])
def test_with_the_pixel_size_micrometres_become_exact_pixels(tmp_path, far):
    """At 190,007 px single precision is off by 0.008 px."""
    pixels, um = CELLS * 1013 + far, 0.2527
    attributes = {**foreign.STAMP, "tile_size_um": 1013 * um}
    path = foreign.stamp_file(tmp_path, X, (pixels * um).astype(np.float32), **attributes)
    done = convert(path, to="native", out=tmp_path / "out", mpp=um)
    assert not done.failed
    bag = read_bag(tmp_path / "out" / "case.h5")
    assert torch.equal(bag.coords, torch.from_numpy(pixels))
    assert bag.frame == Frame((1013, 1013), (um, um), "um")


def test_coordinates_that_are_no_pixels_stay_between_them(tmp_path):
    path = foreign.stamp_file(tmp_path, X, CELLS * 256.0 + 0.1, **foreign.STAMP)
    convert(path, to="native", out=tmp_path / "out", mpp=0.5)
    assert np.allclose(read_bag(tmp_path / "out" / "case.h5").coords, CELLS * 512 + 0.2, atol=1e-9)


def test_micrometres_are_written_in_double_precision_where_single_would_round(tmp_path):
    written(tmp_path, spacing=(0.2527, 0.2527), unit="um")
    with h5py.File(tmp_path / "out" / "uni_v2" / "s1.h5") as file:
        assert np.array_equal(file["coords"], CELLS * 512 * 0.2527)


def written(tmp_path, dtype=np.float16, **frame):
    bag = Bag("s1", torch.from_numpy(X.astype(dtype)), torch.from_numpy(CELLS * 512), Frame((512, 512), **frame))
    write_bag(tmp_path / "s1.h5", bag, provenance={"encoder": "uni/v2", "tile_size_px": 224})
    return convert(tmp_path / "s1.h5", to="stamp", out=tmp_path / "out")


def test_our_files_have_stamps_keys_types_and_attributes(tmp_path):
    done = written(tmp_path, spacing=(0.5, 0.5), unit="um")
    with h5py.File(tmp_path / "out" / "uni_v2" / "s1.h5") as file:
        assert sorted(file) == ["coords", "feats"]
        assert (file["feats"].dtype, file["coords"].dtype) == (np.float16, np.float32)
        assert np.array_equal(file["feats"], X)
        assert np.array_equal(file["coords"], CELLS * 256.0)
        assert dict(file.attrs) == {
            "stamp_version": "2.1.0",
            "extractor": "uni/v2",
            "unit": "um",
            "tile_size_um": 256.0,
            "tile_size_px": 224,
            "code_hash": "smmil",
            "feat_type": "tile",
        }
    assert [note for _, note in done.notes] == [
        "lost: pixels as unit, 0.5 um each (read it again with --mpp 0.5 to have them back)"
    ]


def test_single_precision_is_kept_and_said(tmp_path):
    done = written(tmp_path, dtype=np.float32, spacing=(0.5, 0.5), unit="um")
    assert "differs: features stay float32, STAMP itself writes float16" in [note for _, note in done.notes]
    assert read_bag(tmp_path / "out" / "uni_v2" / "s1.h5").x.dtype == torch.float32


def test_pixels_of_unknown_size_cannot_become_micrometres(tmp_path):
    assert "give --mpp" in next(iter(written(tmp_path).failed.values()))
