import numpy as np
import pytest
import torch
from support import foreign_files as foreign
from support.bags import chain_bag

from smmil.bag import Bag
from smmil.encoders.networks import _prepare_torchvision
from smmil.errors import DataError
from smmil.formats import read_bag, read_provenance, write_bag
from smmil.formats.convert import convert
from smmil.formats.inspection import describe
from smmil.frame import Frame
from smmil.graph import chain_graph

CELLS = foreign.cells()
X = foreign.features(len(CELLS))
Y_INST = np.arange(len(CELLS)) % 2


def test_labels_and_coordinates_of_the_same_name_belong_to_the_features(tmp_path):
    path = foreign.torchmil_files(tmp_path, X, CELLS * 512, label=1, y_inst=Y_INST)
    bag = read_bag(path)
    assert bag.y_inst.tolist() == Y_INST.tolist()
    assert bag.frame == Frame((512, 512))
    assert read_provenance(path) == {"encoder": "UNI"}


def test_label_files_stay_closed_when_instance_labels_are_not_wanted(tmp_path):
    path = foreign.torchmil_files(tmp_path, X, CELLS * 512, label=1, y_inst=Y_INST)
    next(tmp_path.rglob("patch_labels/*.npy")).write_bytes(b"never opened")
    bag = read_bag(path, instance_labels=False)
    assert bag.y_inst is None
    assert bag.x.tolist() == X.tolist()
    with pytest.raises(DataError, match="not readable as a feature file"):
        read_bag(path)


def test_where_patches_lie_further_apart_than_the_folder_says_the_coordinates_are_right(tmp_path):
    """patches_512 of a slide whose level 0 is twice as fine: torchmil itself would find no neighbour."""
    path = foreign.torchmil_files(tmp_path, X, CELLS * 1024)
    assert read_bag(path).frame == Frame((1024, 1024))
    assert "inferred" in describe(path)["provenance"]["step"]


def test_few_patches_far_apart_are_not_made_neighbours(tmp_path):
    bag = read_bag(foreign.torchmil_files(tmp_path, X[:2], np.array([[0, 0], [5120, 0]])))
    assert bag.frame == Frame((512, 512))
    assert bag.graph.degrees.sum() == 0


def test_scans_are_a_chain_of_slices(tmp_path):
    for below, array in (("features/features_resnet18", X), ("slice_labels", Y_INST)):
        (tmp_path / below).mkdir(parents=True)
        np.save(tmp_path / below / "scan.npy", array)
    bag = read_bag(tmp_path / "features" / "features_resnet18" / "scan.npy")
    assert torch.equal(bag.graph.dense(), chain_graph(len(X)).dense())
    assert bag.y_inst.tolist() == Y_INST.tolist()


def test_other_arrays_are_not_taken_for_features(tmp_path):
    foreign.torchmil_files(tmp_path, X, CELLS * 512)
    with pytest.raises(DataError, match="not a known feature file"):
        read_bag(tmp_path / "patches_512" / "coords" / "case.npy")


def test_arrays_of_objects_are_refused(tmp_path):
    path = foreign.torchmil_files(tmp_path, X, CELLS * 512)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"case\.npy: "):
        read_bag(path)


def slide(tmp_path, label=None, **frame):
    y_inst = torch.from_numpy(Y_INST)
    frame = frame or {"patch": (512, 512)}
    write_bag(
        tmp_path / "s1.h5",
        Bag("s1", torch.from_numpy(X), torch.from_numpy(CELLS * 512), Frame(**frame), y_inst=y_inst),
        provenance={"encoder": "UNI"},
    )
    return convert(tmp_path / "s1.h5", to="torchmil", out=tmp_path / "out", labels=label)


def test_our_folders_have_torchmils_names_types_and_shapes(tmp_path):
    done = slide(tmp_path, {"s1": 1})
    root = tmp_path / "out" / "patches_512"
    files = {str(p.relative_to(root).parent): np.load(p) for p in root.rglob("*.npy")}
    assert sorted(files) == ["coords", "features/features_UNI", "labels", "patch_labels"]
    assert np.array_equal(files["features/features_UNI"], X)
    assert np.array_equal(files["coords"], CELLS * 512)
    assert files["labels"].tolist() == [1]
    assert files["patch_labels"].tolist() == Y_INST.tolist()
    assert done.notes == []


@pytest.mark.slow
def test_torchmil_itself_finds_the_same_neighbours_in_our_folders(tmp_path):
    pytest.importorskip("torchmil", reason="torchmil is not installed")
    _prepare_torchvision("torchmil")  # its torchmetrics imports it
    from torchmil import datasets

    slide(tmp_path, {"s1": 1})
    (tmp_path / "out" / "splits.csv").write_text("bag_name,split\ns1,train\n")
    theirs = datasets.CAMELYON16MILDataset(str(tmp_path / "out"), features="UNI", patch_size=512, norm_adj=False)[0]
    assert torch.equal(theirs["X"], torch.from_numpy(X))
    assert theirs["adj"].to_dense().sum(1).int().tolist() == foreign.degrees(CELLS)
    assert theirs["y_inst"].tolist() == Y_INST.tolist()
    assert int(theirs["Y"]) == 1


def test_an_unknown_label_and_an_overlap_are_said(tmp_path):
    done = slide(tmp_path, patch=(700, 700), stride=(512, 512))
    notes = " ".join(note for _, note in done.notes)
    assert "lost: patch 700 x 700" in notes
    assert "labels/ has no file" in notes
    assert {p.name for p in (tmp_path / "out" / "patches_512").iterdir()} == {"features", "coords", "patch_labels"}


def test_a_scan_goes_into_the_layout_of_scans(tmp_path):
    bag = chain_bag(9)
    write_bag(tmp_path / "scan.h5", bag, graph="chain", provenance={"encoder": "resnet18"})
    done = convert(tmp_path / "scan.h5", to="torchmil", out=tmp_path / "out", labels={bag.id: 0})
    back = read_bag(tmp_path / "out" / "features" / "features_resnet18" / f"{bag.id}.npy")
    assert torch.equal(back.x, bag.x)
    assert torch.equal(back.graph.dense(), bag.graph.dense())
    notes = " ".join(note for _, note in done.notes)
    assert "lost: coordinates of the slices" in notes
    assert "lost: spacing 5 mm" in notes
    assert "neighbourhood" not in notes
