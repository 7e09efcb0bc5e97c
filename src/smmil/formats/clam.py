"""CLAM's files: h5_files/<id>.h5 (features, coords), pt_files/<id>.pt (features), patches/<id>.h5 (footprint).

Tensor files of TRIDENT are read here too: features_<encoder>/<id>.pt beside patches/<id>_patches.h5.
"""

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from smmil.errors import DataError
from smmil.files import check_once, check_torch_archive, file_name, open_hdf5
from smmil.formats.content import (
    _TRIDENT_SIZES,
    INFERRED,
    Stored,
    _frame_from_coords,
    _frame_with_step,
    _h5_bytes,
    _WritePlan,
)
from smmil.formats.hdf5 import Reader, _dataset, _number, _numbers, _starts_with

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


class _ClamReader(Reader):
    name = "clam"

    def load(self, path: Path) -> Stored:
        """Features and coordinates; footprint from the patch file, else the step is inferred from the coordinates."""
        with open_hdf5(path) as file:
            features, (coords, side) = _dataset(file, "features"), _coords_and_side(file)
        if features is None or coords is None:
            raise DataError("there is no dataset 'coords'; for bags without positions use write_bag(..., graph='none')")
        return _on_lattice(path, features, coords, side)

    def plan(self, stored: Stored, facts: dict[str, Any], label: int | None) -> _WritePlan:
        """The three files of a case; CLAM holds square patches on a plane, and nothing about encoder or pixel size."""
        coords, side = stored.coords_2d("CLAM"), stored.square_frame("CLAM").patch[0]
        name, known = file_name(stored.id), ("level0_width", "level0_height")
        notes = stored.lost_facts(facts, _frame_with_step((side, side), coords), keeps=("patch_size", *known))
        size = [facts[fact] for fact in known if facts.get(fact)]
        if len(size) < 2:
            size = (coords.max(0) + np.ceil(side)).astype(int).tolist()
            notes.append("assumed: level_dim is where the patches end, the size of the slide is not known")
        if stored.features.dtype != np.float32:
            notes.append(f"differs: features stay {stored.features.dtype}, CLAM itself writes float32")
        stated = {
            "patch_size": np.int64(side) if side.is_integer() else side,
            "patch_level": np.int64(0),
            "downsample": np.array([1.0, 1.0]),
            "downsampled_level_dim": np.array(size, dtype=np.int64),
            "level_dim": np.array(size, dtype=np.int64),
            "name": stored.id,
        }
        files = {
            f"patches/{name}.h5": lambda: _h5_bytes({"coords": coords}, {"coords": stated}),
            f"h5_files/{name}.h5": lambda: _h5_bytes({"features": stored.features, "coords": coords}),
            f"pt_files/{name}.pt": lambda: _pt_bytes(stored.features),
        }
        return _WritePlan(files, notes)


class _ClamTensorReader(Reader):
    name = "clam_pt"

    def recognises(self, path: Path) -> bool:
        """Whether this is a tensor file of torch."""
        return path.suffix.lower() == ".pt" and _starts_with(path, _ZIP, _PICKLE)

    def load(self, path: Path) -> Stored:
        """Features of a tensor file; coordinates from the HDF5 file of this name next to it, where there is one."""
        features = _tensor(path)
        for companion in (folder / "patches" / f"{path.stem}_patches.h5" for folder in path.absolute().parents[1:3]):
            if companion.is_file():
                with open_hdf5(companion) as file:
                    coords = _dataset(file, "coords")
                    if coords is not None:
                        stated = file["coords"].attrs
                        sizes = {name: _number(stated, name) for name in _TRIDENT_SIZES}
                        return Stored(path.stem, features, coords).on_trident_lattice(sizes)
        for companion in (path.parent.parent / "h5_files" / f"{path.stem}.h5", *_patch_files(path)):
            if companion.is_file():
                with open_hdf5(companion) as file:
                    coords, side = _coords_and_side(file)
                if coords is not None:
                    return _on_lattice(path, features, coords, side)
        note = {"coords": "absent: no h5 file of this name beside it"}
        return Stored(path.stem, features, provenance=json.dumps(note))


def _coords_and_side(file: h5py.File) -> tuple[np.ndarray | None, float | None]:
    """Coordinates and the footprint that their attributes tell, as far as they are there."""
    coords = _dataset(file, "coords")
    return coords, None if coords is None else _level0_side(file["coords"].attrs)


def _tensor(path: Path) -> np.ndarray:
    import torch

    check_once(path, check_torch_archive)
    with torch.serialization.safe_globals(_numpy_globals()):
        content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, np.ndarray) and content.nbytes > path.stat().st_size:  # memory is taken when it is copied
        raise DataError("the array claims more numbers than the file holds; the file is damaged")
    if isinstance(content, np.ndarray) and content.dtype.kind == "f":  # TRIDENT saves arrays, not tensors
        content = torch.from_numpy(np.ascontiguousarray(content.astype(content.dtype.newbyteorder("="), copy=False)))
    if not isinstance(content, torch.Tensor) or content.layout != torch.strided:
        raise DataError(f"holds a {type(content).__name__}, expected one tensor (instances, dimensions)")
    if not content.is_floating_point() or content.dtype == torch.bfloat16:
        raise DataError(f"features must be float16, float32 or float64, got {content.dtype}")
    if content.numel() * content.element_size() > path.stat().st_size:
        raise DataError("the tensor claims more numbers than the file holds; the file is damaged")
    return np.ascontiguousarray(content.detach().numpy())


def _numpy_globals() -> list[Any]:
    """What an array of floating point numbers names in a file, under its old and its new address; nothing else."""
    build = np.empty(0).__reduce__()[0]
    kinds = [type(np.dtype(name)) for name in ("f2", "f4", "f8")]
    addresses = [(build, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*addresses, np.ndarray, np.dtype, *kinds]


def _on_lattice(path: Path, features: np.ndarray, coords: np.ndarray, side: float | None) -> Stored:
    stored = Stored(path.stem, features, coords)
    patches = None if side else next((file for file in _patch_files(path) if file.is_file()), None)
    side = side or None
    if patches is not None:
        with open_hdf5(patches) as file:
            side = _level0_side(file["coords"].attrs) if "coords" in file else None
    if side is not None:
        return stored.on_lattice(_frame_with_step((side,) * coords.shape[1], coords))
    frame = _frame_from_coords(coords)
    return stored.on_lattice(frame, {"step": INFERRED if frame else "unknown: one instance and no patch file"})


def _patch_files(path: Path) -> list[Path]:
    """Where CLAM leaves the coordinates: next to the feature folders, or one folder further up."""
    return [folder / "patches" / f"{path.stem}.h5" for folder in path.absolute().parents[1:3]]


def _level0_side(attributes: Any) -> float | None:
    """Footprint in level-0 pixels: the patch size at its level times the downsampling of that level.

    The downsampling is given as one number, as the pair (x, y) of this level, or as a list over levels.
    """
    size, level = _number(attributes, "patch_size"), _number(attributes, "patch_level")
    factor = _numbers(attributes, "downsample")
    if size is None or level is None:
        return None
    if factor is None and level:
        raise DataError(f"patches of level {level:.0f} without the attribute 'downsample'; extract this case again")
    if factor is None or factor.ndim == 0:
        return size * float(1.0 if factor is None else factor)
    is_pair = factor.shape == (2,) and abs(factor[0] / factor[1] - 1) < 0.05
    return size * float((factor if is_pair else np.atleast_1d(factor[int(level)]))[0])


def _pt_bytes(features: np.ndarray) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(torch.from_numpy(features), buffer)
    return buffer.getvalue()
