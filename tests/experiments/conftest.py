from pathlib import Path

import pytest
from support.studies import tiny_study

from smmil.experiments import run
from smmil.experiments.runner import run_study


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory):
    """Folder of the tiny study, run once in this process."""
    out = tmp_path_factory.mktemp("finished")
    run_study(tiny_study(), out)
    return out


@pytest.fixture
def trainings(monkeypatch):
    """Labels of the runs that were really trained in this process."""
    begun = []
    real = run.train
    monkeypatch.setattr(run, "train", lambda config, out: (begun.append(Path(out).parent.name), real(config, out))[1])
    return begun
