import multiprocessing

import h5py
import numpy as np
import pytest
import torch
from support import foreign_files as foreign

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.formats.convert import convert
from smmil.formats.inspection import describe
from smmil.frame import Frame

CELLS = foreign.cells()
X = foreign.features(len(CELLS))


def converted(tmp_path, mpp=None, stride=None, patch=512, **provenance):
    spacing = {} if mpp is None else {"spacing": (mpp, mpp), "unit": "um"}
    frame = Frame((patch, patch), stride=stride and (stride, stride), **spacing)
    bag = Bag("s1", torch.from_numpy(X), torch.from_numpy(CELLS * (stride or patch)), frame)
    write_bag(tmp_path / "s1.h5", bag, provenance={"encoder": "uni_v1", **provenance})
    return convert(tmp_path / "s1.h5", to="trident", out=tmp_path / "out")


def test_our_files_have_tridents_names_types_and_attributes(tmp_path):
    done = converted(tmp_path, mpp=0.25, stride=384, patch_size=256)
    job = tmp_path / "out" / "20x_256px_64px_overlap"
    expected = {
        "patch_size": 256,
        "patch_size_level0": 512,
        "level0_magnification": 40,
        "target_magnification": 20,
        "overlap": 64,
        "name": "s1",
        "level0_width": "None",
        "level0_height": "None",
    }
    for path, keys in (
        (job / "patches" / "s1_patches.h5", ["coords"]),
        (job / "features_uni_v1" / "s1.h5", ["coords", "features"]),
    ):
        with h5py.File(path) as file:
            assert sorted(file) == keys
            assert file["coords"].dtype == np.int64
            assert dict(file["coords"].attrs) == expected
    with h5py.File(job / "features_uni_v1" / "s1.h5") as file:
        assert dict(file["features"].attrs) == {"name": "s1", "encoder": "uni_v1"}
        assert np.array_equal(file["features"], X)
    assert [note for _, note in done.notes] == ["lost: spacing 0.25 x 0.25 um"]


@pytest.mark.parametrize(
    ("mpp", "power"), [(0.12, 80), (0.17, 60), (0.21, 40), (0.29, 40), (0.5, 20), (0.99, 10), (2.0, 5)]
)
def test_magnification_is_binned_from_the_pixel_size(tmp_path, mpp, power):
    converted(tmp_path, mpp=mpp)
    assert (tmp_path / "out" / f"{power}x_512px_0px_overlap" / "features_uni_v1" / "s1.h5").exists()


def test_a_file_of_trident_becomes_the_same_file_again(tmp_path):
    path = foreign.trident_file(tmp_path / "in", X, CELLS * 384, 512, overlap=64)
    done = convert(tmp_path / "in", to="trident", out=tmp_path / "out")
    assert not done.failed
    again = tmp_path / "out" / path.relative_to(tmp_path / "in")
    with h5py.File(path) as theirs, h5py.File(again) as ours:
        for name in ("features", "coords"):
            assert dict(theirs[name].attrs) == dict(ours[name].attrs)
            assert np.array_equal(theirs[name], ours[name])


def test_an_unknown_magnification_and_gaps_are_refused(tmp_path):
    assert "give --mpp" in next(iter(converted(tmp_path / "a").failed.values()))
    assert "no gaps" in next(iter(converted(tmp_path / "b", mpp=0.5, stride=600).failed.values()))


def test_coordinates_without_features_are_refused_as_such(tmp_path):
    converted(tmp_path, mpp=0.25)
    with pytest.raises(DataError, match="coordinates but no features"):
        read_bag(next((tmp_path / "out").rglob("*_patches.h5")))


def test_inspect_shows_magnifications_and_the_size_of_the_slide(tmp_path):
    facts = describe(foreign.trident_file(tmp_path, X, CELLS * 512, 512))["provenance"]
    assert facts == {
        "encoder": "uni_v1",
        "patch_size": 256,
        "level0_magnification": 40,
        "target_magnification": 20,
        "level0_width": 50000,
    }


def endless(path):
    """Damage the heap of texts so that its free space has no size: HDF5 would stand there for ever."""
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 9] ^= 4  # the heap seems to be longer than it is, and ends in zeros
    path.write_bytes(content + bytes(2048))


def refuse(path):
    with pytest.raises(DataError):
        read_provenance(path)


def test_a_damaged_text_is_refused_and_not_waited_for(tmp_path):
    path = foreign.trident_file(tmp_path, X, CELLS * 512, 512)
    endless(path)
    child = multiprocessing.get_context("fork").Process(target=refuse, args=(path,))
    child.start()
    child.join(20)
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert child.exitcode == 0
