"""TRIDENT's files: attributes of the coordinates (None is stored as the text 'None') and layout of the folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from smmil.errors import DataError
from smmil.files import file_name
from smmil.formats.content import Stored
from smmil.formats.hdf5 import open_for_texts
from smmil.formats.neighbours import GRID
from smmil.formats.writing import WritePlan, encoder_of, folder_name, footprint, h5_bytes, planar, unheld
from smmil.frame import Frame

FACTS = ("patch_size", "level0_magnification", "target_magnification", "level0_width", "level0_height")
_MAGNIFICATIONS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))


def text(value: Any) -> str:
    """An attribute as text, whichever way it was stored."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def number(attributes: Any, name: str) -> float | None:
    """A numeric attribute; None when it is absent or a text ('None').

    The text itself is never read: in a damaged file, HDF5 can search for it for ever.
    """
    if name not in attributes or attributes.get_id(name).get_type().get_class() == h5py.h5t.STRING:
        return None
    return float(attributes[name])


def texts(file: h5py.File) -> dict[str, str]:
    """Frame and graph rule of a file without smmil's own attributes."""
    if "coords" not in file:
        raise DataError("there is no dataset 'coords'; for bags without positions use write_bag(..., graph='none')")
    frame = _frame(file["coords"].attrs, file["coords"].shape[-1])
    return {"frame": json.dumps(frame.to_dict()), "graph": GRID}


def provenance(file: h5py.File) -> dict[str, Any]:
    """What such a file says about its origin: the encoder."""
    encoder = text(file["features"].attrs.get("encoder", "None"))
    return {} if encoder == "None" else {"encoder": encoder}


def stated(path: Path) -> dict[str, Any]:
    """The same from a path; safe for damaged files."""
    with open_for_texts(path) as file:
        return provenance(file)


def slide_facts(path: Path) -> dict[str, Any]:
    """Patch size at target magnification, magnifications and the size of the slide, as far as a file states them."""
    with h5py.File(path, "r", locking=False) as file:
        sizes = {name: number(file["coords"].attrs, name) for name in FACTS}
    return {name: int(v) if v.is_integer() else v for name, v in sizes.items() if v is not None}


def _frame(attributes: Any, axes: int) -> Frame:
    """Footprint and step in level-0 pixels; the overlap is given at target magnification and is scaled up."""
    level0, target = number(attributes, "patch_size_level0"), number(attributes, "patch_size")
    overlap = number(attributes, "overlap") or 0.0
    if level0 is None:
        raise DataError("coords has no attribute 'patch_size_level0', so the step is unknown; extract this case again")
    if overlap and target is None:
        raise DataError("coords has an overlap but no attribute 'patch_size' to scale it; extract this case again")
    step = level0 - overlap * level0 / target if overlap and target else level0
    return Frame(patch=(level0,) * axes, stride=(step,) * axes)


def attributes(name: str, frame: Frame | None, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What TRIDENT's own tools look for on `coords`; without facts, target magnification is taken to be level 0."""
    facts = facts or {}
    side = None if frame is None else frame.patch[0]
    target = facts.get("patch_size", side)
    known: dict[str, Any] = {
        "patch_size": target,
        "patch_size_level0": side,
        "level0_magnification": facts.get("level0_magnification"),
        "target_magnification": facts.get("target_magnification"),
        "overlap": None if frame is None else _overlap(frame, target),
        "name": name,
        "level0_width": facts.get("level0_width"),
        "level0_height": facts.get("level0_height"),
    }
    return {key: _plain(value) for key, value in known.items()}


def _overlap(frame: Frame, target: float) -> float:
    """Overlap in pixels at target magnification."""
    overlap = (frame.patch[0] - frame.step[0]) * target / frame.patch[0]
    return round(overlap) if abs(overlap - round(overlap)) < 1e-6 else overlap


def _plain(value: Any) -> Any:
    if value is None:
        return "None"
    return np.int64(value) if isinstance(value, int | float) and float(value).is_integer() else value


def plan(stored: Stored, facts: dict[str, Any]) -> WritePlan:
    """Patch file and feature file of a case, in the folder that TRIDENT names after magnification, size and overlap."""
    coords, frame = planar(stored, "TRIDENT"), footprint(stored, "TRIDENT")
    known = {**facts, **_magnification(frame, facts)}
    stated = attributes(stored.id, frame, known)
    kept = Frame(frame.patch, stride=frame.stride)
    notes = unheld(stored, facts, kept, keeps=("encoder", *FACTS))
    encoder = encoder_of(facts, notes)
    if frame.step[0] > frame.patch[0]:
        raise DataError("TRIDENT knows no gaps between patches; convert it to native")
    job = f"{stated['target_magnification']:g}x_{stated['patch_size']:g}px_{stated['overlap']:g}px_overlap"
    name, arrays = file_name(stored.id), {"features": stored.features, "coords": coords}
    named = {"features": {"name": stored.id, "encoder": encoder}, "coords": stated}
    return WritePlan(
        {
            f"{job}/patches/{name}_patches.h5": lambda: h5_bytes({"coords": coords}, named),
            f"{job}/features_{folder_name(encoder)}/{name}.h5": lambda: h5_bytes(arrays, named),
        },
        notes,
    )


def _magnification(frame: Frame, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Magnifications as stated, else binned from the pixel size as TRIDENT does it."""
    if facts.get("target_magnification") is not None:
        return {}
    um = frame.spacing[0] if frame.spacing is not None and frame.unit == "um" else None
    level0 = next((power for below, power in _MAGNIFICATIONS if um is not None and um < below), None)
    if level0 is None:
        raise DataError("TRIDENT names its folders after a magnification, which is not known here; give --mpp")
    target = level0 * facts.get("patch_size", frame.patch[0]) / frame.patch[0]
    return {"level0_magnification": level0, "target_magnification": target}
