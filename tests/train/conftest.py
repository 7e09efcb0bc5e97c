"""A tiny study on disk, and short ways to train on it."""

import pytest

from smmil.config import load_config
from smmil.synthetic import synthetic_slides, write_synthetic

QUICK = ("training.epochs=3", "training.threads=1", "model.options.dim=8", "model.options.att_dim=4", "data.folds=2",
         "data.val_share=0.5", "training.lr=1e-2", "training.warmup_epochs=1")  # fmt: skip


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """Manifest of 18 small synthetic slides."""
    folder = tmp_path_factory.mktemp("study")
    return write_synthetic(folder, synthetic_slides(18, seed=3, size=(12, 30), dim=6))


@pytest.fixture(scope="session")
def settings(study):
    """Quick settings for the study, with changes on top."""

    def make(*changes, model="sm_ap", manifest=study):
        return load_config(None, [f"data.manifest={manifest}", f"model.name={model}", *QUICK, *changes])

    return make
