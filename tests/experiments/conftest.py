import pytest
from experiments.studies import tiny_study

from smmil.experiments.runner import run_study


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory):
    """Folder of the tiny study, run once in this process."""
    out = tmp_path_factory.mktemp("finished")
    run_study(tiny_study(), out)
    return out
