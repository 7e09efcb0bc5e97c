import contextlib
import json
import os
import random
import tracemalloc
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from smmil.bag import Bag
from smmil.errors import ConfigError, DataError
from smmil.formats import native, read_bag, read_provenance, write_bag
from smmil.formats.inspection import describe, describe_folder
from smmil.frame import Frame
from smmil.graph import Graph, grid_graph, knn_graph, radius_graph

FRAME = Frame(patch=(512, 512), spacing=(0.5, 0.5), unit="um")


def lattice(rows=4, columns=5, step=512):
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([x, y], -1).reshape(-1, 2) * step


def small_bag(dim=6, **changes):
    coords = lattice()
    x = torch.randn(len(coords), dim, generator=torch.Generator().manual_seed(1))
    return replace(Bag("slide_007", x.half(), coords, FRAME, grid_graph(coords, 512)), **changes)


def same_bag(a, b):
    def same(u, v):
        return (u is None) == (v is None) and (u is None or (u.dtype == v.dtype and torch.equal(u, v)))

    parts = ("indptr", "indices", "weight")
    graphs = (a.graph is None) == (b.graph is None)
    if graphs and a.graph is not None:
        graphs = all(torch.equal(getattr(a.graph, p), getattr(b.graph, p)) for p in parts)
    return (
        graphs
        and (a.id, a.frame) == (b.id, b.frame)
        and all(same(getattr(a, f), getattr(b, f)) for f in ("x", "coords", "y_inst"))
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_bag_comes_back_as_it_was_written(tmp_path, dtype):
    bag = small_bag(y_inst=torch.tensor([-1, 0, 1, 2] * 5))
    bag = replace(bag, x=bag.x.to(dtype))
    write_bag(tmp_path / "a.h5", bag, provenance={"encoder": "resnet", "mpp": 0.5})
    assert same_bag(read_bag(tmp_path / "a.h5"), bag)
    assert read_provenance(tmp_path / "a.h5") == {"encoder": "resnet", "mpp": 0.5}


@pytest.mark.parametrize(
    ("rule", "graph"),
    [
        ("grid", grid_graph(lattice(), 512)),
        ({"kind": "grid", "neighbours": 4}, grid_graph(lattice(), 512, 4)),
        ({"kind": "knn", "k": 3}, knn_graph(lattice(), 3)),
        ({"kind": "radius", "radius": 1100}, radius_graph(lattice(), 1100)),
        ("none", None),
        ("edges", Graph.from_edges(np.stack([np.arange(19), np.arange(19) + 1]), np.linspace(0.1, 2, 19), n=20)),
    ],
)
def test_every_graph_rule_comes_back_as_the_same_graph(tmp_path, rule, graph):
    bag = small_bag(graph=graph)
    write_bag(tmp_path / "a.h5", bag, graph=rule)
    assert same_bag(read_bag(tmp_path / "a.h5"), bag)


def test_a_scan_keeps_its_chain_and_needs_no_coordinates(tmp_path):
    bag = Bag("scan", torch.ones(4, 2))
    write_bag(tmp_path / "a.h5", bag, graph="chain")
    assert read_bag(tmp_path / "a.h5").graph.edges().tolist() == [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]


def test_coordinates_that_are_not_whole_numbers_stay_exact(tmp_path):
    coords = lattice(step=1).double() * 112.3
    write_bag(tmp_path / "a.h5", small_bag(coords=coords, frame=Frame(patch=(112.3, 112.3)), graph=None))
    back = read_bag(tmp_path / "a.h5")
    assert back.coords.dtype == torch.float64
    assert torch.equal(back.coords, coords)
    assert back.graph.degrees.max() == 8


def test_a_rule_that_would_give_another_graph_is_refused(tmp_path):
    with pytest.raises(DataError, match="use graph='edges'"):
        write_bag(tmp_path / "a.h5", small_bag(graph=knn_graph(lattice(), 2)))
    with pytest.raises(DataError, match="normalised as 'sym'"):
        write_bag(tmp_path / "a.h5", small_bag(graph=grid_graph(lattice(), 512).normalized("sym")))
    assert list(tmp_path.iterdir()) == []


def test_unknown_graph_kinds_and_options_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="did you mean grid"):
        write_bag(tmp_path / "a.h5", small_bag(), graph="gird")
    with pytest.raises(ConfigError, match="unknown option 'neighbors'; did you mean neighbours"):
        write_bag(tmp_path / "a.h5", small_bag(), graph={"kind": "grid", "neighbors": 4})
    with pytest.raises(ConfigError, match="'radius' must be given"):
        write_bag(tmp_path / "a.h5", small_bag(), graph="radius")


def test_a_row_that_is_not_finite_is_named(tmp_path):
    for value in (float("nan"), float("inf"), float("-inf")):
        bag = small_bag()
        bag.x[13, 2] = value
        with pytest.raises(DataError, match=r"a\.h5: features: row 13 holds NaN or Inf"):
            write_bag(tmp_path / "a.h5", bag)


def foreign(path, features, coords, **attributes):
    """A file as TRIDENT writes it: attributes on coords, None as text, one row per chunk."""
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features, chunks=(1, features.shape[1]) if len(features) else None)
        file["features"].attrs.update(name="case_1", encoder="uni_v1")
        file.create_dataset("coords", data=coords).attrs.update(attributes)
    return path


TRIDENT = {"patch_size": 256, "patch_size_level0": 512, "overlap": 0, "level0_magnification": "None"}


def test_a_trident_file_reads_without_conversion(tmp_path):
    x = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    bag = read_bag(foreign(tmp_path / "t.h5", x, lattice().numpy(), **TRIDENT))
    assert (bag.id, bag.frame.patch, bag.frame.step, bag.frame.spacing) == ("t", (512, 512), (512, 512), None)
    assert torch.equal(bag.x, torch.from_numpy(x))
    assert torch.equal(bag.graph.dense(), grid_graph(lattice(), 512).dense())
    assert read_provenance(tmp_path / "t.h5") == {"encoder": "uni_v1"}


def test_an_overlap_at_target_magnification_is_scaled_to_level_0(tmp_path):
    """64 of 256 pixels overlap at 20x; at level 0 (40x) patches of 512 px stand 512 - 128 = 384 apart."""
    path = foreign(tmp_path / "t.h5", np.ones((20, 3), "f4"), lattice(step=384).numpy(), **{**TRIDENT, "overlap": 64})
    bag = read_bag(path)
    assert bag.frame.step == (384, 384)
    assert sorted(set(bag.graph.degrees.tolist())) == [3, 5, 8]


def test_mostly_isolated_instances_raise_the_alarm_with_the_likely_cause(tmp_path):
    path = foreign(
        tmp_path / "t.h5", np.ones((20, 3), "f4"), lattice().numpy(), **{**TRIDENT, "patch_size_level0": 256}
    )
    with pytest.raises(DataError, match=r"t\.h5: 100% of 20 .* step 256 x 256, .* 512 apart .*patch_size_level0"):
        read_bag(path)
    assert describe(path)["isolated_share"] == 1.0
    assert "likely cause: a wrong step" in describe(path)["warnings"][0]


def test_a_folder_is_described_with_what_is_wrong_in_it(tmp_path):
    foreign(tmp_path / "wrong.h5", np.ones((20, 3), "f4"), lattice().numpy(), **{**TRIDENT, "patch_size_level0": 256})
    foreign(tmp_path / "good.h5", np.ones((20, 3), "f4"), lattice().numpy(), **TRIDENT)
    foreign(tmp_path / "few.h5", np.ones((4, 3), "f4"), lattice(2, 2).numpy() * 9, **TRIDENT)
    (tmp_path / "broken.h5").write_bytes(b"nothing")
    facts = describe_folder(tmp_path)
    assert (facts["bags"], facts["not_readable"], facts["without_neighbours"]) == (3, 1, 1)
    assert facts["instances"] == {"least": 4, "most": 20, "all": 44}
    told = " ".join(facts["warnings"])
    assert "broken.h5" in told
    assert "wrong.h5: 100% of the instances have no neighbour, while the nearest coordinates are 512 apart" in told
    assert "1 of 3 bags have fewer than ten instances and no two neighbours" in told
    assert "good.h5" not in told


def test_the_alarm_stays_silent_for_few_instances_and_without_a_graph(tmp_path):
    far = lattice(3, 3) * 100
    few = Bag("few", torch.ones(9, 2), far, FRAME)
    write_bag(tmp_path / "few.h5", few)
    assert read_bag(tmp_path / "few.h5").graph.isolated_share == 1.0
    write_bag(tmp_path / "none.h5", small_bag(coords=lattice() * 100, graph=None), graph="none")
    assert read_bag(tmp_path / "none.h5").graph is None
    with pytest.raises(DataError, match="no neighbour"):
        write_bag(tmp_path / "bad.h5", small_bag(coords=lattice() * 100, graph=None))


def test_a_trident_file_without_its_level_0_size_is_refused(tmp_path):
    path = foreign(
        tmp_path / "t.h5", np.ones((20, 3), "f4"), lattice().numpy(), patch_size=256, patch_size_level0="None"
    )
    with pytest.raises(DataError, match="patch_size_level0"):
        read_bag(path)


def test_an_empty_bag_is_refused_as_such(tmp_path):
    path = foreign(tmp_path / "t.h5", np.ones((0, 3), "f4"), lattice().numpy()[:0], **TRIDENT)
    with pytest.raises(DataError, match=r"t\.h5: no instances"):
        read_bag(path)


def test_both_counts_are_given_when_coords_and_features_differ(tmp_path):
    path = foreign(tmp_path / "t.h5", np.ones((19, 3), "f4"), lattice().numpy(), **TRIDENT)
    with pytest.raises(DataError, match="coords has 20 rows but features has 19"):
        read_bag(path)


def test_files_that_are_no_bags_are_refused_in_one_line(tmp_path):
    (tmp_path / "text.h5").write_text("hello")
    (tmp_path / "empty.h5").touch()
    (tmp_path / "folder.h5").mkdir()
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["image"] = np.ones(3)
    for name in ("text.h5", "empty.h5", "folder.h5", "other.h5", "absent.h5", "slide.svs"):
        with pytest.raises(DataError) as caught:
            read_bag(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_dataset_that_claims_more_than_the_file_can_hold_is_refused_before_memory_is_taken(tmp_path):
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        file.create_dataset("features", shape=(10**9, 512), dtype="f4", chunks=(1000, 512))
    with pytest.raises(DataError, match="more than the file can hold"):
        read_bag(tmp_path / "bomb.h5")


@pytest.mark.parametrize("chunks", [None, (1, 16), (7, 16), (20, 5)])
@pytest.mark.parametrize("rows", [0, 3, 19, 20])
def test_parts_that_were_never_written_are_no_features(tmp_path, chunks, rows):
    """An extraction that reserved the space and died: HDF5 reads the rest as zeros, without a word."""
    x = np.random.default_rng(0).standard_normal((20, 16)).astype(np.float32)
    path = foreign(tmp_path / "t.h5", x[:1], lattice().numpy(), **TRIDENT)
    with h5py.File(path, "r+") as file:
        del file["features"]
        made = file.create_dataset("features", x.shape, "f4", chunks=chunks, compression=chunks and "gzip")
        if rows:
            made[:rows] = x[:rows]
    touched = -(-rows // chunks[0]) * chunks[0] if chunks else 20 * bool(rows)  # writing a row writes all of its parts
    if touched >= 20:
        np.testing.assert_array_equal(read_bag(path).x[:rows], x[:rows])
    else:
        with pytest.raises(DataError, match=r"t\.h5: features: .* never written .*extract this case again"):
            read_bag(path)


def test_gigabytes_of_nothing_are_refused_before_memory_is_taken(tmp_path):
    """300,000 x 2,048 numbers in 3 MB: the size alone could be true, if they were well packed."""
    path = foreign(tmp_path / "t.h5", np.ones((1, 2048), "f4"), lattice().numpy(), **TRIDENT)
    with h5py.File(path, "r+") as file:
        del file["features"]
        file.create_dataset("features", (300_000, 2_048), "f4", chunks=(1000, 2_048), compression="gzip")
        file["ballast"] = np.zeros(3_000_000, np.uint8)
    tracemalloc.start()
    with pytest.raises(DataError, match="300 of 300 parts were never written"):
        read_bag(path)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def written(tmp_path):
    path = tmp_path / "a.h5"
    write_bag(path, small_bag(y_inst=torch.tensor([0, 1] * 10)), provenance={"encoder": "resnet"})
    return path, path.read_bytes(), read_bag(path)


def refused_or_equal(path, content, bag):
    path.write_bytes(content)
    try:
        read = read_bag(path)
    except DataError:
        return True
    assert same_bag(read, bag), "another bag was read without an error"
    return False


def test_every_truncated_file_is_refused(tmp_path):
    path, content, bag = written(tmp_path)
    for cut in random.Random(0).sample(range(len(content)), 300):
        assert refused_or_equal(path, content[:cut], bag), f"cut at {cut}"


def test_flipped_bits_never_give_another_bag(tmp_path):
    path, content, bag = written(tmp_path)
    rng, refused = random.Random(1), 0
    for _ in range(600):
        damaged = bytearray(content)
        for _ in range(rng.choice([1, 1, 1, 8])):
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        refused += refused_or_equal(path, bytes(damaged), bag)
    assert refused > 100


def test_a_damaged_foreign_file_is_read_or_refused_but_never_a_crash_or_a_wait(tmp_path):
    path = foreign(tmp_path / "t.h5", np.ones((20, 3), "f4"), lattice().numpy(), **TRIDENT)
    content, rng = path.read_bytes(), random.Random(2)
    for _ in range(400):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(DataError):
            read_bag(path)


def test_every_flipped_bit_of_features_and_coordinates_is_noticed(tmp_path):
    path, content, bag = written(tmp_path)
    for array in (bag.x.numpy(), bag.coords.numpy()):
        start = content.index(array.tobytes())
        for place in range(start, start + array.nbytes, 3):
            damaged = bytearray(content)
            damaged[place] ^= 1
            assert refused_or_equal(path, bytes(damaged), bag)


def test_a_changed_frame_graph_or_provenance_is_noticed(tmp_path):
    path, content, _ = written(tmp_path)
    for name, value in (("frame", {"patch": [600, 600]}), ("graph", {"kind": "none"}), ("provenance", {})):
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            file.attrs[name] = np.bytes_(json.dumps(value).encode())
        with pytest.raises(DataError, match="does not match its checksum"):
            read_bag(path)
        read_bag(path, verify=False)
        assert describe(path)["checksum"] == "does not match"
        with h5py.File(path, "r+") as file:
            del file.attrs[name]
        with pytest.raises(DataError, match=f"attribute '{name}' is missing"):
            read_bag(path)


def test_a_file_of_a_later_format_asks_for_an_upgrade(tmp_path):
    path, _, _ = written(tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["smmil_format"] = 2
    with pytest.raises(DataError, match="format 2, this smmil reads format 1; upgrade"):
        read_bag(path)


def test_no_file_stays_open_after_reading(tmp_path):
    path, _, _ = written(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(5):
        read_bag(path)
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path, content, _ = written(tmp_path)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native, "_fill", full_disk)
    with pytest.raises(DataError, match=r"a\.h5: cannot be written .*No space left"):
        write_bag(path, small_bag())
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_the_facts_of_a_file_are_plain_and_right(tmp_path):
    path, _, _ = written(tmp_path)
    facts = json.loads(json.dumps(describe(path)))
    assert (facts["instances"], facts["dim"], facts["dtype"], facts["checksum"]) == (20, 6, "float16", "matches")
    assert facts["degrees"] == {"3": 4, "5": 10, "8": 6}
    assert facts["instance_labels"] == {"0": 10, "1": 10}
    assert facts["coords"] == {"dtype": "int64", "least": [0, 0], "largest": [2048, 1536], "nearest": 512.0}
    assert facts["warnings"] == []


def test_trident_finds_its_attributes_in_our_files(tmp_path):
    path, _, _ = written(tmp_path)
    with h5py.File(path) as file:
        attributes = dict(file["coords"].attrs)
        assert file["features"].attrs["encoder"] == "resnet"
        assert file["features"].chunks is None
    assert (attributes["patch_size_level0"], attributes["overlap"], attributes["name"]) == (512, 0, "slide_007")
    assert attributes["level0_magnification"] == "None"


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_is_read_inside_one_error_boundary_without_another_projects_reader(tmp_path, monkeypatch, whole):
    import smmil.formats
    from smmil.formats import hdf5, trident

    path = tmp_path / "case.h5"
    write_bag(path, Bag("case", torch.ones(3, 2)), graph="chain", provenance={"encoder": "e"})
    entered = []

    def counting(path, reader_errors=hdf5.reader_errors):
        entered.append(path)
        return reader_errors(path)

    for module in (smmil.formats, hdf5):
        monkeypatch.setattr(module, "reader_errors", counting)
    for name in ("load", "provenance"):
        monkeypatch.delattr(trident._TridentReader, name)
    assert read_bag(path).n == 3 if whole else read_provenance(path) == {"encoder": "e"}
    assert entered == [path]
