"""Tasks for the tests of the executors; they live in a module so that other processes can import them."""

import os
import signal
import time
from pathlib import Path

from smmil.errors import DataError, MissingExtra


def square(number: int) -> int:
    return number * number


def square_or_complain(number: int) -> int:
    if number == 3:
        raise DataError("three.svs: is not wanted; leave it out")
    if number == 4:
        raise MissingExtra("something", "slides", "the number four")
    if number == 5:
        raise MemoryError
    return number * number


def slow_first(number: int) -> int:
    time.sleep(0.3 if number == 0 else 0)
    return number


def has_a_bug(number: int) -> int:
    return [0, 1][number]


def dies_until(job: tuple[str, int]) -> int:
    """Kills its own process until it was called the given number of times before; counts calls in a file."""
    path, deaths = Path(job[0]), job[1]
    calls = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (calls + 1))
    if calls < deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return deaths


def note_process(folder: str) -> int:
    """Writes its process number and sleeps long."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)
    return 0
