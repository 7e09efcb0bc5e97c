"""What became of one task."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from smmil.errors import SmmilError

Task = TypeVar("Task")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Outcome(Generic[Task, Value]):
    """One task and what it gave: a value, or an error in one line."""

    index: int
    task: Task
    value: Value | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def attempt(function: Callable[[Task], Value], index: int, task: Task) -> Outcome[Task, Value]:
    """Run one task. What the user can mend (and a lack of memory) becomes a line; any other exception is a bug, raised.

    Errors travel as text, since not every exception survives the way between processes.
    """
    try:
        return Outcome(index, task, value=function(task))
    except SmmilError as problem:
        return Outcome(index, task, error=str(problem))
    except MemoryError as problem:
        return Outcome(index, task, error=f"out of memory ({problem or 'no details'}); use fewer workers")


def lost(index: int, task: Task, times: int) -> Outcome[Task, Value]:
    """The outcome of a task whose worker died every time."""
    return Outcome(
        index, task, error=f"the worker was killed {times} times (out of memory?); give it more memory and repeat"
    )
