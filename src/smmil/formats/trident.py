"""TRIDENT's files: attributes of the coordinates (None is stored as the text 'None') and layout of the folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py

from smmil.errors import DataError
from smmil.files import file_name
from smmil.formats import hdf5
from smmil.formats.content import (
    GRID,
    Stored,
    WritePlan,
    coords_2d,
    encoder_name,
    folder_name,
    frame_json,
    h5_bytes,
    lost_facts,
    square_frame,
)
from smmil.frame import Frame

FACTS = ("patch_size", "level0_magnification", "target_magnification", "level0_width", "level0_height")
_MAGNIFICATIONS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))


def load(path: Path) -> Stored:
    """Features and coordinates with footprint and step from the attributes of the coordinates."""
    with h5py.File(path, "r", locking=False) as file:
        arrays = hdf5.bag_arrays(file)
        if arrays["coords"] is None:
            raise DataError("there is no dataset 'coords'; for bags without positions use write_bag(..., graph='none')")
        stated = file["coords"].attrs
        frame, facts = _frame(stated, arrays["coords"].shape[1]), _slide_facts(stated)
    return Stored(path.stem, **arrays, frame=frame_json(frame), rule=GRID, provenance=json.dumps(facts))


def provenance(path: Path) -> dict[str, Any]:
    """The encoder, where the file names it."""
    with hdf5.open_for_texts(path) as file:
        encoder = hdf5.text(file["features"].attrs.get("encoder", "None"))
    return {} if encoder == "None" else {"encoder": encoder}


def _slide_facts(attributes: Any) -> dict[str, Any]:
    """Patch size at target magnification, magnifications and the size of the slide, as far as they are stated."""
    sizes = {name: hdf5.number(attributes, name) for name in FACTS}
    return {name: int(v) if v.is_integer() else v for name, v in sizes.items() if v is not None}


def _frame(attributes: Any, axes: int) -> Frame:
    """Footprint and step in level-0 pixels; the overlap is given at target magnification and is scaled up."""
    level0, target = hdf5.number(attributes, "patch_size_level0"), hdf5.number(attributes, "patch_size")
    overlap = hdf5.number(attributes, "overlap") or 0.0
    if level0 is None:
        raise DataError("coords has no attribute 'patch_size_level0', so the step is unknown; extract this case again")
    if overlap and target is None:
        raise DataError("coords has an overlap but no attribute 'patch_size' to scale it; extract this case again")
    step = level0 - overlap * level0 / target if overlap and target else level0
    return Frame(patch=(level0,) * axes, stride=(step,) * axes)


def plan(stored: Stored, facts: dict[str, Any]) -> WritePlan:
    """Patch file and feature file of a case, in the folder that TRIDENT names after magnification, size and overlap."""
    coords, frame = coords_2d(stored, "TRIDENT"), square_frame(stored, "TRIDENT")
    known = {**facts, **_magnification(frame, facts)}
    stated = hdf5.coords_attributes(stored.id, frame, known)
    kept = Frame(frame.patch, stride=frame.stride)
    notes = lost_facts(stored, facts, kept, keeps=("encoder", *FACTS))
    encoder = encoder_name(facts, notes)
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
