import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Two test processes share two cores: more threads would only fight."""
    torch.set_num_threads(1)
