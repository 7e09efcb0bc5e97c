"""Timing that survives a noisy machine: competitors take turns in one process, medians, ratios."""

import os
import statistics
import time
from collections.abc import Callable

Runs = dict[str, Callable[[], object]]


def interleaved(runs: Runs, rounds: int = 5, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Median seconds of each run; every round calls all of them once, after one unmeasured round.

    Every second round goes backwards, so that nobody always follows the same one, whose freed memory it finds.
    """
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in list(runs.items())[:: -1 if number % 2 else 1]:
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def peak_memory(run: Callable[[], object]) -> float:
    """MB that `run` needs at its peak on top of what the process holds before (Linux)."""
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    run()
    return max(0.0, _status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    with open(f"/proc/{os.getpid()}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))
