"""Two processes, one folder: a lock that the system takes back when its holder dies, so that none is ever stale."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path, wait: bool) -> Iterator[bool]:
    """True inside the block if no other process holds the lock; the system frees it when its holder dies."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two processes must not be started on one study
        yield True
        return
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
