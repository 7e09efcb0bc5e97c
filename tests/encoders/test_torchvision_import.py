from types import SimpleNamespace

import pytest
import torch

from smmil.encoders import networks
from smmil.encoders.networks import _prepare_torchvision


@pytest.fixture
def declared(monkeypatch):
    """Counts declarations instead of making them."""
    calls = []
    monkeypatch.setattr(networks, "_declare", lambda: calls.append(1))
    return calls


def installed(monkeypatch, folder, version: str, cuda: str | None) -> None:
    (folder / "version.py").write_text(f"__version__ = '{version}'\ngit_version = 'x'\nfrom torchvision import gone\n")
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(networks, "find_spec", lambda name: spec)
    monkeypatch.setattr(torch.version, "cuda", cuda)


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [("0.28.0+cu130", None, 1), ("0.28.0+cu130", "13.0", 0), ("0.28.0+cpu", None, 0), ("0.28.0", None, 0)],
)
def test_operators_are_declared_only_for_a_cuda_build_beside_a_torch_without(
    version, cuda, expected, declared, monkeypatch, tmp_path
):
    installed(monkeypatch, tmp_path, version, cuda)
    _prepare_torchvision("a test")
    assert len(declared) == expected
