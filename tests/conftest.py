import gc
import os
import shutil

gc.disable()  # until all tests are collected: what is imported and collected stays

import pytest  # noqa: E402
import torch  # noqa: E402

MEMORY_FOLDER, NEEDED_BYTES = "/dev/shm", 4 << 30


def pytest_configure(config):
    """Keep temporary files in memory where there is room: on a disk every atomic write waits for it."""
    roomy = os.access(MEMORY_FOLDER, os.W_OK) and shutil.disk_usage(MEMORY_FOLDER).free >= NEEDED_BYTES
    if roomy and not config.option.basetemp:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY_FOLDER)


def pytest_collection_modifyitems(items):
    """Tests of CUDA cards skip where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA card here"))


def pytest_collection_finish(session):
    """What stays is never searched for garbage again: each search would take half a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Two test processes share two cores: more threads would only fight."""
    torch.set_num_threads(1)
