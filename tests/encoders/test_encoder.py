from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.tiny_encoders import MeanColour, encoder, tiles
from torch import nn

from smmil.errors import DataError


class Remembers(nn.Module):
    """Features that tell how the network was called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, images):
        self.calls.append((tuple(images.shape), torch.get_num_threads(), torch.is_grad_enabled()))
        return torch.full((len(images), 1), float(len(images)))


def test_the_mean_colour_is_normalised_by_hand():
    tile = np.zeros((1, 8, 8, 3), np.uint8)
    tile[..., 0], tile[..., 1], tile[..., 2] = 255, 51, 0
    found = encoder(MeanColour(), mean=(0.5, 0.1, 0.25), std=(0.25, 0.1, 0.5)).encode(tile)
    np.testing.assert_allclose(found, [[2.0, 1.0, -0.5]], rtol=1e-3)


def test_colours_stay_in_their_order_and_rows_stay_rows():
    class Corner(nn.Module):
        def forward(self, images):
            return torch.stack([images[:, 0, 0, 5], images[:, 1, 5, 0], images[:, 2, 7, 7]], 1)

    image = tiles(3, 8)
    expected = np.stack([image[:, 0, 5, 0], image[:, 5, 0, 1], image[:, 7, 7, 2]], 1) / np.float32(255)
    assert np.array_equal(encoder(Corner()).encode(image), expected.astype(np.float16))


@pytest.mark.parametrize("n", [1, 3, 4, 5, 9])
def test_the_network_always_sees_the_same_shape(n):
    network = Remembers()
    assert encoder(network, dim=1).encode(tiles(n, 8)).tolist() == [[4.0]] * n
    assert set(network.calls) == {((4, 3, 8, 8), 1, False)}
    assert len(network.calls) == -(-n // 4)


def test_each_worker_computes_on_one_thread_and_the_setting_comes_back(two_threads):
    network = Remembers()
    encoder(network, dim=1).encode(tiles(20, 8))
    assert {threads for _, threads, _ in network.calls} == {1}
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as begins_later:
        assert begins_later.submit(torch.get_num_threads).result() == 2


def test_stored_values_are_the_nearest_sixteen_bit_numbers():
    image = tiles(6, 8)
    exact = torch.from_numpy(image).permute(0, 3, 1, 2).float().div(255).mean((2, 3)).numpy()
    found = encoder(MeanColour()).encode(image)
    assert found.dtype == np.float16
    step = np.spacing(found.astype(np.float16)).astype(np.float64)
    assert (np.abs(found.astype(np.float64) - exact) <= step / 2 + 1e-7).all()


def test_values_beyond_sixteen_bits_are_an_error_and_not_an_infinity():
    class Huge(nn.Module):
        def forward(self, images):
            return images.mean((2, 3)) * 1e6

    with pytest.raises(DataError, match=r"tiny@0: some features are not finite in 16 bits"):
        encoder(Huge()).encode(np.full((1, 8, 8, 3), 255, np.uint8))


def test_no_tiles_give_no_rows():
    assert encoder(MeanColour()).encode(tiles(0, 8)).shape == (0, 3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros((8, 8, 3), np.uint8), r"got shape \(8, 8, 3\)"),
        (np.zeros((1, 8, 9, 3), np.uint8), "pad or crop them to squares"),
        (np.zeros((1, 8, 8, 1), np.uint8), r"expected \(n, side, side, 3\)"),
        (np.zeros((1, 8, 8, 3)), "got float64 values"),
        (np.full((1, 8, 8, 3), 40, np.float32), "got float32 values from 40 to 40"),
        (np.full((1, 8, 8, 3), np.nan, np.float32), "from nan to nan"),
    ],
)
def test_other_arrays_are_refused_with_the_reason(wrong, words):
    with pytest.raises(DataError, match=words):
        encoder(MeanColour()).encode(wrong)


def test_provenance_is_plain_and_complete():
    facts = encoder(MeanColour(), mpp=0.5).provenance()
    assert facts == {
        "id": "tiny@0", "dim": 3, "pixels": 8, "mean": [0.0] * 3, "std": [1.0] * 3,
        "mpp": 0.5, "licence": "none", "source": "here", "autocast": False,
        "name": "tiny", "revision": "0", "pooling": "not stated", "gate": "none", "commit": None,
        "precision": "float32",
    }  # fmt: skip
