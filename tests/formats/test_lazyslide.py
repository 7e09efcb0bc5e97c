import shutil

import numpy as np
import pytest
import torch
from support import foreign_files as foreign

from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance
from smmil.frame import Frame

pytest.importorskip("zarr", reason="zarr is not installed")
CELLS = foreign.cells()
X = foreign.features(len(CELLS))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("sparse", [None, "csr_matrix", "csc_matrix"])
def test_rows_find_their_tiles_by_id_in_dense_and_sparse_tables(tmp_path, version, sparse):
    """The shapes stand in another order than the table."""
    x = np.where(X > 0, X, 0)
    path = foreign.lazyslide_store(tmp_path, x, CELLS * 512, spec=foreign.SPEC, sparse=sparse, version=version)
    bag = read_bag(path)
    assert torch.equal(bag.x, torch.from_numpy(x))
    assert torch.equal(bag.coords, torch.from_numpy(CELLS * 512))
    assert bag.frame == Frame((512, 512), (0.25, 0.25), "um")


def test_the_stride_of_the_tile_spec_is_scaled_to_level_0(tmp_path):
    spec = {**foreign.SPEC, "stride_width": 192, "stride_height": 192}
    bag = read_bag(foreign.lazyslide_store(tmp_path, X, CELLS * 384, spec=spec))
    assert bag.frame == Frame((512, 512), (0.25, 0.25), "um", (384, 384))
    assert bag.graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_without_a_tile_spec_the_polygons_tell(tmp_path):
    bag = read_bag(foreign.lazyslide_store(tmp_path, X, CELLS * 512, mpp=None))
    assert bag.frame == Frame((512, 512))


def test_the_store_says_where_its_features_come_from(tmp_path):
    path = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    assert read_provenance(path) == {"encoder": "uni", "mpp": 0.25, "tile_mpp": 0.5, "patch_size": 256}


def test_one_of_several_tables_must_be_named(tmp_path):
    path = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    shutil.copytree(path / "tables" / "uni_tiles", path / "tables" / "conch_tiles")
    with pytest.raises(DataError, match=r"2 tables; give one of them, such as case\.zarr/tables/conch_tiles"):
        read_bag(path)
    assert read_bag(path / "tables" / "uni_tiles").id == "case"
    assert read_provenance(path / "tables" / "conch_tiles")["encoder"] == "conch"


def test_features_without_a_tile_are_counted(tmp_path):
    import zarr

    path = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    ids = zarr.open_array(path / "tables" / "uni_tiles" / "obs" / "tile_id")
    ids[:2] = [7, 8]
    with pytest.raises(DataError, match=f"2 of {len(X)} rows of features have no tile"):
        read_bag(path)
    ids[:2] = [105, 105]
    with pytest.raises(DataError, match="a tile appears twice"):
        read_bag(path)


def test_a_missing_chunk_of_features_is_not_read_as_zeros(tmp_path):
    path = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    (path / "tables" / "uni_tiles" / "X" / "c" / "1" / "0").unlink()
    with pytest.raises(DataError, match=r"X: 1 of 3 chunks are missing"):
        read_bag(path)


def test_an_array_that_claims_more_than_the_store_holds_is_refused_before_memory_is_taken(tmp_path):
    path = foreign.lazyslide_store(tmp_path, X, CELLS * 512, spec=foreign.SPEC)
    claim = path / "tables" / "uni_tiles" / "X" / "zarr.json"
    claim.write_text(claim.read_text().replace(f"{len(X)},", f"{10**12},", 1))
    with pytest.raises(DataError, match="more than the store can hold"):
        read_bag(path)
