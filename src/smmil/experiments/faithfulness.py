"""Do the scores of a model say what its answer rests on? Instances are taken away or given back in their order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from smmil.bag import Bag, BagBatch
from smmil.evaluate.instances import instance_score
from smmil.graph import Graph
from smmil.predict import predict

SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def part_of_bag(bag: Bag, rows: np.ndarray) -> Bag:
    """The bag with these instances only, in their order, and the edges among them."""
    kept = torch.from_numpy(np.sort(rows))
    graph = None
    if bag.graph is not None:
        place = torch.full((bag.n,), -1)
        place[kept] = torch.arange(len(kept))
        ends = place[bag.graph.edges()]
        inside = (ends >= 0).all(0)
        graph = Graph.from_edges(ends[:, inside], bag.graph.weight[inside], len(kept))
    coords = None if bag.coords is None else bag.coords[kept]
    y_inst = None if bag.y_inst is None else bag.y_inst[kept]
    return Bag(bag.id, bag.x[kept], coords, bag.frame, graph, bag.y, y_inst)


def curve(model: nn.Module, bag: Bag, order: np.ndarray, *, insert: bool = False) -> np.ndarray:
    """Probability of the positive class after the first instances of `order` were deleted (or alone were kept).

    At the shares SHARES of all instances; at least one instance always stays.
    """
    counts = [min(round(share * bag.n), bag.n - 1) for share in SHARES]
    parts = [order[: max(count, 1)] if insert else order[count:] for count in counts]
    batches = [BagBatch.pack([part_of_bag(bag, rows)]) for rows in parts]
    found = predict(model, batches, spatial=False)
    return np.array([p.probs[-1] if len(p.probs) < 3 else p.probs[1:].max() for p in found])


def deletion_insertion(model: nn.Module, bags: Sequence[Bag], *, seed: int = 0) -> dict[str, Any]:
    """Areas under the deletion and insertion curves of positive bags, by the model's own scores and in random order.

    A map that shows what the answer rests on makes the probability fall faster when its hottest instances are deleted
    (`deletion` below `deletion_random`) and rise sooner when they are given (`insertion` above `insertion_random`).
    """
    rng, areas = np.random.default_rng(seed), []
    for bag in bags:
        if not bag.y or bag.n < 2:
            continue
        scores = instance_score(predict(model, [BagBatch.pack([bag])], spatial=False)[0])
        orders = np.argsort(-scores, kind="stable"), rng.permutation(bag.n)
        areas.append([_area(curve(model, bag, o, insert=insert)) for insert in (False, True) for o in orders])
    means = np.mean(areas, axis=0) if areas else np.full(4, np.nan)
    names = ("deletion", "deletion_random", "insertion", "insertion_random")
    return {**dict(zip(names, means.tolist(), strict=True)), "n_faithful_cases": len(areas)}


def _area(values: np.ndarray) -> float:
    """Mean height of the curve over the shares, by trapezoids."""
    return float(np.trapezoid(values, SHARES) / (SHARES[-1] - SHARES[0]))
