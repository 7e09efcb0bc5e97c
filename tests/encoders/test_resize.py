import numpy as np
import pytest
import torch

from smmil.encoders.encoder import _resampling, _resize


def slow_mean(image: np.ndarray, pixels: int) -> np.ndarray:
    """Area means by brute force: enlarge every source pixel to a block, then average whole blocks."""
    side = len(image)
    fine = np.kron(image, np.ones((pixels, pixels)))
    return fine.reshape(pixels, side, pixels, side).mean((1, 3))


@pytest.mark.parametrize(("side", "pixels"), [(12, 8), (16, 8), (9, 7), (30, 8)])
def test_shrinking_is_the_mean_over_the_area(side, pixels):
    image = np.random.default_rng(side).random((side, side))
    found = _resize(torch.from_numpy(image[None, None]).float(), pixels)[0, 0]
    np.testing.assert_allclose(found, slow_mean(image, pixels), atol=1e-6)


def test_enlarging_keeps_a_ramp_straight_and_in_place():
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    places = (np.arange(24) + 0.5) / 3 - 0.5
    np.testing.assert_allclose(_resize(ramp, 24)[0, 0, 5], np.clip(places, 0, 7), atol=1e-6)


@pytest.mark.parametrize(("side", "pixels"), [(27, 64), (256, 224), (64, 224), (1, 8), (300, 64)])
def test_an_even_area_keeps_its_colour(side, pixels):
    np.testing.assert_allclose(_resampling(side, pixels).sum(1), 1, rtol=1e-6)
    assert _resampling(side, pixels).shape == (pixels, side)


def test_the_right_size_is_left_alone():
    image = torch.rand(2, 3, 8, 8)
    assert _resize(image, 8) is image


def test_a_mirrored_image_stays_mirrored():
    image = torch.rand(1, 3, 27, 27)
    for pixels in (64, 16):
        torch.testing.assert_close(_resize(image.flip(-1), pixels), _resize(image, pixels).flip(-1))
