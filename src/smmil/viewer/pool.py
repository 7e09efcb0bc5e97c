"""Open slides, few enough for any memory, each in one pair of hands at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition

from smmil.errors import DataError
from smmil.images import Slide, open_slide

# What an open slide may hold in decoded tiles: OpenSlide's own cache and ours.
USUAL_BYTES = 64 * 2**20
_PATIENCE_SECONDS = 60.0


@dataclass(eq=False)
class _Handle:
    path: Path
    weight: int
    slide: Slide | None = None
    busy: bool = True


class SlidePool:
    """Lends open slides to threads; a slide object serves one thread at a time, since none of them is safe for two.

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
    def n_open(self) -> int:
        return len(self._handles)

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
            handle = None
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
