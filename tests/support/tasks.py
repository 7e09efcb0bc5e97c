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


def waits_for(path: str | None) -> bool:
    """Waits for a file, if one is named, and says whether it came."""
    end = time.monotonic() + 30
    while path is not None and not Path(path).exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def place_unless_killed(job: tuple[str, bool]) -> int | None:
    """The place of the worker, once two of them have noted theirs; the deadly job kills its first worker."""
    from smmil.executors import worker_place

    folder, deadly = Path(job[0]), job[1]
    place = worker_place()
    if deadly and not (folder / "died").exists():
        (folder / "died").write_text(str(place))
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"here_{place}").touch()
    waits_for(str(folder / "here_0"))
    waits_for(str(folder / "here_1"))
    return place


def has_a_bug(number: int) -> int:
    return [0, 1][number]


def dies_until(job: tuple[str, int], how: int = signal.SIGKILL) -> int:
    """Kills its own process until it was called the given number of times before; counts calls in a file."""
    path, deaths = Path(job[0]), job[1]
    calls = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (calls + 1))
    if calls < deaths:
        os.kill(os.getpid(), how)
        time.sleep(10)
    return deaths


def ends_until(job: tuple[str, int]) -> int:
    """The same with the signal of a plain `kill`."""
    return dies_until(job, signal.SIGTERM)


def note_process(folder: str) -> int:
    """Writes its process number and sleeps long."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)
    return 0
