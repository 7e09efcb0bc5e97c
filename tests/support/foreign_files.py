"""Feature files as other projects write them, made by hand: keys, types and attributes as in their conventions."""

import json
import struct

import h5py
import numpy as np
import torch


def cells(seed: int = 0, side: int = 9, share: float = 0.7) -> np.ndarray:
    """A piece of tissue on a lattice with holes, as cell numbers (x, y); the order is CLAM's: column after column."""
    taken = np.random.default_rng(seed).random((side, side)) < share
    return np.argwhere(taken)


def features(n: int, dim: int = 7, dtype=np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(dtype)


def degrees(places: np.ndarray) -> list[int]:
    """How many of the eight surrounding cells are taken, cell by cell: the slow reference."""
    taken = {tuple(p) for p in places.tolist()}
    around = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    return [sum((x + a, y + b) in taken for a, b in around) for x, y in places.tolist()]


def trident_file(folder, x, coords, level0, *, name="case", target=256, overlap=0, power=40, **storage):
    path = folder / f"20x_{target}px_{overlap}px_overlap" / "features_uni_v1" / f"{name}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=x, **storage).attrs.update(name=name, encoder="uni_v1")
        file.create_dataset("coords", data=coords.astype(np.int64)).attrs.update(
            patch_size=target,
            patch_size_level0=level0,
            level0_magnification=power,
            target_magnification=20,
            overlap=overlap,
            name=name,
            level0_width=50000,
            level0_height="None",
        )
    return path


def clam_files(folder, x, coords, *, name="case", patch_size=256, level=0, downsample=(1.0, 1.0), patches=True):
    """h5_files, pt_files and, unless left out, the patch file with the footprint."""
    for below in ("h5_files", "pt_files", "patches"):
        (folder / below).mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "h5_files" / f"{name}.h5", "w") as file:
        file["features"], file["coords"] = x, coords
    torch.save(torch.from_numpy(x), folder / "pt_files" / f"{name}.pt")
    if patches:
        with h5py.File(folder / "patches" / f"{name}.h5", "w") as file:
            file.create_dataset("coords", data=coords).attrs.update(
                patch_size=patch_size,
                patch_level=level,
                downsample=downsample,
                downsampled_level_dim=(9000, 9000),
                level_dim=(9000, 9000),
                name=name,
            )
    return folder / "h5_files" / f"{name}.h5"


def stamp_file(folder, x, coords, *, name="case", **attributes):
    path = folder / "ctranspath-abc" / f"{name}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["coords"], file["feats"] = coords, x
        file.attrs.update(attributes)
    return path


STAMP = {
    "stamp_version": "2.1.1",
    "extractor": "ctranspath",
    "unit": "um",
    "tile_size_um": 256.0,
    "tile_size_px": 224,
    "code_hash": "abc",
    "feat_type": "tile",
}


def torchmil_files(folder, x, coords, *, name="case", size=512, label=None, y_inst=None):
    root = folder / f"patches_{size}"
    arrays = {"features/features_UNI": x, "coords": coords, "patch_labels": y_inst}
    arrays["labels"] = None if label is None else np.array([label])
    for below, array in arrays.items():
        if array is not None:
            (root / below).mkdir(parents=True, exist_ok=True)
            np.save(root / below / f"{name}.npy", array)
    return root / "features" / "features_UNI" / f"{name}.npy"


def wsinfer_csv(folder, probs, coords, *, name="case", width=350, height=350):
    path = folder / f"{name}.csv"
    names = [f"prob_class{i}" for i in range(probs.shape[1])]
    lines = [",".join(["minx", "miny", "width", "height", *names])]
    lines += [",".join(map(str, [*xy, width, height, *row])) for xy, row in zip(coords.tolist(), probs, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def box(x: float, y: float, width: float, height: float) -> bytes:
    """A rectangle as well-known binary: little endian, polygon, one ring of five points."""
    ring = [(x + width, y), (x + width, y + height), (x, y + height), (x, y), (x + width, y)]
    return struct.pack("<BIII", 1, 3, 1, 5) + b"".join(struct.pack("<dd", *p) for p in ring)


def lazyslide_store(
    folder,
    x,
    coords,
    *,
    name="case",
    side=512,
    spec=None,
    mpp=0.25,
    ids=None,
    table="uni_tiles",
    sparse=None,
    version=3,
):
    """A SpatialData store: shapes/tiles as parquet, tables/<table> in AnnData's layout, attributes of LazySlide."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zarr

    path = folder / f"{name}.zarr"
    root = zarr.open_group(path, mode="w", zarr_format=version)
    root.attrs.update({"tile_spec": {"tiles": spec} if spec else {}, "slide_properties": {"mpp": mpp}})
    root.create_group("shapes").create_group("tiles", attributes={"encoding-type": "ngff:shapes"})
    order = np.random.default_rng(5).permutation(len(coords))  # shapes need not stand in the order of the table
    tile_ids = np.arange(len(coords)) + 100 if ids is None else ids
    shapes = {"tile_id": tile_ids[order], "geometry": [box(*coords[i].tolist(), side, side) for i in order]}
    pq.write_table(pa.table(shapes), path / "shapes" / "tiles" / "shapes.parquet")
    group = root.create_group("tables").create_group(table)
    group.attrs.update({"encoding-type": "anndata", "region": "tiles", "instance_key": "tile_id"})
    _matrix(group, x, sparse)
    group.create_group("obs").create_array("tile_id", data=tile_ids)
    return path


def _matrix(group, x, sparse):
    if sparse is None:
        group.create_array("X", data=x, chunks=(max(1, len(x) // 2), x.shape[1])).attrs["encoding-type"] = "array"
        return
    from scipy import sparse as kinds

    matrix = getattr(kinds, sparse)(x)
    held = group.create_group("X", attributes={"encoding-type": sparse, "shape": list(x.shape)})
    for part in ("data", "indices", "indptr"):
        held.create_array(part, data=getattr(matrix, part))


SPEC = json.loads(
    '{"height": 256, "width": 256, "stride_height": 256, "stride_width": 256, "mpp": 0.5, "base_downsample": 2.0}'
)
