"""What was made lately and may be asked for again: bounded in bytes, or in number."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache:
    """Encoded tiles, patches and slices; together never more than `most` bytes, the oldest go first."""

    def __init__(self, most: int):
        self.most, self.held = most, 0
        self._lock = Lock()
        self._parts: OrderedDict[Hashable, bytes] = OrderedDict()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
            return self._parts.get(key)

    def put(self, key: Hashable, part: bytes) -> None:
        if len(part) > self.most:
            return
        with self._lock:
            self.held -= len(self._parts.pop(key, b""))
            self._parts[key] = part
            self.held += len(part)
            while self.held > self.most:
                self.held -= len(self._parts.popitem(last=False)[1])

    def kept(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The bytes of `key`, made now when they are not there."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


class Recent(Generic[K, V]):
    """At most `most` objects, made when first asked for; two that ask for the same wait for one making.

    What could not be made (an exception) is not remembered: a drive that comes back is found again.
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
            if key in self._found:  # somebody else was faster
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
