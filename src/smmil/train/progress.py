"""Progress events of training, and stopping it by a signal with its state saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Progress:
    """Receives the events of a run and ignores them; override methods to show them."""

    def checked(self, done: int, total: int) -> None:
        """`done` of `total` bags have been read and checked, before a new run starts."""

    def begun(self, *, epochs: int, steps: int, epoch: int, step: int) -> None:
        """Training starts at batch `step` of `epoch` (both from 0), with `steps` batches in each of `epochs`."""

    def message(self, text: str) -> None:
        """A message to the user, in one sentence."""

    def step_done(self, epoch: int, step: int, loss: float) -> None:
        """Batch `step` (counted from 1) of `epoch` is done."""

    def epoch_done(self, row: dict[str, Any]) -> None:
        """An epoch is done; `row` is its line in metrics.csv."""


class Interrupted(Exception):  # noqa: N818
    """Training was stopped by a signal and has saved its state; `signal` is the number of the signal."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal = signal_number


class StopRequest:
    """Records a request to stop; a second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def ask(self, number: int, _frame: FrameType | None = None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest inside the block; outside the main thread signals are left alone."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
