import io

import h5py
import numpy as np
import pytest
import torch
from support import foreign_files as foreign

from smmil.bag import Bag
from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.formats.convert import convert
from smmil.formats.inspection import describe
from smmil.frame import Frame
from smmil.graph import grid_graph

CELLS = foreign.cells()
X = foreign.features(len(CELLS))


@pytest.mark.parametrize(
    ("level", "downsample"),
    [
        (0, (1.0, 1.0)),
        (1, (4.0, 4.0)),
        (2, (16.002, 16.001)),
        (1, 4.0),
        (1, [1.0, 4.0, 16.0]),
        (1, [[1.0] * 2, [4.0] * 2]),
    ],
)
def test_the_footprint_is_the_patch_size_times_the_downsampling_of_its_level(tmp_path, level, downsample):
    """CLAM steps by whole multiples even when the downsampling is 16.002."""
    whole = {0: 1, 1: 4, 2: 16}[level]
    path = foreign.clam_files(tmp_path, X, CELLS * 256 * whole, level=level, downsample=downsample)
    frame = read_bag(path).frame
    assert frame.patch[0] == pytest.approx(256 * whole, rel=2e-4)
    assert frame.step == (256.0 * whole, 256.0 * whole)
    assert read_bag(path).graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_pieces_with_their_own_lattice_origin_keep_their_neighbours(tmp_path):
    other = foreign.cells(seed=1)
    coords = np.concatenate([CELLS * 512, other * 512 + np.array([137 + 20 * 512, 61])])
    path = foreign.clam_files(tmp_path, foreign.features(len(coords)), coords, patch_size=512)
    assert read_bag(path).graph.degrees.int().tolist() == foreign.degrees(CELLS) + foreign.degrees(other)


def test_pieces_that_meet_are_joined_where_their_patches_touch(tmp_path):
    """Two rows of patches, the second shifted by 100 px and 30 px further down: each touches at most two above."""
    first = np.stack([np.arange(6) * 512, np.zeros(6, int)], 1)
    coords = np.concatenate([first, first + np.array([100, 542])])
    graph = read_bag(foreign.clam_files(tmp_path, foreign.features(12), coords, patch_size=512)).graph
    reference = [[max(abs(a - b)) < 1.5 * 512 and (a != b).any() for b in coords] for a in coords]
    assert torch.equal(graph.dense() > 0, torch.tensor(reference))


@pytest.mark.parametrize("further", [False, True])
def test_the_patch_file_is_found_beside_the_features_or_one_folder_up(tmp_path, further):
    """Two patches far apart say nothing about the step, only the patch file does."""
    coords = np.array([[0, 0], [5120, 0]])
    path = foreign.clam_files(tmp_path / "features", foreign.features(2), coords, patch_size=512)
    if further:
        (tmp_path / "features" / "patches").rename(tmp_path / "patches")
    assert read_bag(path).frame == Frame((512, 512))
    assert read_bag(path).graph.degrees.sum() == 0


def test_without_a_patch_file_the_step_is_inferred_and_said(tmp_path):
    path = foreign.clam_files(tmp_path, X, CELLS * 1024, patches=False)
    assert read_bag(path).frame == Frame((1024, 1024))
    assert "inferred" in describe(path)["provenance"]["step"]


def test_a_single_patch_of_unknown_size_is_a_bag_without_edges(tmp_path):
    path = foreign.clam_files(tmp_path, foreign.features(1), np.array([[5, 7]]), patches=False)
    bag = read_bag(path)
    assert (bag.n, bag.frame, bag.graph.indices.numel()) == (1, None, 0)


def test_overlapping_patches_have_the_step_of_their_coordinates(tmp_path):
    path = foreign.clam_files(tmp_path, X, CELLS * 128, patch_size=256)
    assert read_bag(path).frame == Frame((256, 256), stride=(128, 128))
    assert read_bag(path).graph.degrees.int().tolist() == foreign.degrees(CELLS)


def test_a_tensor_file_takes_coordinates_from_the_file_beside_it(tmp_path):
    h5 = foreign.clam_files(tmp_path, X.astype(np.float16), CELLS * 256)
    pt = tmp_path / "pt_files" / "case.pt"
    assert read_bag(pt).x.dtype == torch.float16
    assert torch.equal(read_bag(pt).coords, read_bag(h5).coords)
    h5.unlink()
    assert torch.equal(read_bag(pt).coords, torch.from_numpy(CELLS * 256))
    (tmp_path / "patches" / "case.h5").unlink()
    alone = read_bag(pt)
    assert alone.coords is None
    assert alone.graph is None
    assert read_provenance(pt) == {}


def test_a_tensor_file_of_another_number_of_rows_is_refused_with_both_counts(tmp_path):
    foreign.clam_files(tmp_path, X, CELLS * 256)
    torch.save(torch.ones(3, 7), tmp_path / "pt_files" / "case.pt")
    with pytest.raises(DataError, match=rf"case\.pt: coords has {len(X)} rows but features has 3"):
        read_bag(tmp_path / "pt_files" / "case.pt")


class Evil:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    "content",
    [Evil(), {"a": 1}, torch.ones(3, 2).long(), torch.ones(1, 1).expand(10**7, 10**7), torch.eye(3).to_sparse()],
)
def test_a_tensor_file_with_anything_but_features_is_refused_and_never_executed(tmp_path, content, capsys):
    torch.save(content, tmp_path / "case.pt")
    with pytest.raises(DataError, match=r"case\.pt: ") as caught:
        read_bag(tmp_path / "case.pt")
    assert "\n" not in str(caught.value)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x02", b"PK\x03\x04"])
def test_a_tensor_file_that_ends_early_is_named(tmp_path, content):
    (tmp_path / "case.pt").write_bytes(content)
    with pytest.raises(DataError, match=r"case\.pt: "):
        read_bag(tmp_path / "case.pt")


def test_a_tensor_that_claims_more_than_its_file_holds_is_refused(tmp_path):
    torch.save(torch.ones(1, 1).expand(2000, 2000), tmp_path / "case.pt")
    with pytest.raises(DataError, match="claims more numbers than the file holds"):
        read_bag(tmp_path / "case.pt")


def test_our_files_have_clams_keys_types_and_attributes(tmp_path):
    bag = Bag("s1", torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame((512, 512)))
    write_bag(tmp_path / "s1.h5", bag, provenance={"encoder": "uni"})
    done = convert(tmp_path / "s1.h5", to="clam", out=tmp_path / "out")
    with h5py.File(tmp_path / "out" / "patches" / "s1.h5") as file:
        assert list(file) == ["coords"]
        attributes = dict(file["coords"].attrs)
        assert file["coords"].dtype == np.int64
    size = (CELLS.max(0) + 1) * 512
    assert set(attributes) == {"patch_size", "patch_level", "downsample", "downsampled_level_dim", "level_dim", "name"}
    assert (attributes["patch_size"], attributes["patch_level"], attributes["name"]) == (512, 0, "s1")
    assert attributes["downsample"].tolist() == [1.0, 1.0]
    assert attributes["level_dim"].tolist() == attributes["downsampled_level_dim"].tolist() == size.tolist()
    with h5py.File(tmp_path / "out" / "h5_files" / "s1.h5") as file:
        assert sorted(file) == ["coords", "features"]
        assert np.array_equal(file["coords"], CELLS * 512)
    tensor = torch.load(io.BytesIO((tmp_path / "out" / "pt_files" / "s1.pt").read_bytes()), weights_only=True)
    assert torch.equal(tensor, bag.x)
    notes = [note for _, note in done.notes]
    assert any(note.startswith("assumed: level_dim") for note in notes)
    assert "lost: provenance encoder" in notes


def test_the_reference_of_these_tests_agrees_with_the_lattice_graph():
    assert grid_graph(CELLS, 1).degrees.int().tolist() == foreign.degrees(CELLS)
