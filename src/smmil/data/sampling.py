"""Parts of bags that are too large for a training step: connected pieces, drawn anew for every step.

window   the instances nearest to a random one along every axis: a box of the lattice, with all of its edges
walk     grown from a random instance over the edges of the graph: follows the tissue and never jumps a gap
cluster  several smaller pieces, each grown like a walk, from different places of the bag
random   instances anywhere, each by itself: hardly any two are neighbours, so smoothing has nothing to smooth

A part keeps the edges among its instances (the induced subgraph) and the label of its bag. That label may then be
wrong: of a positive bag a part can be drawn that holds no lesion. A piece of one place misses a small lesion most of
the time, which is why the default, cluster, looks at several places and still keeps most edges.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from smmil.bag import Bag
from smmil.config import TrainingConfig
from smmil.errors import DataError, check_choice
from smmil.formats.rows import HeldRows, OpenBag

PATCHES = 8  # pieces of a cluster,
_LEAST = 32  # unless they would be smaller than this
_SHARE = 0.5  # of the instances at the border of a piece that join it in a round


@dataclass(frozen=True)
class PartSampler:
    """Draws parts of at most `most` instances; equal (seed, epoch, place, id of the bag) give equal parts.

    epoch   counts from 0        place  of the bag in the order of the epoch: a bag that comes twice is drawn twice
    """

    most: int
    how: str
    seed: int
    epoch: int

    def __post_init__(self) -> None:
        check_choice(self.how, tuple(_CHOOSE), "training.sampling")

    def rows(self, bag: Bag, place: int) -> np.ndarray | None:
        """The chosen rows in ascending order; None where the bag is small enough to be used whole.

        Looks at coordinates and graph only, so that features need not have been read.
        """
        if bag.n <= self.most:
            return None
        name = int.from_bytes(hashlib.sha256(bag.id.encode()).digest()[:16], "little")
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, self.epoch, place, name]))
        return np.sort(_CHOOSE[self.how](bag, self.most, rng))

    def part(self, bag: Bag, place: int) -> Bag:
        """The bag, or the part of it that is drawn for this place of the epoch."""
        drawn = self.drawn(OpenBag(bag, HeldRows(bag.x)), place)
        return bag if drawn is None else drawn

    def drawn(self, opened: OpenBag, place: int) -> Bag | None:
        """The part that is drawn of a bag, of which no other rows are read; None where it is used whole."""
        rows = self.rows(opened.bag, place)
        return None if rows is None else _part_of(opened.bag, rows, opened.rows.take(rows))


def training_parts(settings: TrainingConfig, epoch: int) -> PartSampler | None:
    """What draws the parts of bags in an epoch of training; None where bags are used whole."""
    if settings.max_instances is None:
        return None
    return PartSampler(settings.max_instances, settings.sampling, settings.seed, epoch)


def _part_of(bag: Bag, rows: np.ndarray, x: torch.Tensor) -> Bag:
    """These rows of a bag (ascending) with their features x, and the edges among them."""
    chosen = torch.from_numpy(rows)
    kept: dict[str, Any] = {}
    for name in ("coords", "y_inst", "quality"):
        kept[name] = None if (of_all := getattr(bag, name)) is None else of_all[chosen]
    return replace(bag, x=x, graph=None if bag.graph is None else bag.graph.induced(chosen), **kept)


def _window(bag: Bag, most: int, rng: np.random.Generator) -> np.ndarray:
    """The instances nearest to a random one, by the longest of their distances along the axes, in steps.

    Equally distant ones (the outermost ring) by their straight distance, then by their row.
    """
    if bag.coords is None and not (bag.graph is not None and bag.graph.is_chain):
        raise DataError(f"{bag.id}: training.sampling: window needs coordinates; use walk or random")
    points = np.arange(bag.n)[:, None] if bag.coords is None else bag.coords.numpy().reshape(bag.n, -1)
    step = (1.0,) if bag.frame is None or bag.coords is None else bag.frame.step
    apart = np.abs(points - points[rng.integers(bag.n)]) / (step if len(step) == points.shape[1] else 1.0)
    longest = apart.max(1)
    near = np.flatnonzero(longest <= np.partition(longest, most - 1)[most - 1])
    order = np.lexsort((near, np.square(apart[near]).sum(1), longest[near]))
    return near[order[:most]]


def _walk(bag: Bag, most: int, rng: np.random.Generator) -> np.ndarray:
    """One connected piece; where the tissue around its start is smaller than that, all of it and a further one."""
    return _Growth(bag, rng).grown((most,))


def _cluster(bag: Bag, most: int, rng: np.random.Generator) -> np.ndarray:
    """Up to `PATCHES` pieces of equal size, from starts anywhere in the bag."""
    count = min(PATCHES, max(1, most // _LEAST))
    return _Growth(bag, rng).grown([most // count + (n < most % count) for n in range(count)])


def _random(bag: Bag, most: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(bag.n, most, replace=False)


_CHOOSE: dict[str, Callable[[Bag, int, np.random.Generator], np.ndarray]] = {
    "window": _window,
    "cluster": _cluster,
    "walk": _walk,
    "random": _random,
}


class _Growth:
    """Connected pieces of a graph that grow from random starts: in every round a random half of the border joins."""

    def __init__(self, bag: Bag, rng: np.random.Generator):
        if bag.graph is None:
            raise DataError(f"{bag.id}: it has no graph to grow a part on; use training.sampling: window or random")
        self.indptr, self.indices = bag.graph.indptr.numpy(), bag.graph.indices.numpy()
        self.rng = rng
        self.taken = np.zeros(bag.n, dtype=bool)
        self.starts = iter(rng.permutation(bag.n))

    def grown(self, sizes: Sequence[int]) -> np.ndarray:
        """As many rows as the sizes say together; a piece that meets the end of its tissue goes on elsewhere."""
        for size in sizes:
            while size:
                size -= self._piece(size)
        return np.flatnonzero(self.taken)

    def _piece(self, size: int) -> int:
        """Take up to `size` rows around the next free start; gives how many there were."""
        border = np.array([next(row for row in self.starts if not self.taken[row])])
        count = 0
        while len(border) and count < size:
            joined = border[self.rng.random(len(border)) < _SHARE] if count else border
            if len(joined) > size - count:
                joined = self.rng.permutation(joined)[: size - count]
            if not len(joined):
                continue
            self.taken[joined] = True
            count += len(joined)
            around = np.concatenate([border, self._neighbours(joined)])
            border = np.unique(around[~self.taken[around]])
        return count

    def _neighbours(self, rows: np.ndarray) -> np.ndarray:
        starts, counts = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        shift = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return self.indices[shift + np.arange(len(shift))]
