import threading
import time

import numpy as np
import pytest
import torch
from support.tiny_encoders import MeanColour, encoder, tiles
from torch import nn

from smmil.encoders import encode_stream
from smmil.encoders.encoder import _in_order, _read_ahead
from smmil.errors import ConfigError, DataError


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "smmil-reader"]


@pytest.mark.parametrize("n", [0, 1, 4, 7, 50])
@pytest.mark.parametrize(("batch_size", "ahead"), [(1, 1), (8, 1), (32, 3)])
def test_a_stream_gives_what_the_whole_gives(n, batch_size, ahead):
    image = tiles(n, 8)
    tiny = encoder(MeanColour())
    found = encode_stream(tiny, iter(image), batch_size=batch_size, ahead=ahead)
    assert found.shape == (n, 3)
    assert found.tobytes() == tiny.encode(image).tobytes()


def test_order_is_kept_when_later_work_is_done_first(two_threads):
    def slow_when_even(number: int) -> int:
        time.sleep(0.02 if number % 2 == 0 else 0)
        return number

    assert list(_in_order(slow_when_even, range(15), threads=2)) == list(range(15))


def test_an_error_while_reading_is_raised_here_and_the_reader_ends():
    def damaged():
        yield from tiles(9, 8)
        raise DataError("slide.svs: damaged")

    with pytest.raises(DataError, match=r"slide\.svs: damaged"):
        encode_stream(encoder(MeanColour()), damaged())
    assert readers() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_the_network_does_not_leave_a_reader_behind(threads, two_threads):
    class Broken(nn.Module):
        def forward(self, images):
            raise RuntimeError("out of order")

    def endless():
        while True:
            yield tiles(1, 8)[0]

    torch.set_num_threads(threads)
    with pytest.raises(RuntimeError, match="out of order"):
        encode_stream(encoder(Broken()), endless())
    assert readers() == []


def test_reading_runs_ahead_but_only_so_far():
    taken = []

    def counted():
        for number in range(100):
            taken.append(number)
            yield number

    items = _read_ahead(counted(), limit=5)
    assert next(items) == 0
    deadline = time.monotonic() + 2
    while len(taken) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(taken) == 7  # one given, five waiting, one in the reader's hand
    items.close()
    assert readers() == []


def test_the_next_tiles_are_read_while_the_network_computes():
    read_on = threading.Event()

    class WaitsForTheReader(MeanColour):
        def forward(self, images):
            assert read_on.wait(timeout=10), "nobody reads while the network computes"
            return super().forward(images)

    def watched():
        for number, tile in enumerate(tiles(12, 8)):
            if number == 8:
                read_on.set()
            yield tile

    assert len(encode_stream(encoder(WaitsForTheReader()), watched())) == 12


def test_tiles_of_two_sizes_are_refused():
    with pytest.raises(DataError, match="different kinds in one stream"):
        encode_stream(encoder(MeanColour()), [tiles(1, 8)[0], tiles(1, 9)[0]])


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match="batch_size=0"):
        encode_stream(encoder(MeanColour()), [], batch_size=0)
    with pytest.raises(ConfigError, match="ahead=0"):
        encode_stream(encoder(MeanColour()), np.empty((0, 8, 8, 3)), ahead=0)
