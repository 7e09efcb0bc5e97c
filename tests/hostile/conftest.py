"""A command line in this process, a small study with a finished run and its package, and a planted module."""

import shutil
import sys
from types import SimpleNamespace

import pytest

import smmil.cli
from smmil.config import load_config
from smmil.packaging import write_package
from smmil.synthetic import synthetic_slides, write_synthetic
from smmil.train import train

QUICK = ("training.epochs=1", "training.threads=1", "model.options.dim=8", "model.options.att_dim=4", "data.folds=2",
         "data.val_share=0.5", "training.warmup_epochs=0")  # fmt: skip
PLANTED = """
from pathlib import Path
from torch import nn
from smmil.models.abmil import ABMIL
from smmil.encoders import Encoder

def touch(*_, **__):
    Path({called!r}).touch()

class Plain:
    __init__ = touch

class Net(ABMIL):
    pass

class Colours(nn.Module):
    pixels, mean, std, revision = 4, 0.0, 1.0, "v1"
    def forward(self, images):
        return images.mean((2, 3))

def undeclared():
    touch()
    return Colours()

def declared() -> nn.Module:
    return Colours()

def wrongly_declared() -> str:
    touch()

Path({imported!r}).touch()
"""


@pytest.fixture
def command(monkeypatch, capsys):
    """Call the command line; gives the exit code and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["smmil", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            smmil.cli.main()
        return left.value.code or 0, capsys.readouterr().err

    return call


@pytest.fixture
def refused(command):
    """The one line in which a command refuses its input; it must hold these words."""

    def call(*arguments, words=()):
        code, told = command(*arguments)
        assert code == 2, told
        assert told.startswith("error: ")
        assert told.count("\n") == 1, told
        assert len(told) < 1000
        for word in words:
            assert str(word) in told
        return told

    return call


@pytest.fixture(scope="session")
def _sound(tmp_path_factory):
    root = tmp_path_factory.mktemp("sound")
    manifest = write_synthetic(root / "study", synthetic_slides(14, seed=3, size=(10, 16), dim=6))
    train(load_config(None, [f"data.manifest={manifest}", "model.name=abmil", *QUICK]), root / "run")
    write_package(root / "run", root / "package")
    return root


@pytest.fixture
def sound(_sound, tmp_path):
    """Copies of a finished run and its package, and the manifest of its bags."""
    for name in ("run", "package"):
        shutil.copytree(_sound / name, tmp_path / name)
    return SimpleNamespace(run=tmp_path / "run", package=tmp_path / "package", manifest=_sound / "study/manifest.csv")


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The installed module `planted`; `imported` and `called` exist as soon as it is imported or touched."""
    marks = {"imported": str(tmp_path / "imported"), "called": str(tmp_path / "called")}
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "planted.py").write_text(PLANTED.format(**marks))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # restored afterwards: the command line sets it for its workers
    yield SimpleNamespace(
        imported=tmp_path / "imported", called=tmp_path / "called", source=tmp_path / "site/planted.py"
    )
    sys.modules.pop("planted", None)
