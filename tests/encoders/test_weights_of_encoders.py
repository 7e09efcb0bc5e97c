import pickle
import socket
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from support.tiny_encoders import tiles
from torch import nn

from smmil.encoders import load_encoder, networks
from smmil.encoders.networks import _fit, _read_tensors
from smmil.errors import ConfigError, DataError, MissingExtra


class Small(nn.Module):
    """A stand-in for torchvision's resnet18: 512 features, then a classifier called fc."""

    def __init__(self, weights=None):
        super().__init__()
        assert weights is None
        self.conv = nn.Conv2d(3, 512, 8, 8)
        self.bn = nn.BatchNorm2d(512)
        self.fc = nn.Linear(512, 1000)

    def forward(self, images):
        return self.fc(self.bn(self.conv(images)).mean((2, 3)))


@pytest.fixture
def small_torchvision(monkeypatch, tmp_path):
    """torchvision replaced by the stand-in, weights looked for in an empty folder."""
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=SimpleNamespace(resnet18=Small)))
    monkeypatch.setattr(networks, "_prepare_torchvision", lambda what: None)
    monkeypatch.setenv("SMMIL_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_more):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def small_state(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Small().state_dict()


def test_without_weights_the_error_is_fast_and_names_file_and_folder(small_torchvision, no_network):
    start = time.perf_counter()
    with pytest.raises(DataError) as caught:
        load_encoder("resnet18", device="cpu")
    assert time.perf_counter() - start < 2
    assert f"put resnet18-f37072fd.pth into {small_torchvision} or " in str(caught.value)
    assert "torch/hub/checkpoints" in str(caught.value)


def test_the_embedded_encoder_needs_no_network(no_network):
    assert load_encoder("efficientnet-lite0", device="cpu", pixels=64).dim == 1280


def test_weights_are_found_in_the_stated_folder_or_given(small_torchvision, no_network, tmp_path):
    torch.save(small_state(), small_torchvision / "resnet18-f37072fd.pth")
    found = load_encoder("resnet18", device="cpu")
    other = tmp_path / "mine.safetensors"
    save_file(small_state(seed=1), other)
    given = load_encoder("resnet18", device="cpu", weights=other)
    assert found.dim == 512
    assert found.id != given.id
    assert given.id.startswith("resnet18@")
    tile = tiles(1, 224)
    images = (torch.from_numpy(tile).permute(0, 3, 1, 2) / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / (
        torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    )
    network = Small()
    network.load_state_dict(small_state(seed=1))
    network.fc = nn.Identity()
    expected = network.eval()(images).detach()
    torch.testing.assert_close(torch.from_numpy(given.encode(tile)).float(), expected, rtol=2e-3, atol=2e-3)


def test_the_id_follows_the_weights_and_not_the_file(small_torchvision, tmp_path):
    state = small_state()
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in state.items()}}
    torch.save(wrapped, tmp_path / "wrapped.pt")
    save_file({name: value for name, value in state.items() if not name.startswith("fc.")}, tmp_path / "a.safetensors")
    ids = [load_encoder("resnet18", device="cpu", weights=tmp_path / f).id for f in ("wrapped.pt", "a.safetensors")]
    assert ids[0] == ids[1]
    state["conv.weight"][0, 0, 0, 0] += 1
    torch.save(state, tmp_path / "b.pt")
    assert load_encoder("resnet18", device="cpu", weights=tmp_path / "b.pt").id != ids[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("conv.bias"), r"lacks conv\.bias;"),
        (lambda state: state.update(extra=torch.ones(1)), "has unknown extra;"),
        (lambda state: state.update({"bn.weight": torch.ones(3)}), r"has other shapes for bn\.weight;"),
    ],
)
def test_weights_of_another_network_are_refused_by_name(change, words, tmp_path):
    state = small_state()
    change(state)
    network = Small()
    network.fc = nn.Identity()
    before = network.conv.weight.clone()
    with pytest.raises(DataError, match=r"mine\.pth: weights of another network: " + words):
        _fit(network, state, ("fc.",), tmp_path / "mine.pth")
    assert torch.equal(network.conv.weight, before)


def test_many_missing_names_are_counted(tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"layer.weight": torch.ones(2)}, path)
    with pytest.raises(DataError, match=r"other\.pth: .* lacks _conv_stem\.weight, .* and \d+ more"):
        load_encoder("efficientnet-lite0", device="cpu", weights=path)


def test_code_in_a_file_of_weights_is_never_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return (tmp_path.joinpath("executed").touch, ())

    torch.save({"weight": Payload()}, tmp_path / "evil.pt")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Payload()))
    for name in ("evil.pt", "plain.pth"):
        with pytest.raises(DataError, match=f"{name}: cannot be read as weights alone"):
            _read_tensors(tmp_path / name)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_files_that_are_damaged_empty_or_absent_are_named(name, tmp_path):
    path = tmp_path / name
    with pytest.raises(DataError, match=f"{name}: no such file"):
        _read_tensors(path)
    for content in (b"", b"nothing to see here" * 50):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            _read_tensors(path)


def test_a_file_without_named_tensors_is_refused(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(DataError, match="holds no named tensors"):
        _read_tensors(tmp_path / "list.pt")


def test_an_impossible_size_is_refused(small_torchvision):
    with pytest.raises(ConfigError, match="pixels=8 is too small"):
        load_encoder("efficientnet-lite0", device="cpu", pixels=8)


@pytest.mark.parametrize("name", ["resnet50", "vit_b_32", "resnet50-bt", "timm:resnet10t", "hf-hub:lab/net"])
def test_without_torchvision_the_extra_is_named(name, monkeypatch):
    monkeypatch.setattr("smmil.encoders.networks.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"needs torchvision, .* pip install 'smmil\[timm\]'"):
        load_encoder(name, device="cpu")


def test_without_its_packages_the_embedded_encoder_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(MissingExtra, match=r"smmil\[slides\]"):
        load_encoder("efficientnet-lite0", device="cpu")
