"""The inspector: everything known about one instance."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smmil.exports.case import Case
from smmil.prediction import Prediction

MOST_NEIGHBOURS = 8
MOST_SIMILAR = 6
# Patches closer than this many steps along every axis touch, as in smmil.graph.grid_graph.
_TOUCHING = 1.5 - 1e-6

Similar = Callable[[int, int], list[tuple[int, float]]]


def describe(index: int, cases: Sequence[Case | None], coords: np.ndarray | None) -> dict[str, Any]:
    """Score, rank and probability of instance `index` by every model, its label and its neighbours."""
    known = [case for case in cases if case is not None]
    label = next((int(y[index]) for case in known if (y := case.prediction.y_inst) is not None and y[index] >= 0), None)
    near = neighbours(known[0].prediction, index)
    return {
        "index": index,
        "coords": None if coords is None else coords[index].tolist(),
        "label": None if label is None else int(label > 0),
        "models": [None if case is None else verdict(case, index) for case in cases],
        "neighbours": [{"index": int(i), "score": scores_of(cases, int(i))} for i in near],
    }


def scores_of(cases: Sequence[Case | None], index: int) -> list[float | None]:
    return [None if case is None else float(case.score[index]) for case in cases]


def verdict(case: Case, index: int) -> dict[str, Any]:
    """Score, place in the order of the case (1 is the highest; equal scores share it), and a share that says its kind.

    probability        where scores are log-odds or probabilities of the instance itself
    attention share    softmax over the case, where they are attention logits: what the model's average used
    rank share         else: the share of the case's instances that score no higher
    """
    score = case.score[index]
    kind, share = _share(case, index)
    return {
        "score": float(score),
        "rank": int((case.score > score).sum()) + 1,
        "of": case.prediction.n,
        "probability": share,
        "probability_kind": kind,
    }


def _share(case: Case, index: int) -> tuple[str, float]:
    probability = float(case.probability[index])
    if np.isfinite(probability):
        return "probability", probability
    if str(case.prediction.meta.get("score_kind", "")) == "attention logit":
        from scipy.special import logsumexp

        scores = case.score.astype(np.float64)
        return "attention share", float(np.exp(scores[index] - logsumexp(scores)))
    return "rank share", float(case.percentile[index])


def neighbours(prediction: Prediction, index: int) -> np.ndarray:
    """Instances beside `index`, nearest first: joined in the prediction's graph, else touching on the plane."""
    coords = None if prediction.coords is None else prediction.coords.astype(np.float64)
    if prediction.edges is not None:
        first, second = prediction.edges
        near = np.unique(np.concatenate([second[first == index], first[second == index]]))
    elif coords is not None:
        near = np.flatnonzero((np.abs(coords - coords[index]) / _step(prediction, coords)).max(1) < _TOUCHING)
    else:
        near = np.zeros(0, dtype=np.int64)
    near = near[near != index]
    if coords is None:
        return near[:MOST_NEIGHBOURS]
    distance = np.linalg.norm(coords[near] - coords[index], axis=1)
    return near[np.lexsort((near, distance))][:MOST_NEIGHBOURS]


def _step(prediction: Prediction, coords: np.ndarray) -> np.ndarray:
    """Distance between neighbours along each axis: as the frame says, else the smallest that occurs."""
    axes = coords.shape[1]
    if prediction.frame is not None:
        return np.array((prediction.frame.step * axes)[:axes])
    gaps = [np.diff(np.unique(column)) for column in coords.T]
    return np.array([gap.min() if gap.size else 1.0 for gap in gaps])
