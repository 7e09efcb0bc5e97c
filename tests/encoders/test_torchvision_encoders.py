"""With torchvision and timm installed: the real networks, random weights in local files."""

import json
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import save_file
from support.tiny_encoders import tiles

from smmil.encoders import encoder_info, load_encoder
from smmil.encoders.networks import _prepare_torchvision
from smmil.errors import ConfigError, DataError

pytestmark = pytest.mark.skipif(
    find_spec("torchvision") is None or find_spec("timm") is None,
    reason="torchvision or timm is not installed (extra timm)",
)


@pytest.fixture(autouse=True)
def _local_places_only(monkeypatch, tmp_path):
    monkeypatch.setenv("SMMIL_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    _prepare_torchvision("a test")


LARGE = [pytest.param(*row, marks=pytest.mark.slow) for row in [("vit_b_32", 768), ("resnet50-bt", 2048)]]


@pytest.mark.parametrize(("name", "dim"), [("resnet18", 512), *LARGE])
def test_features_are_what_the_classifier_of_torchvision_sees(name, dim, tmp_path):
    import torchvision

    row = encoder_info(name)
    torch.manual_seed(0)
    whole = getattr(torchvision.models, row.network)(weights=None).eval()
    state = whole.state_dict()
    if name == "resnet50-bt":  # as released: without a classifier
        state = {key: value for key, value in state.items() if not key.startswith("fc.")}
    torch.save(state, tmp_path / row.files[0])
    head = whole.heads if name == "vit_b_32" else whole.fc
    seen = []
    head.register_forward_hook(lambda *call: seen.append(call[1][0]))
    tile = tiles(1, 224)
    transform = torchvision.transforms.Normalize(row.mean, row.std)
    with torch.no_grad():
        whole(transform(torch.from_numpy(tile).permute(0, 3, 1, 2) / 255))
    encoder = load_encoder(name, device="cpu")
    assert encoder.dim == dim
    torch.testing.assert_close(torch.from_numpy(encoder.encode(tile)).float(), seen[0], rtol=5e-3, atol=5e-3)


def test_a_network_of_fixed_size_refuses_another(tmp_path):
    import torchvision

    path = tmp_path / "vit.pt"
    torch.save(torchvision.models.vit_b_32(weights=None).state_dict(), path)
    with pytest.raises(ConfigError, match="vit_b_32: cannot take pixels=96"):
        load_encoder("vit_b_32", device="cpu", weights=path, pixels=96)


def test_timm_networks_bring_their_own_normalisation(tmp_path):
    import timm

    network = timm.create_model("resnet10t", pretrained=False)
    torch.save(network.state_dict(), tmp_path / "resnet10t.pth")
    encoder = load_encoder("timm:resnet10t", device="cpu")
    assert (encoder.dim, encoder.pixels) == (512, network.pretrained_cfg["input_size"][-1])
    assert encoder.mean == network.pretrained_cfg["mean"]
    assert encoder.encode(tiles(3, 40)).shape == (3, 512)


def test_an_unknown_timm_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match="timm knows no network 'resnet10x'; did you mean"):
        load_encoder("timm:resnet10x", device="cpu")


def test_a_hub_model_is_taken_from_its_folder_and_else_named_with_the_command(tmp_path):
    import timm

    folder = tmp_path / "lab--net"
    folder.mkdir()
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=4).state_dict(), folder / "model.safetensors")
    settings = {
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "input_size": [3, 224, 224],
        "classifier": "head",
        "license": "mit",
    }
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": settings}
    (folder / "config.json").write_text(json.dumps(config))
    encoder = load_encoder("hf-hub:lab/net", device="cpu")
    assert (encoder.dim, encoder.mean, encoder.std, encoder.licence) == (192, (0.5,) * 3, (0.25,) * 3, "mit")
    assert load_encoder("hf-hub:lab/net", device="cpu", weights=folder).id == encoder.id
    with pytest.raises(DataError, match=r"lab/other: no local copy .* run `smmil encoders fetch hf-hub:lab/other`"):
        load_encoder("hf-hub:lab/other", device="cpu")
