"""A study whose data lie elsewhere when it is resumed."""

import shutil

import pandas as pd
from support.studies import manifest_study, variant

from smmil.experiments import run
from smmil.experiments.runner import run_study
from smmil.synthetic import synthetic_slides, write_synthetic


def test_a_run_goes_on_where_the_data_are_now(tmp_path, monkeypatch):
    """It is stopped between training and prediction; then the bags move, and their old place holds something else."""
    bags = synthetic_slides(14, size=(10, 14), dim=4, seed=1, lesion=(0.1, 0.3))
    write_synthetic(tmp_path / "old", bags)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    model = [variant("ABMIL", "abmil")]
    with monkeypatch.context() as stopped:
        stopped.setattr(run, "predict_run", lambda *_, **__: 1 / 0)
        run_study(manifest_study(tmp_path / "old/manifest.csv", variants=model), tmp_path / "moved")
    shutil.rmtree(tmp_path / "old")
    write_synthetic(tmp_path / "old", synthetic_slides(14, size=(10, 14), dim=4, seed=2, lesion=(0.1, 0.3)))

    study = manifest_study(tmp_path / "new/manifest.csv", variants=model)
    for out in ("moved", "undisturbed"):
        assert not run_study(study, tmp_path / out).failed
    moved, undisturbed = (pd.read_csv(tmp_path / out / "tiny/results.csv") for out in ("moved", "undisturbed"))
    pd.testing.assert_frame_equal(moved, undisturbed)
