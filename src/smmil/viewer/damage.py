"""Parts of images that turned out to be damaged while they were shown; nobody looks for them before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smmil.errors import SmmilError
from smmil.images import DamagedTile


class Damage:
    """Remembers the first damaged part of every case's image, in words that may leave the building."""

    def __init__(self, words: Callable[[Exception, int], str]):
        self._words = words
        self._first: dict[int, str] = {}

    @contextmanager
    def noted(self, case: int, kind: type[SmmilError] = DamagedTile) -> Iterator[None]:
        """An error of this kind is remembered on its way."""
        try:
            yield
        except kind as problem:
            self._first.setdefault(case, self._words(problem, case))
            raise

    def notes(self, case: int) -> list[str]:
        """One line for the reader when there is damage."""
        found = self._first.get(case)
        return [] if found is None else [f"parts of this image cannot be read and are left empty; the first: {found}"]
