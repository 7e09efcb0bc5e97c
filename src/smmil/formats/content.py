"""The content of a feature file before its graph is built, and the checks on it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from smmil.errors import DataError
from smmil.files import digest
from smmil.formats.neighbours import build_graph, full_rule
from smmil.frame import Frame
from smmil.graph import Graph


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
        return build_graph(rule, len(self.features), self.coords, self.parsed_frame(), self.edges)


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
        return int8(array)
    if name == "edge_weight" or (name == "coords" and not _whole(array)):
        return array.astype(np.float64, copy=False)
    return array.astype(np.int64, copy=False)


def _whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" or bool((array == np.rint(array)).all() and np.abs(array).max(initial=0) < 2**53)


def int8(labels: np.ndarray) -> np.ndarray:
    """Instance labels as they are stored; anything but -1, 0, … 127 is refused."""
    wrong = np.flatnonzero((labels < -1) | (labels > 127) | (labels != np.rint(labels)))
    if len(wrong):
        raise DataError(f"y_inst: row {wrong[0]} is {labels[wrong[0]]}; instance labels are -1 (unknown), 0, 1, … 127")
    return labels.astype(np.int8, copy=False)
