"""The exam of every feature format: read, write, read again; damage is named, never passed on."""

import contextlib
import random

import pytest
import torch

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import READERS, native, read_bag, read_provenance, write_bag
from smmil.frame import Frame


def sample_bag():
    cells = torch.cartesian_prod(torch.arange(6), torch.arange(5)) * 256
    x = torch.randn(30, 7, generator=torch.Generator().manual_seed(3))
    return Bag("case", x, cells, Frame(patch=(256, 256)))


def native_sample(folder):
    write_bag(folder / "case.h5", sample_bag(), provenance={"encoder": "any"})
    return folder / "case.h5"


SAMPLES = {native: native_sample}


@pytest.fixture(params=READERS, ids=lambda reader: reader.__name__.rpartition(".")[2])
def sample(request, tmp_path):
    assert request.param in SAMPLES, "a new reader needs a sample here"
    path = SAMPLES[request.param](tmp_path)
    assert next(r for r in READERS if r.recognises(path)) is request.param
    return path


def test_the_sample_reads_as_the_bag_it_was(sample):
    bag, expected = read_bag(sample), sample_bag()
    assert torch.equal(bag.x, expected.x)
    assert torch.equal(bag.coords, expected.coords)
    assert bag.graph.isolated_share == 0
    assert isinstance(read_provenance(sample), dict)


def test_what_was_read_can_be_written_and_read_again(sample, tmp_path):
    bag = read_bag(sample)
    write_bag(tmp_path / "again.h5", bag)
    again = read_bag(tmp_path / "again.h5")
    assert torch.equal(again.x, bag.x)
    assert torch.equal(again.coords, bag.coords)
    assert again.frame == bag.frame
    assert torch.equal(again.graph.dense(), bag.graph.dense())


def test_a_damaged_file_is_a_data_error_or_reads(sample):
    content, rng = sample.read_bytes(), random.Random(0)
    for _ in range(150):
        cut, place = rng.randrange(len(content)), rng.randrange(len(content))
        damaged = bytearray(content[: cut if rng.random() < 0.5 else None])
        if place < len(damaged):
            damaged[place] ^= 1 << rng.randrange(8)
        sample.write_bytes(damaged)
        with contextlib.suppress(DataError):
            read_bag(sample)


def test_a_missing_file_is_named(sample):
    sample.unlink()
    with pytest.raises(DataError, match=sample.name):
        read_bag(sample)
