"""The exam of every feature format: read, write, read again; damage is named, never passed on."""

import contextlib
import os
import random
import shutil

import h5py
import numpy as np
import pytest
import torch
from support import foreign_files as foreign

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import READERS, find_reader, read_bag, read_provenance, write_bag
from smmil.formats.convert import TARGETS, convert
from smmil.formats.inspection import describe
from smmil.frame import Frame

CELLS = foreign.cells()
X = foreign.features(len(CELLS))


def native_sample(folder, scale=2):
    side = 256 * scale
    bag = Bag("case", torch.from_numpy(X), torch.from_numpy(CELLS * side), Frame((side, side)))
    write_bag(folder / "case.h5", bag, provenance={"encoder": "any"})
    return folder / "case.h5"


def clam_sample(folder, scale=2):
    return foreign.clam_files(folder, X, CELLS * 256 * scale, level=1, downsample=(float(scale), float(scale)))


def clam_pt_sample(folder, scale=2):
    return clam_sample(folder, scale).parent.parent / "pt_files" / "case.pt"


def lazyslide_sample(folder, scale=2):
    spec = {**foreign.SPEC, "base_downsample": float(scale)}
    return foreign.lazyslide_store(folder, X, CELLS * 256 * scale, side=256 * scale, spec=spec, mpp=0.5 / scale)


# One maker per reader: the same tissue, tiled at 20x, on a slide scanned at 20x times `scale`.
SAMPLES = {
    "native": native_sample,
    "trident": lambda folder, scale=2: foreign.trident_file(folder, X, CELLS * 256 * scale, 256 * scale),
    "clam": clam_sample,
    "clam_pt": clam_pt_sample,
    "stamp": lambda folder, scale=2: foreign.stamp_file(folder, X, CELLS * 256.0, **foreign.STAMP),
    "torchmil": lambda folder, scale=2: foreign.torchmil_files(folder, X, CELLS * 256 * scale, size=256),
    "lazyslide": lazyslide_sample,
    "wsinfer": lambda folder, scale=2: foreign.wsinfer_csv(
        folder, X, CELLS * 256 * scale, width=256 * scale, height=256 * scale
    ),
}


@pytest.fixture(params=READERS, ids=lambda reader: reader.name)
def reader(request):
    assert request.param.name in SAMPLES, "a new reader needs a sample here"
    return request.param


@pytest.fixture
def sample(reader, tmp_path):
    path = SAMPLES[reader.name](tmp_path)
    assert find_reader(path) is reader
    return path


def test_the_sample_reads_as_the_bag_it_was(reader, sample):
    bag = read_bag(sample)
    assert bag.id == "case"
    assert torch.equal(bag.x, torch.from_numpy(X))
    assert torch.equal(bag.coords, torch.from_numpy(CELLS * (256 if reader.name == "stamp" else 512)))
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)
    assert isinstance(read_provenance(sample), dict)


@pytest.fixture
def opened(monkeypatch):
    """Paths and HDF5 files in the order in which they are opened."""
    found, begin = [], h5py.File.__init__

    def counted(file, name, *options, **more):
        begin(file, name, *options, **more)
        found.extend([(name, file)] if isinstance(name, str | os.PathLike) else [])

    monkeypatch.setattr(h5py.File, "__init__", counted)
    return found


def test_a_file_is_opened_once_for_all_that_is_asked_of_it_and_closed(sample, opened):
    """Twenty thousand small bags are checked before training, and opening one takes longer than reading it."""
    read_bag(sample)
    names = [name for name, _ in opened]
    assert len(names) == len(set(names))
    assert (sample in names) == (sample.suffix == ".h5")
    if sample.suffix == ".h5":
        with h5py.File(sample, "r+") as file:
            features = file["feats" if "feats" in file else "features"]
            features[0, 0] = np.nan
        with pytest.raises(DataError, match=r"checksum|NaN"):
            read_bag(sample)
    assert not any(file for _, file in opened)  # a file is false when it is closed


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_neighbours_are_the_same_at_every_magnification(reader, tmp_path, scale):
    bag = read_bag(SAMPLES[reader.name](tmp_path, scale))
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_what_was_read_can_be_written_and_read_again(sample, tmp_path):
    bag = read_bag(sample)
    write_bag(tmp_path / "again.h5", bag)
    again = read_bag(tmp_path / "again.h5")
    assert torch.equal(again.x, bag.x)
    assert torch.equal(again.coords, bag.coords)
    assert again.frame == bag.frame
    assert torch.equal(again.graph.dense(), bag.graph.dense())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("stride", [512, 384])
def test_a_round_trip_through_a_writable_format_is_lossless_or_says_what_is_lost(tmp_path, target, dtype, stride):
    coords = torch.from_numpy(CELLS * stride + 77)
    frame = Frame((512, 512), (0.2527, 0.2527), "um", None if stride == 512 else (stride, stride))
    bag = Bag("case", torch.from_numpy(X.astype(dtype)), coords, frame)
    write_bag(tmp_path / "case.h5", bag, provenance={"encoder": "uni_v1", "patch_size": 256})
    done = convert(tmp_path / "case.h5", to=target, out=tmp_path / "there", labels={"case": 1})
    back = convert(tmp_path / "there", to="native", out=tmp_path / "back", mpp=0.2527)
    assert not done.failed
    assert not back.failed
    again = read_bag(tmp_path / "back" / "case.h5")
    assert again.x.dtype == bag.x.dtype
    assert torch.equal(again.x, bag.x)
    assert torch.equal(again.coords, bag.coords)
    assert torch.equal(again.graph.dense(), read_bag(tmp_path / "case.h5").graph.dense())
    lost = " ".join(note for _, note in done.notes)
    for field in ("patch", "step", "spacing"):
        assert getattr(again.frame, field) == getattr(frame, field) or f"lost: {field}" in lost
    assert read_provenance(tmp_path / "back" / "case.h5").get("encoder") == "uni_v1" or "lost: provenance enc" in lost


def test_every_format_can_be_inspected(reader, sample):
    facts = describe(sample)
    assert (facts["format"], facts["instances"], facts["dim"]) == (reader.name, len(X), 7)
    assert facts["degrees"] == {str(d): foreign.degrees(CELLS).count(d) for d in sorted(set(foreign.degrees(CELLS)))}
    norms = np.linalg.norm(X.astype(np.float64), axis=1)
    assert facts["extreme_rows"]["largest_norm"].startswith(f"row {norms.argmax()} at (")
    assert facts["extreme_rows"]["smallest_norm"].startswith(f"row {norms.argmin()} at (")
    assert facts["warnings"] == []


def damaged(content, rng):
    """The content with a bit flipped, cut short, or both."""
    changed = bytearray(content[: rng.randrange(len(content)) if rng.random() < 0.4 else None])
    for _ in range(rng.choice([1, 1, 4])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_a_damaged_file_is_a_data_error_or_reads(sample):
    """Only a DataError may come out, and quickly, whichever byte of whichever file is wrong."""
    files = sorted(p for p in sample.rglob("*") if p.is_file()) if sample.is_dir() else [sample]
    rng = random.Random(0)
    for _ in range(150):
        path = rng.choice(files)
        content = path.read_bytes()
        if content:
            path.write_bytes(damaged(content, rng))
            for read in (read_bag, read_provenance):
                with contextlib.suppress(DataError):
                    read(sample)
            path.write_bytes(content)
    read_bag(sample)


def test_a_missing_file_is_named(sample):
    shutil.rmtree(sample) if sample.is_dir() else sample.unlink()
    with pytest.raises(DataError, match=sample.name):
        read_bag(sample)
