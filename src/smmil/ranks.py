"""Several processes that train or predict as one: their messages, sums of gradients, shares of bags, common end.

`torchrun --nproc-per-node=4 -m smmil train …` starts four processes; `process_group()` joins them, and `current()` is
the group that the rest of smmil asks. Without torchrun it is a group of one, which sends nothing and loads nothing.

Why not DistributedDataParallel: its hooks sum gradients while the backward pass runs, so every process has to run the
same number of passes with the same parameters used. Here a process may have no bag in a step or several passes, heads
of classes may be unused (CLAM), terms of the loss may be missing, and `before_step` must see the whole gradient. One
sum after the backward passes needs none of these rules, gives the same numbers, and can be read in a few lines.

There are two kinds of messages. `gather` sends plain values (as JSON, between processors, never pickled) and is the
only way in which processes learn of each other; whoever fails anywhere sends the reason in its place, so that all stop
at the next `gather` instead of waiting. `sum_` adds tensors up and always follows a `gather` at once.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from smmil.errors import ConfigError, DataError, SmmilError, ToldByAnother
from smmil.runtime import choose_device

# A process that dies closes its connections, which the others notice at once; this is for machines that freeze.
_PATIENCE = timedelta(hours=6)
_STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Ranks:
    """The processes that work together, seen from one of them: its number among all, and on this machine."""

    number: int = 0
    count: int = 1
    local: int = 0
    local_count: int = 1
    ended: bool = False  # no message follows

    @property
    def alone(self) -> bool:
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks for all."""
        return self.number == 0

    def gather(self, value: Any = None) -> list[Any]:
        """The value of every process, by number; an error if one of them has stopped."""
        if self.alone:
            return [value]
        said = self._exchange({"value": value})
        for number, one in enumerate(said):
            if "value" in one:
                continue
            self.ended = True
            if self.first and one.get("error") is not None:
                raise DataError(one["error"] if one["known"] else f"process {number} stopped: {one['error']}")
            raise ToldByAnother(f"process {number} has ended")
        return [one["value"] for one in said]

    def sum_(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over the processes of tensors that all of them have, in one message for each precision."""
        found: list[Tensor] = list(tensors)
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            places = [n for n, t in enumerate(tensors) if t.dtype == dtype]
            flat = torch.cat([tensors[n].reshape(-1) for n in places])
            with self._noticing_losses():
                torch.distributed.all_reduce(flat)
            for n, part in zip(places, flat.split([tensors[n].numel() for n in places]), strict=True):
                found[n] = part.view_as(tensors[n])
        return found

    def sum_gradients(self, parameters: Sequence[nn.Parameter], used: Iterable[int]) -> None:
        """Replace the gradients by their sums over the processes; used: parameters with a gradient anywhere.

        A parameter that no process used keeps no gradient, as in one process: the optimiser passes over it.
        """
        chosen = [parameters[n] for n in sorted(set(used))]
        sums = self.sum_([torch.zeros_like(p) if p.grad is None else p.grad for p in chosen])
        for parameter, total in zip(chosen, sums, strict=True):
            parameter.grad = total

    def average_buffers(self, model: nn.Module, share: float) -> None:
        """Replace numbers that the model keeps beside its weights by their mean over the processes.

        share  weight of this process: its share of the bags, 0 if it had none and kept the numbers of before
        """
        buffers = [b for b in model.buffers() if b.is_floating_point() and b.numel()]
        with torch.no_grad():
            for buffer, mean in zip(buffers, self.sum_([b * share for b in buffers]), strict=True):
                buffer.copy_(mean)

    def share(self, sizes: Sequence[int]) -> list[int]:
        """Which of some bags, with so many instances each, this process takes; every bag is in one share."""
        return _balanced(sizes, self.count)[self.number]

    def passes(self, sizes: Sequence[int], accumulate: int) -> list[list[int]]:
        """Which bags of a step this process takes, in each of its forward passes.

        accumulate  passes in which one process would take them; each of N processes makes an Nth, rounded up
        """
        own = self.share(sizes)
        groups = _balanced([sizes[n] for n in own], -(-accumulate // self.count))
        return [[own[n] for n in group] for group in groups if group]

    def device(self, name: str) -> torch.device:
        """The device called `name`; several processes on CUDA cards get one each."""
        device = choose_device(name)
        if self.alone or device.type != "cuda":
            return device
        if device.index is not None:
            raise ConfigError(
                f"device: {name!r} names one card, but {self.count} processes were started; use cuda or auto, with "
                "which each takes a card of its own"
            )
        if self.local_count > (cards := torch.cuda.device_count()):
            raise ConfigError(
                f"device: {self.local_count} processes on this machine, but {cards} CUDA cards; start torchrun with "
                f"--nproc-per-node={cards}, or use device cpu"
            )
        torch.cuda.set_device(self.local)
        return torch.device("cuda", self.local)

    def _exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages of all processes: their lengths, then their bytes."""
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        with self._noticing_losses():
            torch.distributed.all_gather(lengths, torch.tensor([len(data)]))
            longest = max(map(int, lengths))
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(data)] = data
            found = [torch.zeros_like(padded) for _ in range(self.count)]
            torch.distributed.all_gather(found, padded)
        return [json.loads(text[: int(n)].numpy().tobytes()) for text, n in zip(found, lengths, strict=True)]

    @contextmanager
    def _noticing_losses(self) -> Iterator[None]:
        """Turn a broken connection into an error in words."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            self.ended = True
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rpartition("] ")[2]
            raise DataError(
                "another process of the group has ended (killed, or out of memory?); what is saved is kept, the same "
                f"command goes on from there ({reason[:100]})"
            ) from None

    def _take_leave(self, problem: BaseException | None) -> None:
        """Tell the others how this process ends, and wait until they say so too; the first speaks for all."""
        if self.ended or isinstance(problem, KeyboardInterrupt | GeneratorExit):
            return
        known = isinstance(problem, SmmilError)
        failed = isinstance(problem, Exception)
        text = str(problem) if known else f"{type(problem).__name__}: {problem}"
        said = self._exchange({"error": text if failed else None, "known": known})
        if known and not self.first:
            raise ToldByAnother("the first process tells the error") from problem
        others = [one for one in said if one.get("error") is not None]
        if problem is None and others:
            raise (DataError(others[0]["error"]) if self.first else ToldByAnother("another process failed"))


_ALONE = Ranks()
_group = _ALONE


def current() -> Ranks:
    """The processes that work together now; a group of one outside `process_group`."""
    return _group


def _started_together() -> bool:
    """Whether torchrun, or a program like it, started this process as one of several."""
    return all(name in os.environ for name in _STARTED) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the processes that torchrun started; inside, training and predicting are divided over them.

    An error of one ends all with one message. Left in any way, the connections are closed: without that a process
    aborts at its end now and then.
    """
    global _group
    if not _started_together() or not _group.alone:
        yield _group
        return
    number, count, local, local_count = (int(os.environ[name]) for name in _STARTED[:4])
    distributed: Any = torch.distributed
    cards = torch.cuda.is_available() and distributed.is_nccl_available()
    distributed.init_process_group("cpu:gloo,cuda:nccl" if cards else "gloo", timeout=_PATIENCE)
    _group = ranks = Ranks(number, count, local, local_count)
    try:
        yield ranks
    except BaseException as problem:
        ranks._take_leave(problem)
        raise
    else:
        ranks._take_leave(None)
    finally:
        _group = _ALONE
        distributed.destroy_process_group()


def _balanced(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Numbers 0..n-1 in `parts` of nearly equal total size: the largest first, each to the emptiest part so far.

    It depends on nothing but its arguments. The fullest part has at most 4/3 - 1/(3 parts) of what is possible (Graham,
    1969, doi:10.1137/0117039); the first part has the largest member, so it is empty only if all are.
    """
    found: list[list[int]] = [[] for _ in range(parts)]
    filled = [0] * parts
    for place in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        part = min(range(parts), key=lambda p: (filled[p], len(found[p]), p))
        found[part].append(place)
        filled[part] += sizes[place]
    return [sorted(part) for part in found]
