from pathlib import Path

import pytest

from smmil.synthetic import synthetic_slides, write_synthetic


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> Path:
    """Path of a manifest of ten small synthetic slides; tests must not change it."""
    bags = synthetic_slides(10, seed=5, size=(20, 60), dim=8)
    return write_synthetic(tmp_path_factory.mktemp("study"), bags)
