"""What training tells the outside while it runs."""

from typing import Any


class Progress:
    """Receives news of a run; this one ignores them. The command line draws bars, a notebook may do otherwise."""

    def checked(self, done: int, total: int) -> None:
        """So many of the bags have been read and found sound, before a new run begins."""

    def begun(self, *, epochs: int, steps: int, epoch: int, step: int) -> None:
        """Training starts at batch `step` of `epoch` (both from 0), with `steps` batches in each of `epochs`."""

    def said(self, text: str) -> None:
        """Something the user should know, in one sentence."""

    def step_done(self, epoch: int, step: int, loss: float) -> None:
        """Batch `step` (counted from 1) of `epoch` is done."""

    def epoch_done(self, row: dict[str, Any]) -> None:
        """One epoch is done; `row` is its line in metrics.csv."""
