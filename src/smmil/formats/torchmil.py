"""torchmil's folders of .npy files: features/features_<encoder>, coords, labels, patch_labels (slice_labels for scans).

The folder of slides is called patches_<size>; scans have no coordinates, their rows are the slices in order.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import file_name
from smmil.formats import content
from smmil.formats.content import INFERRED, Stored, _folder_name, _WritePlan
from smmil.formats.hdf5 import Reader, _starts_with
from smmil.frame import Frame
from smmil.graph import ALARM_FROM


class TorchmilReader(Reader):
    name = "torchmil"

    def recognises(self, path: Path) -> bool:
        """Whether this is an array in a folder called features or features_<encoder>."""
        in_features = path.absolute().parent.name.startswith("features")
        return path.suffix.lower() == ".npy" and in_features and _starts_with(path, b"\x93NUMPY")

    def load(self, path: Path) -> Stored:
        """Features with coordinates of the same name on a lattice of the step they show; scans become a chain."""
        root = _root(path)
        features, coords = _array(path), _array(root / "coords" / path.name)
        if features is None or features.dtype.kind != "f":
            raise DataError(f"features must hold floating point numbers, got {getattr(features, 'dtype', 'nothing')}")
        found = re.fullmatch(r"patches_(\d+(?:\.\d+)?)", root.name)
        size = float(found[1]) or None if found else None
        if coords is None:
            return Stored(path.stem, features, rule='{"kind": "chain"}' if size is None else '{"kind": "none"}')
        coords = content._stored_type("coords", coords)
        stored, frame = Stored(path.stem, features, coords), _frame(coords, size)
        inferred = frame is not None and (size is None or frame.patch[0] != size)
        return stored.on_lattice(frame, {"step": INFERRED} if inferred else {})

    def instance_labels(self, path: Path) -> np.ndarray | None:
        """Labels of the patches or slices, from the folder named after them; -1 where they are not known."""
        for folder in ("patch_labels", "slice_labels"):
            if (labels := _array(_root(path) / folder / path.name)) is not None:
                return content._as_int8(np.nan_to_num(labels.reshape(len(labels), -1)[:, 0], nan=-1))
        return None

    def label(self, path: Path) -> int | None:
        """The label of the bag, from the folder labels; None where there is none."""
        found = _array(_root(path) / "labels" / path.name)
        if found is None:
            return None
        values = found.reshape(-1)
        if len(values) != 1 or values[0] != np.rint(values[0]) or values[0] < 0:
            raise DataError(f"labels/{path.name}: expected one class index, got {values[:5].tolist()}")
        return int(values[0])

    def provenance(self, path: Path) -> dict[str, Any]:
        """The encoder, which the folder is named after."""
        encoder = path.absolute().parent.name.removeprefix("features").removeprefix("_")
        return {"encoder": encoder} if encoder else {}

    def plan(self, stored: Stored, facts: dict[str, Any], label: int | None) -> _WritePlan:
        """The .npy files of a case; scans go into torchmil's layout for scans, which has no coordinates."""
        is_scan = stored.parsed_rule()["kind"] == "chain"
        root, arrays, kept = "", {}, None
        if not is_scan:
            root, arrays["coords"], kept = _slide_layout(stored)
        notes = stored.lost_facts(facts, kept, ("encoder",))
        if is_scan:
            notes = [note for note in notes if not note.startswith("lost: neighbourhood")]
            notes += ["lost: coordinates of the slices (torchmil counts them)"] * (stored.coords is not None)
        encoder = content._encoder_name(facts, notes)
        if (folder := _folder_name(encoder)) != encoder:
            notes.append(f"lost: the name {encoder!r} of the encoder, written as {folder!r}")
        arrays[f"features/features_{folder}"] = stored.features
        if stored.y_inst is not None:
            arrays["slice_labels" if is_scan else "patch_labels"] = stored.y_inst.astype(np.int64)
            notes.remove("lost: instance labels")
        if label is None:
            notes.append("assumed: nothing about the label, so labels/ has no file for it (give --labels)")
        else:
            arrays["labels"] = np.array([label], dtype=np.int64)
        name = f"{file_name(stored.id)}.npy"
        return _WritePlan({f"{root}{below}/{name}": _npy(array) for below, array in arrays.items()}, notes)


def _slide_layout(stored: Stored) -> tuple[str, np.ndarray, Frame | None]:
    """Folder (named after the step, by which torchmil divides), coordinates, and the frame that reading them gives."""
    if stored.coords is None:
        raise DataError("torchmil needs coordinates, which this case does not have; convert it to native")
    step = stored.square_frame("torchmil").step[0]
    if not step.is_integer():
        raise DataError(f"torchmil names its folder after a whole step, got {step:g}; convert it to native")
    return f"patches_{step:.0f}/", stored.coords, _frame(stored.coords, step)


def _frame(coords: np.ndarray, size: float | None) -> Frame | None:
    """The folder's patch size counts at some magnification: where coordinates lie further apart, they are right."""
    if size is None:
        return content._frame_from_coords(coords)
    frame = content._frame_with_step((size,) * coords.shape[1], coords)
    return frame if frame.step <= frame.patch or len(coords) < ALARM_FROM else Frame(frame.step)


def companions(features: Path) -> list[Path]:
    """Files of a bag beside its features, there or not: coordinates and instance labels."""
    return [_root(features) / folder / features.name for folder in ("coords", "patch_labels", "slice_labels")]


def _root(path: Path) -> Path:
    """The folder that holds features, coords and labels side by side."""
    folder = path.absolute().parent
    return folder.parent.parent if folder.parent.name == "features" else folder.parent


def _array(path: Path) -> np.ndarray | None:
    if not path.is_file():
        return None
    array = np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # a map first: it refuses sizes that are a lie
    if array.dtype.kind not in "fiub":
        raise DataError(f"{path.parent.name}/{path.name} must hold numbers, got {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _npy(array: np.ndarray) -> Callable[[], bytes]:
    def written() -> bytes:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        return buffer.getvalue()

    return written
