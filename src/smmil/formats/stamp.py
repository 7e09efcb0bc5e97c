"""STAMP's files: <extractor>/<slide>.h5 with feats (float16) and coords in micrometres.

The oldest files have no attributes; their coordinates count pixels of which 224 are 256 µm.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError
from smmil.files import file_name, open_hdf5
from smmil.formats import content
from smmil.formats.content import Stored, _encoder_name, _folder_name, _frame_with_step, _h5_bytes, _WritePlan
from smmil.formats.hdf5 import Reader, _dataset, _number, _open_for_texts, _text
from smmil.frame import Frame
from smmil.graph import nearest_distance

OLD_PIXELS, OLD_UM = 224.0, 256.0
LAYOUT = "2.1.0"
KEEPS = ("encoder", "stamp_version", "code_hash", "tile_size_px", "tile_size_um", "patch_size")


class _StampReader(Reader):
    name = "stamp"

    def load(self, path: Path) -> Stored:
        """Features and coordinates as stored; the frame says how many micrometres one unit is."""
        with open_hdf5(path) as file:
            features, coords = _dataset(file, "feats", "features"), _dataset(file, "coords")
            if features is None or coords is None:
                raise DataError("there is no dataset 'coords': features of a whole slide or patient, not of tiles")
            stored = Stored(path.stem, features, coords)
            side, um_per_unit = _tile(path, file.attrs, coords)
        axes = coords.shape[1]
        return stored.on_lattice(_frame_with_step((side,) * axes, coords, (um_per_unit,) * axes, "um"))

    def provenance(self, path: Path) -> dict[str, Any]:
        """Extractor, version and tile size, as far as the file names them."""
        with _open_for_texts(path) as file:
            names = {"extractor": "encoder", "stamp_version": "stamp_version", "code_hash": "code_hash"}
            facts: dict[str, Any] = {
                ours: _text(file.attrs, name) for name, ours in names.items() if name in file.attrs
            }
            for name in ("tile_size_um", "tile_size_px"):
                if (value := _number(file.attrs, name)) is not None:
                    facts[name] = int(value) if value.is_integer() else value
            return facts

    def plan(self, stored: Stored, facts: dict[str, Any], label: int | None) -> _WritePlan:
        """The file of a case; pixels need a known size to become micrometres."""
        coords, frame = stored.coords_2d("STAMP"), stored.square_frame("STAMP")
        if frame.spacing is None or frame.unit != "um":
            raise DataError("STAMP stores micrometres, but the size of a pixel is not known here; give --mpp")
        um = frame.spacing[0]
        placed, side = coords * um, frame.patch[0] * um
        kept = _frame_with_step((side / um,) * 2, coords, (um,) * 2, "um")
        notes = stored.lost_facts(facts, kept, KEEPS)
        if um != 1.0:
            notes.append(f"lost: pixels as unit, {um:g} um each (read it again with --mpp {um:g} to have them back)")
        if stored.features.dtype != np.float16:
            notes.append(f"differs: features stay {stored.features.dtype}, STAMP itself writes float16")
        encoder = _encoder_name(facts, notes)
        attributes = _attributes(facts, encoder, side, frame.patch[0], notes)
        # STAMP stores coordinates as float32; float64 where that would lose something.
        exact = np.array_equal(placed.astype(np.float32).astype(np.float64), placed)
        arrays = {"coords": placed.astype(np.float32 if exact else np.float64), "feats": stored.features}
        name = f"{_folder_name(encoder)}/{file_name(stored.id)}.h5"
        return _WritePlan({name: lambda: _h5_bytes(arrays, root=attributes)}, notes)


def _tile(path: Path, attributes: Any, coords: np.ndarray) -> tuple[float, float]:
    """Side of a tile in coordinate units, and micrometres per unit."""
    side = _number(attributes, "tile_size_um")
    if side is not None:
        return side, 1.0
    side = _number(attributes, "tile_size")
    if side is None:
        apart = nearest_distance(coords)
        side = OLD_PIXELS if np.isnan(apart) else apart
    elif round(side) != OLD_PIXELS or _unit(path) == "um":
        return side, 1.0
    if round(side) != OLD_PIXELS:
        raise DataError(
            f"no tile size in the file, and tiles are {side:g} apart, not 224 as in old files; extract again"
        )
    return OLD_PIXELS, OLD_UM / OLD_PIXELS


def _unit(path: Path) -> str:
    with _open_for_texts(path) as file:
        return _text(file.attrs, "unit")


def _in_pixels(stored: Stored, mpp: float) -> Stored:
    """The same case in level-0 pixels of this size; rounding errors of single precision are taken out."""
    frame = stored.parsed_frame()
    if frame is None or frame.spacing is None or stored.coords is None:
        raise DataError("coordinates without a known size cannot be turned into pixels")
    scale = frame.spacing[0] / mpp
    coords, patch, step = (_near_whole(np.asarray(v) * scale) for v in (stored.coords, frame.patch, frame.step))
    exact = coords.astype(np.int64) if (coords == np.rint(coords)).all() else coords
    stride = None if np.array_equal(patch, step) else tuple(step.tolist())
    new = Frame(tuple(patch.tolist()), (mpp,) * coords.shape[1], "um", stride)
    return replace(stored, coords=exact, frame=content._frame_json(new))


def _near_whole(values: np.ndarray) -> np.ndarray:
    """Whole numbers, when that is what the values are up to the rounding of single precision."""
    whole = np.rint(values)
    rounding = max(1e-3, float(np.abs(values).max(initial=0)) * 2**-22)
    return whole if np.abs(values - whole).max(initial=0) < min(rounding, 0.1) else values


def _attributes(facts: dict[str, Any], encoder: str, um: float, pixels: float, notes: list[str]) -> dict[str, Any]:
    seen = facts.get("tile_size_px", facts.get("patch_size"))
    if seen is None:
        seen = round(pixels)
        notes.append(f"assumed: the encoder saw tiles of {seen} px, their size at level 0")
    return {
        "stamp_version": str(facts.get("stamp_version", LAYOUT)),
        "extractor": encoder,
        "unit": "um",
        "tile_size_um": float(um),
        "tile_size_px": int(seen),
        "code_hash": str(facts.get("code_hash", "smmil")),
        "feat_type": "tile",
    }
