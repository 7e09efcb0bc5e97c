"""A bar for work that counts cases, drawn on a terminal only."""

from rich.console import Console
from rich.progress import Progress


class CountingBar(Progress):
    """One line with the time that is left; nothing when nobody looks at a terminal."""

    def __init__(self, words: str):
        console = Console(stderr=True)
        super().__init__(console=console, transient=True, disable=not console.is_terminal)
        self._work = self.add_task(words, total=None)

    def at(self, count: int, total: int) -> None:
        """`count` of `total` are done."""
        self.update(self._work, completed=count, total=total)

    def one_more(self, words: str) -> None:
        """One more is done; how many there will be is not known."""
        self.update(self._work, advance=1, description=words)

    def now(self, words: str) -> None:
        self.update(self._work, description=words)
