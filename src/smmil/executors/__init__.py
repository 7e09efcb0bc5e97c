"""Many independent tasks, one after another, in several processes, or on a Dask cluster: always the same results."""

from smmil.executors.outcome import Outcome, Task, Value
from smmil.executors.running import EXECUTORS, run_tasks

__all__ = ["EXECUTORS", "Outcome", "Task", "Value", "run_tasks"]
