import numpy as np
import pytest
import torch
from support.tiny_encoders import tiles

from smmil.encoders import Encoder, load_encoder


@pytest.fixture(scope="session")
def embedded() -> Encoder:
    """The embedded encoder on small inputs, which is enough for laws and fast."""
    return load_encoder("efficientnet-lite0", device="cpu", pixels=64)


@pytest.fixture(scope="session")
def noise() -> np.ndarray:
    return tiles(11, 64)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
