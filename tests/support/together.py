"""Commands that several processes do together, as torchrun starts them; and processes played by threads."""

import os
import socket
import threading

from smmil.ranks import Ranks
from support.kills import PROCESSES, perform


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


def _perform_as(environment, words, folder, deadly, path):
    os.environ.update(environment)
    perform(words, folder, deadly, path)


def start_together(words, folder, count=2, deadly=None):
    """Start `smmil WORDS` in `count` processes of one group; deadly: the first one dies at this step of a write."""
    import sys

    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    started = []
    for number in range(count):
        environment = {k: str(v) for k, v in (shared | {"RANK": number, "LOCAL_RANK": number}).items()}
        mortal = deadly if number == 0 else None
        process = PROCESSES.Process(
            target=_perform_as, args=(environment, words, folder, mortal, list(sys.path)), daemon=True
        )
        process.start()
        started.append(process)
    return started


def ended(processes, within=60):
    """Exit codes; processes that have not ended by then are killed and count as None."""
    for process in processes:
        process.join(within)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


class _Table:
    """Where threads that play processes lay down what they say."""

    def __init__(self, count):
        self.said, self.turn = [None] * count, threading.Barrier(count, timeout=30)


class Threads(Ranks):
    """One of several processes that are threads: the same messages and sums without any transport."""

    def __init__(self, number, table):
        super().__init__(number, len(table.said))
        self.table = table

    def _swap(self, value):
        self.table.said[self.number] = value
        self.table.turn.wait()
        found = list(self.table.said)
        self.table.turn.wait()
        return found

    def _exchange(self, message):
        return self._swap(message)

    def sum_(self, tensors):
        said = self._swap([t.detach().clone() for t in tensors])
        return [sum(parts[1:], parts[0]) for parts in zip(*said, strict=True)]


def in_threads(work, count=2):
    """`work(ranks)` in `count` threads that play a group; what each gave, or the error of the first that failed."""
    table, found, errors = _Table(count), [None] * count, []

    def run(number):
        ranks = Threads(number, table)
        try:
            found[number] = work(ranks)
        except Exception as problem:  # noqa: BLE001 (raised again below)
            errors.append(problem)
            table.turn.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for problem in (p for p in errors if not isinstance(p, threading.BrokenBarrierError)):
        raise problem
    assert not errors, errors
    return found
