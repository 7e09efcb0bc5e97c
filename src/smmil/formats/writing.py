"""What the writers of foreign formats share: names, bytes of HDF5 files, and the list of what a format cannot hold."""

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from smmil.errors import DataError
from smmil.files import file_name
from smmil.formats.content import Stored, full_rule
from smmil.frame import Frame

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
