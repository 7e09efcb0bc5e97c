"""Content of a feature file as arrays, the checks on it, and the rules that give its graph."""

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np
import torch

from smmil.errors import ConfigError, DataError, check_choice, suggest
from smmil.files import Pieces, digest, file_name
from smmil.frame import Frame
from smmil.graph import (
    ALARM_FROM,
    ALARM_SHARE,
    Graph,
    chain_graph,
    grid_graph,
    is_regular,
    knn_graph,
    nearest_distance,
    radius_graph,
)

# Kinds of graphs with their options and defaults; None must be given.
OPTIONS: dict[str, dict[str, Any]] = {"grid": {"neighbours": 8}, "knn": {"k": 5}, "radius": {"radius": None}}
OPTIONS |= {"chain": {}, "edges": {}, "none": {}}
GRID = json.dumps({"kind": "grid", "neighbours": 8})
# Attributes of TRIDENT's coordinates: facts to keep, and with them those that give the lattice.
_TRIDENT_FACTS = ("patch_size", "level0_magnification", "target_magnification", "level0_width", "level0_height")
_TRIDENT_SIZES = (*_TRIDENT_FACTS, "patch_size_level0", "overlap")
INFERRED = "inferred from the coordinates"


def _full_rule(graph: str | Mapping[str, Any]) -> dict[str, Any]:
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


def _frame_with_step(
    patch: tuple[float, ...], coords: np.ndarray, spacing: tuple[float, ...] | None = None, unit: str = "px"
) -> Frame:
    """A frame of this footprint whose step fits the coordinates: smaller than the patch when they overlap.

    The step is the median distance to the nearest other instance. Few instances that lie apart say nothing about a
    step; then, and when both agree, patches are taken to touch. Coordinates that are not whole may jitter by 0.1 %.
    """
    apart, side = nearest_distance(coords), min(patch)
    jitter = 1e-3 if coords.dtype.kind == "f" else 1e-6
    touching = not apart > 0 or abs(apart / side - 1) <= jitter or (apart > side and len(coords) < ALARM_FROM)
    return Frame(patch, spacing, unit, None if touching else (apart,) * len(patch))


def _frame_from_coords(coords: np.ndarray) -> Frame | None:
    """A frame whose patches touch, from the coordinates alone; None for a single instance."""
    apart = nearest_distance(coords)
    return Frame((apart,) * coords.shape[1]) if apart > 0 else None


def _frame_json(frame: Frame | None) -> str:
    return json.dumps(None if frame is None else frame.to_dict(), sort_keys=True)


@dataclass(frozen=True, eq=False)
class Stored:
    """What lies in a feature file, before neighbours are found; arrays that do not belong together are refused."""

    id: str
    features: np.ndarray
    coords: np.ndarray | None = None
    edges: tuple[np.ndarray, np.ndarray] | None = None
    y_inst: np.ndarray | None = None
    frame: str = "null"
    rule: str = '{"kind": "none"}'
    provenance: str = "{}"
    sha256: str | None = None
    quality: np.ndarray | None = None

    def __post_init__(self) -> None:
        features, coords = self.features, self.coords
        if features is None:
            raise DataError("there is no dataset 'features'; is this a feature file?")
        if features.ndim != 2:
            whole = "; features of a whole slide are no bag" if features.ndim == 1 else ""
            raise DataError(f"features must have the shape (instances, dimensions), got {features.shape}{whole}")
        if 0 in features.shape:
            raise DataError(
                f"no instances (features has the shape {features.shape}); leave this case out of the manifest"
            )
        if coords is not None and coords.ndim != 2:
            raise DataError(f"coords must have the shape (instances, axes), got {coords.shape}")
        for name, rows in (("coords", coords), ("y_inst", self.y_inst), ("quality", self.quality)):
            if rows is not None and len(rows) != len(features):
                raise DataError(
                    f"{name} has {len(rows):,} rows but features has {len(features):,}; extract this case again"
                )
        if coords is not None and not np.isfinite(coords).all():
            row = np.argwhere(~np.isfinite(coords))[0, 0]
            raise DataError(f"coords: row {row} is not finite; extract this case again")
        if self.quality is not None:
            named = self.quality_names()
            if self.quality.ndim != 2 or self.quality.shape[1] != len(named) or np.isinf(self.quality).any():
                raise DataError(f"quality is not of the {len(named)} facts that the provenance names; prepare it again")

    def quality_names(self) -> list[str]:
        """What the columns of `quality` are called, as the provenance says."""
        named = json.loads(self.provenance).get("quality", [])
        return named if isinstance(named, list) and all(isinstance(name, str) for name in named) else []

    def on_lattice(self, frame: Frame | None, facts: Mapping[str, Any] | None = None) -> "Stored":
        """The case on the lattice of a frame, with these facts; without a frame it has no neighbours."""
        origin = json.dumps(facts or {})
        if frame is not None:
            return replace(self, frame=_frame_json(frame), rule=GRID, provenance=origin)
        no_pairs = np.zeros((2, 0), dtype=np.int64), np.zeros(0)
        return replace(self, edges=no_pairs, rule='{"kind": "edges"}', provenance=origin)

    def on_trident_lattice(self, sizes: Mapping[str, float | None]) -> "Stored":
        """The case on the lattice that TRIDENT states (`_TRIDENT_SIZES`): footprint and step in level-0 pixels.

        The overlap is given at target magnification and is scaled up.
        """
        level0, target, overlap = sizes["patch_size_level0"], sizes["patch_size"], sizes["overlap"] or 0.0
        if level0 is None:
            raise DataError(
                "coords has no attribute 'patch_size_level0', so the step is unknown; extract this case again"
            )
        if overlap and target is None:
            raise DataError("coords has an overlap but no attribute 'patch_size' to scale it; extract this case again")
        assert self.coords is not None  # whoever states a lattice has coordinates
        step = level0 - overlap * level0 / target if overlap and target else level0
        axes = self.coords.shape[1]
        facts = {name: int(v) if v.is_integer() else v for name in _TRIDENT_FACTS if (v := sizes[name]) is not None}
        return self.on_lattice(Frame(patch=(level0,) * axes, stride=(step,) * axes), facts)

    def digest(self, features: Pieces | None = None) -> str:
        """Checksum over content, shapes and the three JSON texts, in this order; `features` in place of the own."""
        arrays = [self.features, self.coords, *(self.edges or (None, None)), self.y_inst]
        arrays += [] if self.quality is None else [self.quality]  # files without it have the checksum they had
        shapes = [None if a is None else [str(a.dtype), *a.shape] for a in arrays]
        own = arrays if features is None else arrays[1:]
        data = [b"" if a is None else a.reshape(-1).view(np.uint8).data for a in own]
        given = [] if features is None else [features]
        return digest(*given, *data, json.dumps([self.id, shapes]), self.frame, self.rule, self.provenance)

    def refuse_not_finite(self) -> None:
        """An error that names the first row of features with NaN or Inf."""
        if (wrong := not_finite(self.features)) is not None:
            rows, what = wrong
            raise DataError(f"features: row {rows[0]} holds {what} ({len(rows):,} such rows); extract this case again")

    def parsed_frame(self) -> Frame | None:
        content = json.loads(self.frame)
        return None if content is None else Frame.from_dict(content)

    def parsed_rule(self) -> dict[str, Any]:
        return _full_rule(json.loads(self.rule))

    def graph(self) -> Graph | None:
        """The graph that the rule describes; None for the rule "none"."""
        rule, n, coords, frame = self.parsed_rule(), len(self.features), self.coords, self.parsed_frame()
        kind = rule["kind"]
        if kind == "none":
            return None
        if kind == "chain":
            return chain_graph(n)
        if kind == "edges":
            if self.edges is None:
                raise DataError("graph 'edges' needs the pairs of neighbours, which are missing")
            return Graph.from_edges(*self.edges, n=n)
        if coords is None:
            raise DataError(f"graph {kind!r} needs coordinates; give them, or choose 'chain', 'edges' or 'none'")
        if kind == "knn":
            return knn_graph(coords, rule["k"])
        if kind == "radius":
            return radius_graph(coords, rule["radius"])
        if frame is None:
            raise DataError("graph 'grid' needs a Frame with the step between neighbouring instances")
        if len(frame.step) not in (1, coords.shape[1]):
            raise DataError(f"frame has {len(frame.step)} axes but the coordinates have {coords.shape[1]}")
        return grid_graph(coords, frame.step, rule["neighbours"], check=False)

    def connected_graph(self) -> Graph | None:
        """The graph; an error when most instances have no neighbour: smoothing would silently do nothing."""
        graph = self.graph()
        if graph is None or self.coords is None or graph.n < ALARM_FROM or graph.isolated_share <= ALARM_SHARE:
            return graph
        kind, frame = self.parsed_rule()["kind"], self.parsed_frame()
        used = f"step {_sides(frame.step)}" if kind == "grid" and frame else f"graph {kind!r}"
        raise DataError(
            f"{graph.isolated_share:.0%} of {graph.n:,} instances have no neighbour with {used}, {self.why_isolated()}"
        )

    def why_isolated(self) -> str:
        """Why most instances have no neighbour, and what helps: a wrong step, or patches that were sampled sparsely."""
        assert self.coords is not None  # without them there are no neighbours to look for
        apart = nearest_distance(self.coords)
        nearest = f"smmil convert --to native --graph knn (or radius:{_two_digits(2 * apart):g})"
        if is_regular(self.coords):
            return (
                f"while the nearest coordinates are {apart:g} apart (median); likely cause: a wrong step (patch_size "
                "in place of patch_size_level0); write the file again with the level-0 step, or if patches were left "
                f"out on purpose, {nearest} joins the nearest"
            )
        return (
            f"and they lie on no lattice (nearest {apart:g} apart, median): they were sampled sparsely, so neighbours "
            f"must be the nearest ones; {nearest} writes such bags"
        )

    def coords_2d(self, target: str) -> np.ndarray:
        """Coordinates with two axes, or an error: that is all the target can hold."""
        if self.coords is None:
            raise DataError(f"{target} needs coordinates, which this case does not have; convert it to native")
        if self.coords.shape[1] != 2:
            raise DataError(
                f"{target} holds coordinates (x, y), got {self.coords.shape[1]} axes; convert it to native or torchmil"
            )
        return self.coords

    def square_frame(self, target: str) -> Frame:
        """The frame of a case with square patches and equal steps, or an error: that is all the target can hold."""
        frame = self.parsed_frame()
        if frame is None:
            raise DataError(f"{target} needs the footprint of a patch, which is unknown here; convert it to native")
        for what, sides in (("patches", frame.patch), ("steps", frame.step)):
            if len(set(sides)) > 1:
                raise DataError(f"{target} holds square {what}, got {_sides(sides)}; convert it to native")
        return Frame(frame.patch[:1] * 2, frame.spacing, frame.unit, frame.stride and frame.stride[:1] * 2)

    def lost_facts(self, facts: Mapping[str, Any], kept: Frame | None, keeps: tuple[str, ...] = ()) -> list[str]:
        """What is lost when only features, coordinates, the frame `kept` and these facts survive."""
        notes, frame = [], self.parsed_frame()
        units = {"patch": "", "step": "", "spacing": f" {frame.unit}"} if frame else {}
        for name, unit in units.items():
            had, has = getattr(frame, name), getattr(kept, name, None)
            if had is not None and set(had) != set(has or ()):
                notes.append(f"lost: {name} {_sides(had)}{unit}")
        if self.parsed_rule() != _full_rule("grid"):
            notes.append(f"lost: neighbourhood {json.dumps(self.parsed_rule())}")
        if self.y_inst is not None:
            notes.append("lost: instance labels")
        if self.quality is not None:
            notes.append("lost: facts of image quality")
        if file_name(self.id) != self.id:
            notes.append(f"lost: the name {self.id!r}, written as {file_name(self.id)!r}")
        gone = sorted(set(facts) - set(keeps) - {"format"})
        return notes + ([f"lost: provenance {', '.join(gone)}"] if gone else [])


def not_finite(features: np.ndarray) -> tuple[np.ndarray, str] | None:
    """Rows of features with NaN or Inf, or too large for float32, and what the first holds; None if all are sound."""
    # The extremes carry every NaN and Inf, and finding them is the fastest pass there is.
    if all(torch.isfinite(extreme.float()) for extreme in torch.aminmax(torch.from_numpy(features))):
        return None
    with np.errstate(over="ignore"):
        rows = np.flatnonzero(~np.isfinite(features.astype(np.float32)).all(1))
    return rows, "NaN or Inf" if not np.isfinite(features[rows[0]]).all() else "numbers too large for float32"


def is_edgeless(n: int, graph: Graph | None) -> bool:
    """Whether a bag has fewer than ten instances and a graph without edges; of larger bags reading itself says so."""
    return n < ALARM_FROM and graph is not None and not len(graph.indices)


def edgeless_note(count: int, bags: int) -> str:
    """What it means that so many bags have no neighbours, in words."""
    return (
        f"{count} of {bags} bags have fewer than ten instances and no two neighbours: smoothing does nothing there; "
        "smaller tiles or less tissue_share give more, smmil convert --to native --graph knn joins the nearest"
    )


def _sides(lengths: tuple[float, ...]) -> str:
    return " x ".join(f"{length:g}" for length in lengths)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def begins_formula(name: str) -> bool:
    """Whether a spreadsheet would compute a cell with this name of a case instead of showing it."""
    return name.startswith(("=", "+", "-", "@"))


def _stored_type(name: str, array: np.ndarray) -> np.ndarray:
    """The array in the type this format keeps it in; no copy when it has it already."""
    if name == "features":
        return array
    if name == "y_inst":
        return _as_int8(array)
    if name == "quality":
        return array.astype(np.float32, copy=False)
    whole = array.dtype.kind in "iu" or ((array == np.rint(array)).all() and np.abs(array).max(initial=0) < 2**53)
    float_kept = name == "edge_weight" or (name == "coords" and not whole)
    return array.astype(np.float64 if float_kept else np.int64, copy=False)


def _as_int8(labels: np.ndarray) -> np.ndarray:
    """Instance labels as they are stored; anything but -1, 0, … 127 is refused."""
    wrong = np.flatnonzero((labels < -1) | (labels > 127) | (labels != np.rint(labels)))
    if len(wrong):
        raise DataError(f"y_inst: row {wrong[0]} is {labels[wrong[0]]}; instance labels are -1 (unknown), 0, 1, … 127")
    return labels.astype(np.int8, copy=False)


UNKNOWN = "unknown"


@dataclass(frozen=True)
class _WritePlan:
    """Files of one case in a target format (relative path to content), and notes on what was lost or assumed.

    Notes begin with "lost:" (the format cannot hold it), "assumed:" (it wants more than is known) or "differs:".
    """

    files: dict[str, Callable[[], bytes]]
    notes: list[str] = field(default_factory=list)


def _folder_name(encoder: str) -> str:
    """An encoder's name as part of a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", encoder).lstrip(".") or UNKNOWN


def _encoder_name(facts: Mapping[str, Any], notes: list[str]) -> str:
    """Name of the encoder; if unknown, "unknown" with a note."""
    encoder = facts.get("encoder")
    if encoder is None:
        notes.append(f"assumed: the encoder is called {UNKNOWN!r}, the source does not name it (give --encoder)")
    return UNKNOWN if encoder is None else str(encoder)


def _h5_bytes(
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
