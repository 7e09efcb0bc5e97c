"""Checkpoints: everything comes back to the bit, and damage is noticed."""

import random

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from smmil.errors import ConfigError, DataError
from smmil.train.folder import State, _load_checkpoint, _read_state, _save_checkpoint
from smmil.weights import read_weights, save_weights

IDENTITY = {"config": "c", "split": "s", "versions": {"torch": "x"}}


class Awkward(nn.Module):
    """Shared, transposed, 0-dim and integer tensors, and spectral norm's random buffers."""

    def __init__(self):
        super().__init__()
        self.first = spectral_norm(nn.Linear(4, 4))
        self.tied = nn.Linear(4, 4)
        self.also_tied = self.tied
        self.scalar = nn.Parameter(torch.tensor(0.3))
        self.turned = nn.Parameter(torch.randn(3, 4).T)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("short", torch.randn(3).bfloat16())

    def forward(self, x):
        return (self.tied(self.first(x)) @ self.turned * self.scalar).sum()


def trained(steps, model=None, optimiser=None, kind=torch.optim.Adam):
    torch.manual_seed(0)
    model = model or Awkward()
    optimiser = optimiser or kind(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.ones(2, 4)).backward()
        optimiser.step()
    return model, optimiser


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_going_on_from_a_checkpoint_is_the_same_as_never_stopping(tmp_path, kind):
    model, optimiser = trained(3, kind=kind)
    state = State(
        epoch=2, step=5, sums={"loss": 0.1 + 0.2, "bags": 3}, history=[{"epoch": 1, "val_auroc": float("nan")}]
    )
    _save_checkpoint(tmp_path / "last.safetensors", model, optimiser, state, IDENTITY)
    torch.manual_seed(99)
    fresh = Awkward()
    again = kind(fresh.parameters(), lr=0.1)
    found, _ = _load_checkpoint(tmp_path / "last.safetensors", fresh, again, IDENTITY)
    assert (found.epoch, found.step, found.sums) == (2, 5, state.sums)
    trained(4, model, optimiser)
    trained(4, fresh, again)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name]), name


def test_the_same_content_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        _save_checkpoint(tmp_path / name, *trained(2), State(), IDENTITY)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_checkpoint_of_another_config_or_split_is_refused(tmp_path):
    model, optimiser = trained(1)
    _save_checkpoint(tmp_path / "last", model, optimiser, State(), IDENTITY)
    with pytest.raises(ConfigError, match="another config"):
        _load_checkpoint(tmp_path / "last", model, optimiser, {**IDENTITY, "config": "d"})
    with pytest.raises(DataError, match="have changed since this run began"):
        _load_checkpoint(tmp_path / "last", model, optimiser, {**IDENTITY, "split": "t"})


def test_weights_without_training_state_are_not_a_checkpoint(tmp_path):
    save_weights(tmp_path / "best", {"w": torch.ones(1)}, {"epoch": 1})
    with pytest.raises(DataError, match="no training state"):
        _read_state(tmp_path / "best")


def test_any_truncation_or_flipped_bit_is_a_clear_error_and_never_other_weights(tmp_path):
    path = tmp_path / "last.safetensors"
    _save_checkpoint(path, *trained(1), State(history=[{"epoch": 1}]), IDENTITY)
    good, chance = path.read_bytes(), random.Random(0)
    for trial in range(300):
        damaged = bytearray(good)
        if trial % 3 == 0:
            damaged = damaged[: chance.randrange(len(good))]
        else:
            place = chance.randrange(len(good) if trial % 3 == 1 else 600)
            damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(DataError, match=r"last\.safetensors: damaged or not written by smmil"):
            read_weights(path)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last"
    save_weights(path, {"w": torch.ones(2)}, {})
    good = path.read_bytes()

    def full(target, _data):
        with target.open("wb") as file:
            file.write(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        save_weights(path, {"w": torch.zeros(2)}, {})
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["last"]
