"""TRIDENT's attributes, read and written: what its files say about coordinates (None is stored as the text 'None')."""

import json
from typing import Any

import h5py
import numpy as np

from smmil.errors import DataError
from smmil.frame import Frame


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
    return {"frame": json.dumps(frame.to_dict()), "graph": json.dumps({"kind": "grid", "neighbours": 8})}


def provenance(file: h5py.File) -> dict[str, Any]:
    """What such a file says about its origin: the encoder."""
    encoder = text(file["features"].attrs.get("encoder", "None"))
    return {} if encoder == "None" else {"encoder": encoder}


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


def attributes(name: str, frame: Frame | None) -> dict[str, Any]:
    """What TRIDENT's own tools look for on `coords`; sizes at target magnification equal level 0 here."""
    side = None if frame is None else frame.patch[0]
    known: dict[str, Any] = {
        "patch_size": side,
        "patch_size_level0": side,
        "level0_magnification": None,
        "target_magnification": None,
        "overlap": None if frame is None else frame.patch[0] - frame.step[0],
        "name": name,
        "level0_width": None,
        "level0_height": None,
    }
    return {key: _plain(value) for key, value in known.items()}


def _plain(value: Any) -> Any:
    if value is None:
        return "None"
    return np.int64(value) if isinstance(value, float) and value.is_integer() else value
