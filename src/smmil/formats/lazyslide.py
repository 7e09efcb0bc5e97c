"""LazySlide's stores (SpatialData, zarr): a table <model>_tiles of features, the polygons of its tiles, a tile_spec.

A path leads to the store when it holds one table, else to one of its tables: slide.zarr/tables/uni_tiles.
"""

from pathlib import Path
from typing import Any

import numpy as np

from smmil.errors import DataError, MissingExtra
from smmil.files import need_file
from smmil.formats.content import Stored, _frame_with_step, _stored_type
from smmil.formats.hdf5 import Reader
from smmil.frame import Frame

_GROUP_FILES = ("zarr.json", ".zgroup")
_LARGEST_PACKING = 1100
_BOX = np.dtype([("order", "u1"), ("kind", "<u4"), ("rings", "<u4"), ("points", "<u4"), ("xy", "<f8", (5, 2))])
_RECTANGLE = {"order": 1, "kind": 3, "rings": 1, "points": 5}


class _LazySlideReader(Reader):
    name = "lazyslide"

    def recognises(self, path: Path) -> bool:
        """Whether this folder is a zarr store with tables, or one of its tables."""
        store, _ = _store_and_table(path)
        return (store / "tables").is_dir() and any((store / name).is_file() for name in _GROUP_FILES)

    def load(self, path: Path) -> Stored:
        """Features of the table with the corners of its tiles in level-0 pixels, matched by tile id."""
        store, root, name = _opened(path)
        table, attributes = root[f"tables/{name}"], dict(root.attrs)
        region = _region(dict(table.attrs))
        features = _matrix(table["X"], store / "tables" / name / "X")
        key = str(table.attrs.get("instance_key", "tile_id"))
        ids = _ids(table[f"obs/{key}"], key, features)
        shapes = store / "shapes" / region / "shapes.parquet"
        _refuse_strays(store, shapes.parent, shapes)
        boxes = _boxes(shapes, key, ids)
        coords = _stored_type("coords", np.ascontiguousarray(boxes[:, :2]))
        stored = Stored(store.stem, features, coords)
        return stored.on_lattice(_frame(attributes, region, boxes, coords), _facts(attributes, region, name))

    def provenance(self, path: Path) -> dict[str, Any]:
        """Encoder and pixel sizes, from the names and attributes of the store."""
        _, root, name = _opened(path)
        return _facts(dict(root.attrs), _region(dict(root[f"tables/{name}"].attrs)), name)


def _store_and_table(path: Path) -> tuple[Path, str | None]:
    place = path.absolute()
    return (place.parents[1], place.name) if place.parent.name == "tables" else (place, None)


def _opened(path: Path) -> tuple[Path, Any, str]:
    """The store, its root group, and the name of the table of features."""
    store, name = _store_and_table(path)
    try:
        import zarr
    except ImportError:
        raise MissingExtra("zarr", "lazyslide", f"reading {store.name}") from None
    name = name or _only_table(store)
    table = store / "tables" / name
    _refuse_strays(store, *store.glob("*"), table, *table.rglob("*"))
    return store, zarr.open_group(store, mode="r", use_consolidated=False), name


def _refuse_strays(store: Path, *entries: Path) -> None:
    """Refuse links that lead out of the store, with which it would show what lies elsewhere, and pipes and devices."""
    inside = store.resolve()
    for entry in entries:
        if entry.is_symlink() and not entry.resolve().is_relative_to(inside):
            raise DataError(f"{entry.relative_to(store)} is a link out of the store; copy the content into it")
        need_file(entry)


def _only_table(store: Path) -> str:
    tables = sorted(p.name for p in (store / "tables").iterdir() if any((p / f).is_file() for f in _GROUP_FILES))
    tables = [name for name in tables if name.endswith("_tiles")] or tables
    if len(tables) == 1:
        return tables[0]
    if not tables:
        raise DataError("the store has no table of features; extract them first")
    raise DataError(f"the store has {len(tables)} tables; give one of them, such as {store.name}/tables/{tables[0]}")


def _region(attributes: dict[str, Any]) -> str:
    """Name of the shapes a table describes."""
    region = attributes.get("region") or "tiles"
    if isinstance(region, list) and len(region) == 1:
        region = region[0]
    if not isinstance(region, str) or "/" in region or region.startswith("."):
        raise DataError(f"the table describes {region!r}, expected the name of one set of tiles")
    return region


def _matrix(group: Any, folder: Path) -> np.ndarray:
    """The features, stored dense or as a sparse matrix."""
    limit = _LARGEST_PACKING * sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    if not hasattr(group, "shape"):
        return _sparse(group, str(group.attrs.get("encoding-type", "array")), limit)
    _refuse_claims(group, limit)
    dense = np.asarray(group[...])
    if dense.dtype.kind != "f":
        raise DataError(f"X must hold floating point numbers, got {dense.dtype}")
    if dense.ndim == 2 and group.nchunks_initialized < group.nchunks and (dense == group.fill_value).all(1).any():
        raise DataError(f"X: {group.nchunks - group.nchunks_initialized} of {group.nchunks} chunks are missing")
    return np.ascontiguousarray(dense)


def _refuse_claims(array: Any, limit: int) -> None:
    if any("pickle" in str(getattr(codec, "codec_id", codec)) for codec in (*array.filters, *array.compressors)):
        raise DataError("an array asks to be unpickled, which could run code; write the store again without")
    size = int(np.prod(array.shape, dtype=float)) * array.dtype.itemsize
    if size > max(limit, 1 << 20):
        raise DataError(f"an array claims {size:,} bytes, more than the store can hold; the store is damaged")


def _sparse(group: Any, encoding: str, limit: int) -> np.ndarray:
    from scipy.sparse import csc_matrix, csr_matrix

    kinds = {"csr_matrix": csr_matrix, "csc_matrix": csc_matrix}
    if encoding not in kinds:
        raise DataError(f"X is stored as {encoding!r}, expected a dense array, csr_matrix or csc_matrix")
    for name in ("data", "indices", "indptr"):
        _refuse_claims(group[name], limit)
    parts = tuple(np.asarray(group[name][...]) for name in ("data", "indices", "indptr"))
    rows, columns = (int(v) for v in group.attrs["shape"])
    if parts[0].dtype.kind != "f" or rows * columns * parts[0].dtype.itemsize > 1000 * max(limit, 1 << 20):
        raise DataError(f"X of {rows:,} x {columns:,} {parts[0].dtype} makes no sense; the store is damaged")
    matrix = kinds[encoding](parts, shape=(rows, columns))
    matrix.check_format(full_check=True)
    return np.ascontiguousarray(matrix.toarray())


def _ids(column: Any, key: str, features: np.ndarray) -> np.ndarray:
    """Tile id of each row of the table."""
    _refuse_claims(column, 1 << 27)
    ids = np.asarray(column[...])
    if ids.shape != features.shape[:1]:
        raise DataError(f"obs/{key} has the shape {ids.shape} for {len(features):,} rows of features")
    if len(np.unique(ids)) != len(ids):
        raise DataError(f"obs/{key}: a tile appears twice; extract this case again")
    return ids


def _boxes(path: Path, key: str, wanted: np.ndarray) -> np.ndarray:
    """Boxes (x, y, width, height) of the wanted tiles: rectangles, each one closed ring of five points."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, page_checksum_verification=True)
    if not table.num_rows:
        raise DataError(f"{path.parent.name}: there are no tiles")
    named = next((name for name in (key, "__index_level_0__") if name in table.column_names), None)
    present = np.arange(table.num_rows) if named is None else table[named].to_numpy()
    polygons = table["geometry"].to_pylist()
    sized = all(p is not None and len(p) == _BOX.itemsize for p in polygons)
    records = np.frombuffer(b"".join(polygons) if sized else b"", dtype=_BOX)
    if not sized or any((records[name] != value).any() for name, value in _RECTANGLE.items()):
        raise DataError("tiles must be rectangles; other shapes have no footprint")
    order = np.argsort(present, kind="stable")
    rows = order[np.searchsorted(present, wanted, sorter=order).clip(max=len(present) - 1)]
    if missing := int((present[rows] != wanted).sum()):
        raise DataError(f"{missing:,} of {len(wanted):,} rows of features have no tile of their id; extract again")
    low, high = records["xy"].min(1), records["xy"].max(1)
    return np.concatenate([low, high - low], axis=1)[rows]


def _frame(attributes: dict[str, Any], region: str, boxes: np.ndarray, coords: np.ndarray) -> Frame:
    """Footprint from the polygons, step from the tile_spec, pixel size from the slide's properties."""
    sizes = np.unique(np.round(boxes[:, 2:], 6), axis=0)
    if len(sizes) != 1:
        raise DataError(f"tiles of {len(sizes)} different sizes; a bag needs one footprint")
    mpp = (attributes.get("slide_properties") or {}).get("mpp")
    spacing, unit = ((float(mpp),) * 2, "um") if mpp else (None, "px")
    frame = _frame_with_step(tuple(sizes[0].tolist()), coords, spacing, unit)
    spec = (attributes.get("tile_spec") or {}).get(region)
    if not spec:
        return frame
    scale = float(spec.get("base_downsample", 1.0))
    step = tuple(float(int(spec[f"stride_{side}"] * scale)) for side in ("width", "height"))
    return Frame(frame.patch, spacing, unit, None if step == frame.patch else step)


def _facts(attributes: dict[str, Any], region: str, table: str) -> dict[str, Any]:
    properties, spec = attributes.get("slide_properties") or {}, (attributes.get("tile_spec") or {}).get(region) or {}
    stated = {"mpp": properties.get("mpp"), "tile_mpp": spec.get("mpp"), "patch_size": spec.get("width")}
    known = {name: value for name, value in stated.items() if value is not None}
    return {"encoder": table.removesuffix(f"_{region}"), **known}
