"""TRIDENT's files: attributes of the coordinates (None is stored as the text 'None') and layout of the folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smmil.errors import DataError
from smmil.files import file_name, open_hdf5
from smmil.formats.content import (
    _TRIDENT_FACTS,
    _TRIDENT_SIZES,
    Stored,
    _encoder_name,
    _folder_name,
    _h5_bytes,
    _WritePlan,
)
from smmil.formats.hdf5 import Reader, _bag_arrays, _coords_attributes, _number, _open_for_texts, _text
from smmil.frame import Frame

_MAGNIFICATIONS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))


class _TridentReader(Reader):
    name = "trident"

    def load(self, path: Path) -> Stored:
        """Features and coordinates with footprint and step from the attributes of the coordinates."""
        with open_hdf5(path) as file:
            stored = Stored(path.stem, **_bag_arrays(file))
            if stored.coords is None:
                raise DataError(
                    "there is no dataset 'coords'; for bags without positions use write_bag(..., graph='none')"
                )
            stated = file["coords"].attrs
            return stored.on_trident_lattice({name: _number(stated, name) for name in _TRIDENT_SIZES})

    def provenance(self, path: Path) -> dict[str, Any]:
        """The encoder, where the file names it."""
        with _open_for_texts(path) as file:
            encoder = _text(file["features"].attrs, "encoder", "None")
        return {} if encoder == "None" else {"encoder": encoder}

    def plan(self, stored: Stored, facts: dict[str, Any], label: int | None) -> _WritePlan:
        """Patch file and feature file, in the folder that TRIDENT names after magnification, size and overlap."""
        coords, frame = stored.coords_2d("TRIDENT"), stored.square_frame("TRIDENT")
        stated = _coords_attributes(stored.id, frame, {**facts, **_magnification(frame, facts)})
        notes = stored.lost_facts(facts, Frame(frame.patch, stride=frame.stride), keeps=("encoder", *_TRIDENT_FACTS))
        encoder = _encoder_name(facts, notes)
        if frame.step[0] > frame.patch[0]:
            raise DataError("TRIDENT knows no gaps between patches; convert it to native")
        job = f"{stated['target_magnification']:g}x_{stated['patch_size']:g}px_{stated['overlap']:g}px_overlap"
        name, arrays = file_name(stored.id), {"features": stored.features, "coords": coords}
        named = {"features": {"name": stored.id, "encoder": encoder}, "coords": stated}
        files = {
            f"{job}/patches/{name}_patches.h5": lambda: _h5_bytes({"coords": coords}, named),
            f"{job}/features_{_folder_name(encoder)}/{name}.h5": lambda: _h5_bytes(arrays, named),
        }
        return _WritePlan(files, notes)


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
