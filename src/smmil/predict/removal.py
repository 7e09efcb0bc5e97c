"""What a model says about parts of a bag: single instances, a bag without some of them, deletion and insertion curves.

Parts keep the order of their instances, their coordinates and the edges among them (the induced subgraph, with its own
degrees). A model cannot read an empty bag; in its place stands one instance of zero features without neighbours, at
the position of the first. Parts are packed, so that many small ones cost about as much as one bag of all their rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smmil.bag import Bag, BagBatch
from smmil.errors import DataError
from smmil.evaluate.resampling import mean_interval
from smmil.graph import Graph
from smmil.models import own_target
from smmil.predict.inference import _device_of, _in_use, _probabilities
from smmil.prediction import Prediction
from smmil.runtime import feature_dtype

_ROWS = 16_384  # packed at once, or one part
_PARTS = 256  # packed at once: some models keep a fixed number of tokens per bag
_PASSES = 256  # forward passes of `drop` unless a block size is given
_STEPS = 100  # of a deletion or insertion curve
_RESAMPLES = 1000
_CURVES = ("removed", "deletion", "insertion", "random")


def _one_by_one(batch: BagBatch) -> Iterator[BagBatch]:
    """Every bag of a batch as a batch of its own."""
    if len(batch) == 1:
        yield batch
        return
    for b, (start, stop) in enumerate(pairwise(batch.offsets.tolist())):
        graph, coords = batch.graph, batch.coords
        if graph is not None:
            first, last = int(graph.indptr[start]), int(graph.indptr[stop])
            indptr, inside = graph.indptr[start : stop + 1] - first, slice(first, last)
            graph = Graph(indptr, graph.indices[inside] - start, graph.weight[inside], graph.kind, graph.skew)
        coords = None if coords is None else coords[start:stop]
        bag = Bag(batch.ids[b], batch.x[start:stop], coords, batch.frames[b], graph)
        known = None if batch.covariates is None else batch.covariates[b]
        yield BagBatch.pack([replace(bag, covariates=known)])


def _part(batch: BagBatch, rows: Tensor) -> Bag:
    """These instances of a batch of one bag, in their order there; none of them: the stand-in for an empty bag."""
    known = None if batch.covariates is None else batch.covariates[0]
    if len(rows) == 0:
        first = _part(batch, torch.zeros(1, dtype=torch.long))
        return replace(first, x=torch.zeros_like(first.x))
    if len(rows) == len(batch.x):
        return Bag(batch.ids[0], batch.x, batch.coords, batch.frames[0], batch.graph, covariates=known)
    rows = rows.sort().values
    coords = None if batch.coords is None else batch.coords[rows]
    graph = None if batch.graph is None else _induced(batch.ids[0], batch.graph, rows)
    return Bag(batch.ids[0], batch.x[rows], coords, batch.frames[0], graph, covariates=known)


def _induced(name: str, graph: Graph, rows: Tensor) -> Graph:
    """The edges among the given nodes, which are sorted."""
    if graph.kind is not None:
        raise DataError(f"{name}: parts of a bag need its graph as built, got one normalised as {graph.kind!r}")
    return graph.induced(rows)


@contextmanager
def _quick_scores(model: nn.Module) -> Iterator[None]:
    """Where only logits are wanted, a model with a `quick_score` computes that one in place of its own scores."""
    quick, own = getattr(model, "quick_score", None), getattr(model, "score", None)
    if quick is None or own is None:
        yield
        return
    model.score = quick
    try:
        yield
    finally:
        model.score = own


def _logits(model: nn.Module, parts: Iterable[Bag], device: torch.device | str) -> Tensor:
    """Logits (parts, classes) in double precision, of many parts in few calls; the model is in use already."""
    found = []
    with torch.no_grad(), _quick_scores(model):
        for group in _grouped(parts):
            batch = BagBatch.pack(group)
            found.append(model(batch.to(device, feature_dtype(model, batch.x.dtype))).logits.double().cpu())
    return torch.cat(found)


def _grouped(parts: Iterable[Bag]) -> Iterator[list[Bag]]:
    group: list[Bag] = []
    for part in parts:
        if group and (len(group) == _PARTS or sum(p.n for p in group) + part.n > _ROWS):
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _lone_logits(model: nn.Module, batch: BagBatch, device: torch.device | str) -> Tensor:
    """For every instance of a bag the logits (n, classes) of the bag that holds it alone."""
    return _logits(model, (_part(batch, row) for row in torch.arange(len(batch.x))[:, None]), device)


def _drops(model: nn.Module, batch: BagBatch, device: torch.device | str, block: int | None) -> Tensor:
    """logit(bag) - logit(bag without the block) for every instance (n, classes), divided by the size of its block."""
    n = len(batch.x)
    blocks = _blocks(batch, block or -(-n // _PASSES))
    everything = torch.arange(n)

    def rests() -> Iterator[Bag]:
        yield _part(batch, everything)
        for rows in blocks:
            kept = torch.ones(n, dtype=torch.bool)
            kept[rows] = False
            yield _part(batch, everything[kept])

    full, *without = _logits(model, rests(), device)
    scores: Tensor = full.new_empty(n, len(full))
    for rows, rest in zip(blocks, without, strict=True):
        scores[rows] = (full - rest) / len(rows)
    return scores


def _blocks(batch: BagBatch, size: int) -> list[Tensor]:
    """The instances in ⌈n/size⌉ blocks of neighbours, each of at most `size`.

    Space is cut across its longest side, again and again, so that all blocks but one are full; without coordinates,
    blocks are consecutive rows. Where coordinates differ, the order of the rows does not matter.
    """
    rows = torch.arange(len(batch.x))
    if size == 1 or batch.coords is None:
        return list(rows.split(size))
    points = batch.coords.double().cpu().numpy()

    def cut(rows: np.ndarray) -> Iterator[Tensor]:
        if len(rows) <= size:
            yield torch.from_numpy(rows)
            return
        here = points[rows]
        widest = np.argsort(-np.ptp(here, axis=0), kind="stable")[::-1]  # the last key of lexsort counts most
        order = rows[np.lexsort(here[:, widest].T)]
        half = -(-len(rows) // size) // 2 * size
        yield from cut(order[:half])
        yield from cut(order[half:])

    return list(cut(rows.numpy()))


@dataclass(frozen=True)
class Faithfulness:
    """How the probability of a case falls and rises with the instances that a map ranks first.

    removed    (s,) shares of the instances, from 0 to 1 in steps of 1 % (fewer in bags of fewer instances)
    deletion   the probability without the first of the ranking, from the whole bag to the empty one
    insertion  the probability of the first of the ranking alone, from the empty bag to the whole one
    random     the mean probability of as many instances drawn at random, from the empty bag to the whole one
    """

    removed: np.ndarray
    deletion: np.ndarray
    insertion: np.ndarray
    random: np.ndarray

    @property
    def areas(self) -> dict[str, float]:
        """Areas under the curves, and how much better than the random order the map does either way."""
        found = {name: _area(self.removed, getattr(self, name)) for name in _CURVES[1:]}
        gains = {"deletion_gain": found["random"] - found["deletion"]}
        return found | gains | {"insertion_gain": found["insertion"] - found["random"]}

    def to_dict(self) -> dict[str, list[float]]:
        return {name: getattr(self, name).tolist() for name in _CURVES}

    @classmethod
    def stored(cls, prediction: Prediction, how: Mapping[str, int]) -> "Faithfulness | None":
        """The curves that a map holds, if they were made with these settings."""
        held = prediction.meta.get("faithfulness")
        if not isinstance(held, dict) or any(held.get(key) != value for key, value in how.items()):
            return None
        try:
            curves = [np.asarray(held[name], dtype=np.float64) for name in _CURVES]
        except (KeyError, TypeError, ValueError):
            return None
        alike = {curve.shape for curve in curves} == {(len(curves[0]),)}
        return cls(*curves) if alike and all(np.isfinite(curve).all() for curve in curves) else None


def _area(at: np.ndarray, values: np.ndarray) -> float:
    """Area under a curve, by trapezes."""
    return float((np.diff(at) * (values[1:] + values[:-1]) / 2).sum())


class _CaseCurves:
    """Deletion and insertion curves of one case; what is drawn at random is shared by all maps of the case."""

    def __init__(self, model: nn.Module, batch: BagBatch, device: torch.device | str, seed: int, repeats: int):
        self.model, self.batch, self.device, self.n = model, batch, device, len(batch.x)
        less = np.rint(np.linspace(0, self.n, _STEPS + 1)).astype(int)[: _STEPS // 2]
        self.counts = np.unique([*less, self.n // 2, *(self.n - less)])  # the same read from either end
        self.seed, draws = seed, np.random.default_rng([seed, self.n])
        logits = _logits(model, [_part(batch, torch.arange(self.n))], device)
        self.target = own_target(model)
        self.chosen = int((logits if self.target is None else self.target.shown(logits))[0].argmax())
        self.random = np.mean([self._values(draws.permutation(self.n)) for _ in range(repeats)], axis=0)

    def of(self, scores: np.ndarray) -> Faithfulness:
        """Curves of a map (n, k): of the predicted class, if it has a column per class. Ties are broken at random."""
        if len(scores) != self.n:
            raise DataError(f"{self.batch.ids[0]}: the map has {len(scores):,} instances but the bag {self.n:,}")
        column = scores[:, self.chosen if scores.shape[1] > 1 else 0]
        ranking = np.lexsort((np.random.default_rng([self.seed, self.n, 1]).random(self.n), -column))
        deletion = self._values(ranking[::-1])[::-1]
        return Faithfulness(self.counts / self.n, deletion, self._values(ranking), self.random)

    def _values(self, order: np.ndarray) -> np.ndarray:
        """Probabilities of the bags of the first instances of an order, as many as `counts` says."""
        rows = torch.from_numpy(order.copy())  # a reversed order of one instance keeps a negative stride otherwise
        logits = _logits(self.model, (_part(self.batch, rows[:count]) for count in self.counts.tolist()), self.device)
        if self.target is not None:
            return self.target.shown(logits)[:, self.chosen].numpy()
        return _probabilities(logits, getattr(self.model, "link", None))[:, self.chosen].numpy()


def faithfulness(
    model: nn.Module,
    bags: Iterable[Bag],
    maps: Mapping[str, Sequence[Prediction]],
    *,
    seed: int = 0,
    repeats: int = 3,
    device: torch.device | str | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """One row per map: areas under deletion and insertion curves, and the gains over a random order with intervals.

    maps     {name: predictions of the bags}; matched by id
    repeats  random orders per bag
    At most 100 forward passes per bag, map and direction, and 100 per random order, on half of the bag on average.
    """
    by_id = {name: {p.id: p for p in predictions} for name, predictions in maps.items()}
    found: dict[str, list[tuple[Prediction, Faithfulness]]] = {name: [] for name in maps}
    device = device or _device_of(model)
    with _in_use(model):
        for count, bag in enumerate(bags, 1):
            held = {name: predictions[bag.id] for name, predictions in by_id.items() if bag.id in predictions}
            if held:
                case = _CaseCurves(model, BagBatch.pack([bag]).without_labels(), device, seed, repeats)
                for name, prediction in held.items():
                    found[name].append((prediction, case.of(prediction.scores)))
            if progress is not None:
                progress(count)
    for name in (name for name, cases in found.items() if not cases):
        raise DataError(f"faithfulness: none of the bags is among the predictions of {name!r}; they are matched by id")
    return [_row(name, cases) for name, cases in found.items()]


def _row(name: str, cases: Sequence[tuple[Prediction, Faithfulness]]) -> dict[str, Any]:
    """Means over the cases, and for the gains 95 % intervals by resampling patients."""
    predictions, areas = [prediction for prediction, _ in cases], [curves.areas for _, curves in cases]
    kind = predictions[0].meta.get("score_kind", "score")
    row: dict[str, Any] = {"map": name, "score_kind": kind, "cases": len(cases)}
    for key in areas[0]:
        values = {p.id: one[key] for p, one in zip(predictions, areas, strict=True)}
        row[key] = float(np.mean(list(values.values())))
        if key.endswith("gain"):
            found = mean_interval(predictions, list(values.values()), n=_RESAMPLES)
            row |= {f"{key}_low": found.low, f"{key}_high": found.high, "shortage": found.shortage}
    return row
