"""Work on several things at once, each on one thread, with results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def in_order(work: Callable[[Thing], Result], things: Iterable[Thing], threads: int) -> Iterator[Result]:
    """work(thing) of every thing, in order; `threads` of them at a time, never far ahead of who takes the results.

    Inside a worker torch computes on one thread: splitting one sum among threads would change its rounding
    with their number, and threads that share one layer wait for each other after every layer.
    """
    if threads == 1:
        yield from map(work, things)
        return
    try:
        # The number of threads belongs to each thread in OpenMP, so every worker sets its own.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from _taken(pool, work, things, 2 * threads)
    finally:
        torch.set_num_threads(threads)  # for threads that begin later


def _taken(
    pool: ThreadPoolExecutor, work: Callable[[Thing], Result], things: Iterable[Thing], limit: int
) -> Iterator[Result]:
    waiting: deque[Future[Result]] = deque()
    try:
        for thing in things:
            waiting.append(pool.submit(work, thing))
            if len(waiting) == limit:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
