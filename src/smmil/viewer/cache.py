"""Bounded caches of the viewer: tiles and thumbnails in memory, open slides, and the temporary download folder."""

import os
import re
import shutil
import socket
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Lock
from typing import Generic, TypeVar

from smmil.errors import DataError
from smmil.files import digest
from smmil.images import Slide, open_slide

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _ByteCache:
    """Encoded tiles, patches and slices; together never more than `most` bytes, the oldest go first."""

    def __init__(self, most: int):
        self.most, self.held = most, 0
        self._lock = Lock()
        self._parts: OrderedDict[Hashable, bytes] = OrderedDict()

    def get_or_make(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The bytes of `key`, made now when they are not there."""
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        part = make()
        with self._lock:
            if key not in self._parts and len(part) <= self.most:  # another thread may have been faster
                self._parts[key] = part
                self.held += len(part)
            while self.held > self.most:
                self.held -= len(self._parts.popitem(last=False)[1])
        return part


class _ObjectCache(Generic[K, V]):
    """At most `most` objects, made on first use, once for all threads that ask at the same time.

    Exceptions are not cached: a drive that comes back is found again.
    """

    def __init__(self, most: int, make: Callable[[K], V]):
        self._most, self._make = most, make
        self._lock = Lock()
        self._found: OrderedDict[K, V] = OrderedDict()
        self._making: dict[K, Lock] = {}

    def __call__(self, key: K) -> V:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
            making = self._making.setdefault(key, Lock())
        with making:
            return self._made(key)

    def _made(self, key: K) -> V:
        with self._lock:
            if key in self._found:  # another thread was faster
                return self._found[key]
        try:
            made = self._make(key)
            with self._lock:
                self._found[key] = made
                while len(self._found) > self._most:
                    self._found.popitem(last=False)
            return made
        finally:
            with self._lock:
                self._making.pop(key, None)


# What an open slide may hold in decoded tiles: OpenSlide's own cache and ours.
USUAL_BYTES = 64 * 2**20
_PATIENCE_SECONDS = 60.0


@dataclass(eq=False)
class _Handle:
    path: Path
    weight: int
    slide: Slide | None = None
    busy: bool = True


class _SlidePool:
    """Pool of open slides; each is used by one thread at a time (slide objects are not thread-safe).

    most_handles  slides open at once        per_slide  of these, for one file
    most_bytes    memory of all open slides together, by their own estimate; a larger one is opened alone
    """

    def __init__(
        self,
        most_handles: int = 8,
        per_slide: int = 4,
        most_bytes: int = 2**30,
        opener: Callable[[Path], Slide] = open_slide,
    ):
        self._limits = most_handles, per_slide, most_bytes
        self._opener = opener
        self._changed = Condition()
        self._handles: list[_Handle] = []  # the one given back last is the last
        self._closed = False

    @property
    def bytes_held(self) -> int:
        return sum(handle.weight for handle in self._handles)

    @contextmanager
    def lend(self, path: Path, weight: int = USUAL_BYTES) -> Iterator[Slide]:
        """An open slide for this thread alone; waits when too many are in use."""
        handle = self._taken(path, weight)
        sound = False
        try:
            if handle.slide is None:
                handle.slide = self._opener(path)
            yield handle.slide
            sound = True
        except DataError:
            sound = handle.slide is not None  # a damaged region; the slide reopens itself and goes on
            raise
        finally:
            self._give_back(handle, keep=sound)

    def close(self) -> None:
        """Close what is idle now and the others when they come back."""
        with self._changed:
            self._closed = True
            for handle in [h for h in self._handles if not h.busy]:
                self._drop(handle)
            self._changed.notify_all()

    def _taken(self, path: Path, weight: int) -> _Handle:
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._free(path, weight), _PATIENCE_SECONDS):
                raise DataError("too many slides are being read at once; try again in a moment")
            if self._closed:
                raise DataError("the viewer is stopping; start smmil view again")
            handle = self._idle(path)
            if handle is None:
                handle = _Handle(path, weight)
                self._handles.append(handle)
            handle.busy = True
            return handle

    def _idle(self, path: Path) -> _Handle | None:
        return next((h for h in reversed(self._handles) if h.path == path and not h.busy), None)

    def _free(self, path: Path, weight: int) -> bool:
        """Whether there is an idle handle, or room for a new one once idle slides have been closed."""
        most, per_slide, most_bytes = self._limits
        if self._idle(path) is not None:
            return True
        if sum(h.path == path for h in self._handles) >= (1 if weight > USUAL_BYTES else per_slide):
            return False
        while self._handles and (len(self._handles) >= most or self.bytes_held + weight > most_bytes):
            oldest = next((h for h in self._handles if not h.busy), None)
            if oldest is None:
                return False
            self._drop(oldest)
        return True

    def _give_back(self, handle: _Handle, keep: bool) -> None:
        with self._changed:
            handle.busy = False
            if not keep or self._closed:
                self._drop(handle)
            else:
                self._handles.remove(handle)
                self._handles.append(handle)
            self._changed.notify_all()

    def _drop(self, handle: _Handle) -> None:
        self._handles.remove(handle)
        if handle.slide is not None:
            handle.slide.close()


_NAME = re.compile(r"smmil-view-([0-9a-f]{8})-([0-9]{1,10})-.+", re.ASCII)


def _temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder named after machine and process; folders of ended processes of this machine are deleted."""
    # containers may share a folder for temporary files, but count their processes on their own
    machine = digest(socket.gethostname())[:8]
    # only on posix can a process be asked without a library whether it lives
    for entry in Path(tempfile.gettempdir()).glob("smmil-view-*") if os.name == "posix" else ():
        found = _NAME.fullmatch(entry.name)
        if found is not None and found[1] == machine and not _lives(int(found[2])) and _is_ours(entry):
            shutil.rmtree(entry, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"smmil-view-{machine}-{os.getpid()}-")


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _is_ours(entry: Path) -> bool:
    try:
        return entry.is_dir() and not entry.is_symlink() and entry.stat().st_uid == os.getuid()
    except OSError:
        return False
