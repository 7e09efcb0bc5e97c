"""Rules for finding the neighbours of a stored bag, and the step between instances inferred from coordinates."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from smmil.errors import ConfigError, DataError, check_choice, suggest
from smmil.frame import Frame
from smmil.graph import Graph, chain_graph, grid_graph, knn_graph, radius_graph

OPTIONS: dict[str, dict[str, Any]] = {
    "grid": {"neighbours": 8},
    "chain": {},
    "knn": {"k": 5},
    "radius": {"radius": None},
    "edges": {},
    "none": {},
}
ALARM_FROM = 10
ALARM_SHARE = 0.5


def full_rule(graph: str | Mapping[str, Any]) -> dict[str, Any]:
    """A rule with every option spelled out: "grid" becomes {"kind": "grid", "neighbours": 8}."""
    rule = {"kind": graph} if isinstance(graph, str) else dict(graph)
    kind = check_choice(rule.pop("kind", ""), OPTIONS, "graph kind")
    for option in rule:
        if option not in OPTIONS[kind]:
            raise ConfigError(f"graph {kind!r}: unknown option {option!r}; {suggest(option, OPTIONS[kind])}")
    full = {"kind": kind, **OPTIONS[kind], **rule}
    missing = [name for name, value in full.items() if value is None]
    if missing:
        raise ConfigError(f"graph {kind!r}: option {missing[0]!r} must be given")
    return full


def build_graph(
    rule: Mapping[str, Any],
    n: int,
    coords: np.ndarray | None,
    frame: Frame | None,
    edges: tuple[np.ndarray, np.ndarray] | None = None,
) -> Graph | None:
    """The graph that a rule describes for n instances; None for the rule "none"."""
    kind = rule["kind"]
    if kind == "none":
        return None
    if kind == "chain":
        return chain_graph(n)
    if kind == "edges":
        if edges is None:
            raise DataError("graph 'edges' needs the pairs of neighbours, which are missing")
        return Graph.from_edges(*edges, n=n)
    if coords is None:
        raise DataError(f"graph {kind!r} needs coordinates; give them, or choose 'chain', 'edges' or 'none'")
    return _from_coords(rule, coords, frame)


def _from_coords(rule: Mapping[str, Any], coords: np.ndarray, frame: Frame | None) -> Graph:
    if rule["kind"] == "knn":
        return knn_graph(coords, rule["k"])
    if rule["kind"] == "radius":
        return radius_graph(coords, rule["radius"])
    if frame is None:
        raise DataError("graph 'grid' needs a Frame with the step between neighbouring instances")
    if len(frame.step) not in (1, coords.shape[1]):
        raise DataError(f"frame has {len(frame.step)} axes but the coordinates have {coords.shape[1]}")
    return grid_graph(coords, frame.step, rule["neighbours"])


def refuse_isolated(graph: Graph | None, rule: Mapping[str, Any], coords: np.ndarray | None, frame: Frame | None):
    """An error when most instances have no neighbour: smoothing would do nothing, without anybody noticing."""
    if graph is None or coords is None or graph.n < ALARM_FROM or graph.isolated_share <= ALARM_SHARE:
        return
    apart = nearest_distance(coords)
    used = f"step {_short(frame.step)}" if rule["kind"] == "grid" and frame else f"graph {rule['kind']!r}"
    raise DataError(
        f"{graph.isolated_share:.0%} of {graph.n:,} instances have no neighbour with {used}, while the nearest "
        f"coordinates are {apart:g} apart (median); likely cause: a wrong step (patch_size in place of "
        "patch_size_level0); write the file again with the level-0 step"
    )


def nearest_distance(coords: np.ndarray) -> float:
    """Median distance from an instance to the nearest other one, in coordinate units."""
    if len(coords) < 2:
        return float("nan")
    return float(np.median(cKDTree(coords).query(coords, k=[2])[0]))


def _short(step: tuple[float, ...]) -> str:
    return " x ".join(f"{s:g}" for s in step)


GRID = json.dumps({"kind": "grid", "neighbours": 8})
INFERRED = "inferred from the coordinates"
_JITTER = 1e-3


def spaced(
    patch: tuple[float, ...], coords: np.ndarray, spacing: tuple[float, ...] | None = None, unit: str = "px"
) -> Frame:
    """A frame of this footprint whose step fits the coordinates: smaller than the patch when they overlap.

    The step is the median distance to the nearest other instance. Few instances that lie apart say nothing about a
    step; then, and when both agree, patches are taken to touch. Coordinates that are not whole may jitter by 0.1 %.
    """
    apart, side = nearest_distance(coords), min(patch)
    jitter = _JITTER if coords.dtype.kind == "f" else 1e-6
    touching = not apart > 0 or abs(apart / side - 1) <= jitter or (apart > side and len(coords) < ALARM_FROM)
    return Frame(patch, spacing, unit, None if touching else (apart,) * len(patch))


def inferred(coords: np.ndarray, spacing: tuple[float, ...] | None = None, unit: str = "px") -> Frame | None:
    """A frame whose patches touch, from the coordinates alone; None when they cannot tell (a single instance)."""
    apart = nearest_distance(coords)
    return Frame((apart,) * coords.shape[1], spacing, unit) if apart > 0 else None


def as_text(frame: Frame | None) -> str:
    return json.dumps(None if frame is None else frame.to_dict(), sort_keys=True)


def no_edges() -> tuple[np.ndarray, np.ndarray]:
    """A stored neighbourhood without a single pair: what a bag has whose step nobody knows."""
    return np.zeros((2, 0), dtype=np.int64), np.zeros(0)
