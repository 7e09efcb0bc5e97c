"""torchmil's folders of .npy files: features/features_<encoder>, coords, labels, patch_labels (slice_labels for scans).

The folder of slides is called patches_<size>; scans have no coordinates, their rows are the slices in order.
"""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import file_name
from smmil.formats import hdf5
from smmil.formats.content import (
    ALARM_FROM,
    GRID,
    INFERRED,
    Stored,
    WritePlan,
    as_int8,
    check_shapes,
    empty_edges,
    encoder_name,
    folder_name,
    frame_from_coords,
    frame_json,
    frame_with_step,
    lost_facts,
    square_frame,
    stored_type,
)
from smmil.frame import Frame

_NPY = b"\x93NUMPY"
CHAIN = json.dumps({"kind": "chain"})


def recognises(path: Path) -> bool:
    """Whether this is an array in a folder called features or features_<encoder>."""
    return (
        path.suffix.lower() == ".npy"
        and path.absolute().parent.name.startswith("features")
        and hdf5.starts_with(path, _NPY)
    )


def load(path: Path) -> Stored:
    """Features with coordinates and instance labels of the same name; scans become a chain of slices."""
    root = _root(path)
    features, coords = _array(path), _array(root / "coords" / path.name)
    labels = _array(root / "patch_labels" / path.name)
    labels = _array(root / "slice_labels" / path.name) if labels is None else labels
    if features is None or features.dtype.kind != "f":
        raise DataError(f"features must hold floating point numbers, got {getattr(features, 'dtype', 'nothing')}")
    coords = None if coords is None else stored_type("coords", coords)
    y_inst = None if labels is None else as_int8(np.nan_to_num(labels.reshape(len(labels), -1)[:, 0], nan=-1))
    check_shapes({"features": features, "coords": coords, "y_inst": y_inst})
    return _placed(Stored(path.stem, features, coords, y_inst=y_inst), _nominal_size(root))


def _placed(bag: Stored, size: float | None) -> Stored:
    """The bag with frame and neighbourhood: a chain without coordinates, else a lattice with the step they show."""
    frame, rule, edges, note = None, GRID, None, {}
    if bag.coords is None:
        rule = CHAIN if size is None else '{"kind": "none"}'
    elif (frame := _frame(bag.coords, size)) is None:
        rule, edges = '{"kind": "edges"}', empty_edges()
    elif size is None or frame.patch[0] != size:
        note = {"step": INFERRED}
    return Stored(
        bag.id, bag.features, bag.coords, edges, bag.y_inst, frame_json(frame), rule, provenance=json.dumps(note)
    )


def _frame(coords: np.ndarray, size: float | None) -> Frame | None:
    """The folder's patch size counts at some magnification: where coordinates lie further apart, they are right."""
    if size is None:
        return frame_from_coords(coords)
    frame = frame_with_step((size,) * coords.shape[1], coords)
    return frame if frame.step <= frame.patch or len(coords) < ALARM_FROM else Frame(frame.step)


def _root(path: Path) -> Path:
    """The folder that holds features, coords and labels side by side."""
    folder = path.absolute().parent
    return folder.parent.parent if folder.parent.name == "features" else folder.parent


def _nominal_size(root: Path) -> float | None:
    found = re.fullmatch(r"patches_(\d+(?:\.\d+)?)", root.name)
    return float(found[1]) or None if found else None


def _array(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    array = np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # a map first: it refuses sizes that are a lie
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path.parent.name}/{path.name} must hold numbers, got {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def label(path: Path) -> int | None:
    """The label of the bag, from the folder labels; None where there is none."""
    found = _array(_root(path) / "labels" / path.name)
    if found is None:
        return None
    values = found.reshape(-1)
    if len(values) != 1 or values[0] != np.rint(values[0]) or values[0] < 0:
        raise DataError(f"labels/{path.name}: expected one class index, got {values[:5].tolist()}")
    return int(values[0])


def provenance(path: Path) -> dict[str, Any]:
    """The encoder, which the folder is named after."""
    encoder = path.absolute().parent.name.removeprefix("features").removeprefix("_")
    return {"encoder": encoder} if encoder else {}


def plan(stored: Stored, facts: dict[str, Any], label: int | None = None) -> WritePlan:
    """The .npy files of a case; scans go into torchmil's layout for scans, which has no coordinates."""
    is_scan = json.loads(stored.rule)["kind"] == "chain"
    if stored.coords is None and not is_scan:
        raise DataError("torchmil needs coordinates, which this case does not have; convert it to native")
    if stored.coords is not None and not is_scan:
        return _slide(stored, stored.coords, facts, label)
    notes = [
        note for note in lost_facts(stored, facts, None, ("encoder",)) if not note.startswith("lost: neighbourhood")
    ]
    if stored.coords is not None:
        notes.append("lost: coordinates of the slices (torchmil counts them)")
    return _plan("", "slice_labels", stored, facts, label, notes)


def _slide(stored: Stored, coords: np.ndarray, facts: dict[str, Any], label: int | None) -> WritePlan:
    """torchmil divides coordinates by the size in the folder's name, so the name must be the step."""
    frame = square_frame(stored, "torchmil")
    step = frame.step[0]
    if not step.is_integer():
        raise DataError(f"torchmil names its folder after a whole step, got {step:g}; convert it to native")
    notes = lost_facts(stored, facts, _frame(coords, step), ("encoder",))
    return _plan(f"patches_{step:.0f}/", "patch_labels", stored, facts, label, notes)


def _plan(
    root: str, labels: str, stored: Stored, facts: dict[str, Any], label: int | None, notes: list[str]
) -> WritePlan:
    encoder, name = encoder_name(facts, notes), file_name(stored.id)
    if folder_name(encoder) != encoder:
        notes.append(f"lost: the name {encoder!r} of the encoder, written as {folder_name(encoder)!r}")
    arrays = {f"features/features_{folder_name(encoder)}": stored.features}
    if stored.coords is not None and root:
        arrays["coords"] = stored.coords
    if stored.y_inst is not None:
        arrays[labels] = stored.y_inst.astype(np.int64)
        notes = [note for note in notes if note != "lost: instance labels"]
    if label is None:
        notes.append("assumed: nothing about the label, so labels/ has no file for it (give --labels)")
    else:
        arrays["labels"] = np.array([label], dtype=np.int64)
    return WritePlan({f"{root}{folder}/{name}.npy": _npy(array) for folder, array in arrays.items()}, notes)


def _npy(array: np.ndarray) -> Any:
    def content() -> bytes:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        return buffer.getvalue()

    return content
