"""The runs of a study as one bar with the time that is left."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class GridBars:
    """Draws finished runs on the terminal; failures stay as lines above the bar."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, TextColumn("left:"), TimeRemainingColumn(), console=self.console)
        self._done = 0

    def __enter__(self) -> "GridBars":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars.tasks:
            self._bars.stop()

    def begun(self, done: int, total: int) -> None:
        """The bar appears when everything is checked, so that an early error stands alone."""
        self._done = done
        self._task = self._bars.add_task("runs", total=total, completed=done)
        self._bars.start()
        self._bars.reset(self._task, total=total, completed=done)  # the time left counts from here

    def ended(self, label: str, error: str | None) -> None:
        self._done += 1
        if error is not None:
            self.console.print(f"failed: {label}: {error}", highlight=False, soft_wrap=True, markup=False)
        self._bars.update(self._task, description=label, completed=self._done)
