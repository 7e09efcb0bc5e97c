"""Progress bars with the remaining time: training runs and experiment grids."""

from datetime import timedelta
from math import inf
from threading import Event, Thread
from time import monotonic
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from smmil.cli.options import _error_console, _print_line, _table
from smmil.train.folder import selection_metric
from smmil.train.loop import Interrupted, Progress
from smmil.train.run import RunResult

_MINUTE, _CALM = 60.0, 5.0  # seconds between lines where no bar can be shown: at most, at least


class _Terminal:
    """A progress bar on standard error, which appears with the first event."""

    def __init__(self) -> None:
        self.console = _error_console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, TextColumn("left:"), TimeRemainingColumn(), console=self.console)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, problem: BaseException | None, _trace: object) -> None:
        if self._bars.tasks:
            self._bars.stop()


class _TrainingBars(_Terminal, Progress):
    """Shows the progress of a training run on the terminal; the summary goes to standard output."""

    def __init__(self, *, every_epoch: bool = True):
        super().__init__()
        self._steps, self._every_epoch = 0, every_epoch

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Remove the bars; interrupted training prints how to resume, and the exit code names the signal."""
        super().__exit__(kind, problem, trace)
        if isinstance(problem, Interrupted):
            self.message(str(problem))
            raise typer.Exit(128 + problem.signal) from None

    def checked(self, done: int, total: int) -> None:
        self._show("reading bags", completed=done, total=total)

    def begun(self, *, epochs: int, steps: int, epoch: int, step: int) -> None:
        self._steps, total, done = steps, epochs * steps, epoch * steps + step
        self._show(f"epoch {epoch + 1}", completed=done, total=total)
        self._bars.reset(self._task, total=total, completed=done)  # the time left counts from here

    def message(self, text: str) -> None:
        _print_line(self.console, text)

    def step_done(self, epoch: int, step: int, loss: float) -> None:
        self._show(f"epoch {epoch + 1}  loss {loss:.4f}", completed=epoch * self._steps + step)

    def _show(self, text: str, completed: int, total: int | None = None) -> None:
        """Move the bar; it appears with the first event, so that an early error is not mixed with it."""
        if not self._bars.tasks:
            self._task = self._bars.add_task(text)
            self._bars.start()
        self._bars.update(self._task, description=text, completed=completed, total=total)

    def epoch_done(self, row: dict[str, Any]) -> None:
        if not self._every_epoch:
            return
        metric = next(key for key in row if key.startswith("val_") and key != "val_loss").removeprefix("val_")
        alphas = "".join(f"  {name} {value:.3f}" for name, value in row.items() if name.startswith("alpha/"))
        self.message(
            f"epoch {row['epoch']:>3}  train loss {row['train_loss']:.4f}  val loss {row['val_loss']:.4f}  "
            f"val {metric} {row[f'val_{metric}']:.4f}{alphas}{'  *' if row['best'] else ''}"
        )

    def summary(self, result: RunResult, doubt: str | None = None) -> None:
        """Print the selected epochs, what there is to doubt about them, and the next command."""
        metric = selection_metric(result.best)
        table = _table(None, ["weights"], ["epoch", f"val {metric}", "val loss"])
        for name in ("best", "lowest_loss"):
            chosen = getattr(result, name)
            table.add_row(name, str(chosen["epoch"]), f"{chosen[metric]:.4f}", f"{chosen['loss']:.4f}")
        out = Console()
        _print_line(out, f"{result.folder}: {result.ended}")
        out.print(table)
        if doubt:
            _print_line(out, f"warning: {doubt}")
        _print_line(out, f"next: smmil predict {result.folder} --out predictions")


class _GridBars(_Terminal):
    """Shows finished runs of a grid on the terminal; failures stay as lines above the bar.

    Where standard error is no terminal it prints lines with the time left: at the start, when a run ends, and at least
    once a minute; never more than one in a few seconds.
    """

    def __init__(self, words: str = "runs") -> None:
        super().__init__()
        self._words, self._over, self._told = words, Event(), -inf

    def begun(self, done: int, total: int) -> None:
        """Show the bar; called after all checks, so that an early error is not mixed with it."""
        self._done = self._first = done
        self._total, self._start = total, monotonic()
        if not self.console.is_terminal:
            self._tell("begun" if done < total else "nothing to do")
            Thread(target=self._tell_again, daemon=True).start()
            return
        self._task = self._bars.add_task(self._words, total=total, completed=done)
        self._bars.start()
        self._bars.reset(self._task, total=total, completed=done)  # the time left counts from here

    def warned(self, text: str) -> None:
        """Print what should be known before the first run."""
        _print_line(self.console, f"note: {text}")

    def ended(self, label: str, error: str | None) -> None:
        self._done += 1
        if error is not None:
            _print_line(self.console, f"failed: {label}: {error}")
        if self.console.is_terminal:
            self._bars.update(self._task, description=label, completed=self._done)
        elif monotonic() - self._told > _CALM or self._done == self._total:
            self._tell(label)

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        self._over.set()
        super().__exit__(kind, problem, trace)

    def _tell(self, words: str) -> None:
        self._told = monotonic()
        gone, done = self._told - self._start, self._done - self._first
        left = f", about {_duration(gone / done * (self._total - self._done))} left" if done else ""
        counted = f"{self._done} of {self._total} {self._words}, {_duration(gone)} gone{left}"
        _print_line(self.console, f"{counted}: {words}")

    def _tell_again(self) -> None:
        while not self._over.wait(_MINUTE) and self._done < self._total:
            if monotonic() - self._told >= _MINUTE:
                self._tell("still at work")


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
