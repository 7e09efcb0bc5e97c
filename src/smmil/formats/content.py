"""Content of a feature file as arrays, the checks on it, and the rules that give its graph."""

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from smmil.errors import ConfigError, DataError, check_choice, suggest
from smmil.files import digest, file_name
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


def _build_graph(
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
    """An error when most instances have no neighbour: smoothing would silently do nothing."""
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


def frame_with_step(
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


def frame_from_coords(coords: np.ndarray, spacing: tuple[float, ...] | None = None, unit: str = "px") -> Frame | None:
    """A frame whose patches touch, from the coordinates alone; None for a single instance."""
    apart = nearest_distance(coords)
    return Frame((apart,) * coords.shape[1], spacing, unit) if apart > 0 else None


def frame_json(frame: Frame | None) -> str:
    return json.dumps(None if frame is None else frame.to_dict(), sort_keys=True)


def empty_edges() -> tuple[np.ndarray, np.ndarray]:
    """A stored neighbourhood without a single pair: for a bag with an unknown step."""
    return np.zeros((2, 0), dtype=np.int64), np.zeros(0)


@dataclass(frozen=True, eq=False)
class Stored:
    """What lies in a feature file, before neighbours are found."""

    id: str
    features: np.ndarray
    coords: np.ndarray | None = None
    edges: tuple[np.ndarray, np.ndarray] | None = None
    y_inst: np.ndarray | None = None
    frame: str = "null"
    rule: str = '{"kind": "none"}'
    provenance: str = "{}"
    sha256: str | None = None

    def digest(self) -> str:
        """Checksum over content, shapes and the three JSON texts, in this order."""
        arrays = [self.features, self.coords, *(self.edges or (None, None)), self.y_inst]
        shapes = [None if a is None else [str(a.dtype), *a.shape] for a in arrays]
        data = [b"" if a is None else a.reshape(-1).view(np.uint8).data for a in arrays]
        return digest(*data, json.dumps([self.id, shapes]), self.frame, self.rule, self.provenance)

    def parsed_frame(self) -> Frame | None:
        content = json.loads(self.frame)
        return None if content is None else Frame.from_dict(content)

    def graph(self) -> Graph | None:
        rule = full_rule(json.loads(self.rule))
        return _build_graph(rule, len(self.features), self.coords, self.parsed_frame(), self.edges)


def check_shapes(arrays: Mapping[str, np.ndarray | None]) -> None:
    """An error when features are absent or empty, or when rows do not belong together."""
    features, coords, y_inst = arrays["features"], arrays["coords"], arrays["y_inst"]
    if features is None:
        raise DataError("there is no dataset 'features'; is this a feature file?")
    if features.ndim != 2:
        raise DataError(f"features must have the shape (instances, dimensions), got {features.shape}")
    if 0 in features.shape:
        raise DataError(f"no instances (features has the shape {features.shape}); leave this case out of the manifest")
    if coords is not None and coords.ndim != 2:
        raise DataError(f"coords must have the shape (instances, axes), got {coords.shape}")
    for name, rows in (("coords", coords), ("y_inst", y_inst)):
        if rows is not None and len(rows) != len(features):
            raise DataError(
                f"{name} has {len(rows):,} rows but features has {len(features):,}; extract this case again"
            )
    if coords is not None and not np.isfinite(coords).all():
        raise DataError(f"coords: row {np.argwhere(~np.isfinite(coords))[0, 0]} is not finite; extract this case again")


def refuse_not_finite(features: np.ndarray) -> None:
    """An error that names the first row with NaN or Inf."""
    if _all_finite(torch.from_numpy(features)):
        return
    with np.errstate(over="ignore"):
        rows = np.flatnonzero(~np.isfinite(features.astype(np.float32)).all(1))
    what = "NaN or Inf" if not np.isfinite(features[rows[0]]).all() else "numbers too large for float32"
    raise DataError(f"features: row {rows[0]} holds {what} ({len(rows):,} such rows); extract this case again")


def _all_finite(x: Tensor) -> bool:
    """Whether all is finite: the extremes carry every NaN and Inf, and finding them is the fastest pass there is."""
    low, high = torch.aminmax(x)
    return bool(torch.isfinite(low.float()) & torch.isfinite(high.float()))


def begins_formula(name: str) -> bool:
    """Whether a spreadsheet would compute a cell with this name of a case instead of showing it."""
    return name.startswith(("=", "+", "-", "@"))


def stored_type(name: str, array: np.ndarray) -> np.ndarray:
    """The array in the type this format keeps it in; no copy when it has it already."""
    if name == "features":
        return array
    if name == "y_inst":
        return as_int8(array)
    if name == "edge_weight" or (name == "coords" and not _whole(array)):
        return array.astype(np.float64, copy=False)
    return array.astype(np.int64, copy=False)


def _whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" or bool((array == np.rint(array)).all() and np.abs(array).max(initial=0) < 2**53)


def as_int8(labels: np.ndarray) -> np.ndarray:
    """Instance labels as they are stored; anything but -1, 0, … 127 is refused."""
    wrong = np.flatnonzero((labels < -1) | (labels > 127) | (labels != np.rint(labels)))
    if len(wrong):
        raise DataError(f"y_inst: row {wrong[0]} is {labels[wrong[0]]}; instance labels are -1 (unknown), 0, 1, … 127")
    return labels.astype(np.int8, copy=False)


UNKNOWN = "unknown"


@dataclass(frozen=True)
class WritePlan:
    """Files of one case in a target format (relative path to content), and notes on what was lost or assumed.

    Notes begin with "lost:" (the format cannot hold it), "assumed:" (it wants more than is known) or "differs:".
    """

    files: dict[str, Callable[[], bytes]]
    notes: list[str] = field(default_factory=list)


def folder_name(encoder: str) -> str:
    """An encoder's name as part of a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", encoder).lstrip(".") or UNKNOWN


def encoder_name(facts: Mapping[str, Any], notes: list[str]) -> str:
    """Name of the encoder; if unknown, "unknown" with a note."""
    encoder = facts.get("encoder")
    if encoder is None:
        notes.append(f"assumed: the encoder is called {UNKNOWN!r}, the source does not name it (give --encoder)")
    return UNKNOWN if encoder is None else str(encoder)


def h5_bytes(
    arrays: Mapping[str, np.ndarray],
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    root: Mapping[str, Any] | None = None,
) -> bytes:
    """An HDF5 file in memory: contiguous datasets, their attributes, attributes of the file. Same input, same bytes."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=("v108", "v108")) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array).attrs.update((attributes or {}).get(name, {}))
        file.attrs.update(root or {})
    return buffer.getvalue()


def coords_2d(stored: Stored, target: str) -> np.ndarray:
    """Coordinates with two axes, or an error: that is all the target can hold."""
    if stored.coords is None:
        raise DataError(f"{target} needs coordinates, which this case does not have; convert it to native")
    if stored.coords.shape[1] != 2:
        raise DataError(
            f"{target} holds coordinates (x, y), got {stored.coords.shape[1]} axes; convert it to native or torchmil"
        )
    return stored.coords


def square_frame(stored: Stored, target: str) -> Frame:
    """The frame of a case with square patches and equal steps, or an error: that is all the target can hold."""
    frame = stored.parsed_frame()
    if frame is None:
        raise DataError(f"{target} needs the footprint of a patch, which is unknown here; convert it to native")
    for what, sides in (("patches", frame.patch), ("steps", frame.step)):
        if len(set(sides)) > 1:
            raise DataError(
                f"{target} holds square {what}, got {' x '.join(f'{s:g}' for s in sides)}; convert it to native"
            )
    return Frame(frame.patch[:1] * 2, frame.spacing, frame.unit, frame.stride and frame.stride[:1] * 2)


def lost_facts(stored: Stored, facts: Mapping[str, Any], kept: Frame | None, keeps: tuple[str, ...] = ()) -> list[str]:
    """What is lost when only features, coordinates, the frame `kept` and these facts survive."""
    notes = []
    frame = stored.parsed_frame()
    if frame is not None:
        for name in ("patch", "step", "spacing"):
            had, has = getattr(frame, name), None if kept is None else getattr(kept, name)
            if had is not None and not _same(had, has):
                notes.append(f"lost: {name} {' x '.join(f'{v:g}' for v in had)}{_unit(name, frame)}")
    rule = full_rule(json.loads(stored.rule))
    if rule != full_rule("grid"):
        notes.append(f"lost: neighbourhood {json.dumps(rule)}")
    if stored.y_inst is not None:
        notes.append("lost: instance labels")
    if file_name(stored.id) != stored.id:
        notes.append(f"lost: the name {stored.id!r}, written as {file_name(stored.id)!r}")
    gone = sorted(set(facts) - set(keeps) - {"format"})
    return notes + ([f"lost: provenance {', '.join(gone)}"] if gone else [])


def _same(had: tuple[float, ...], has: tuple[float, ...] | None) -> bool:
    return has is not None and set(had) == set(has)


def _unit(name: str, frame: Frame) -> str:
    return f" {frame.unit}" if name == "spacing" else ""
