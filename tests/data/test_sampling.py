"""Parts of bags: as many distinct rows as asked for, connected where they claim it, the same for the same place."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from support.bags import chain_bag, grid_bag, random_graph, without_edges

from smmil.bag import Bag
from smmil.data.loader import BagDataset, batches
from smmil.data.manifest import Manifest
from smmil.data.patients import StudyBags
from smmil.data.sampling import PATCHES, PartSampler
from smmil.errors import DataError
from smmil.formats import open_bag, read_bag, write_bag
from smmil.formats.rows import HeldRows, JoinedRows
from smmil.frame import Frame
from smmil.graph import Graph, grid_graph
from smmil.synthetic import synthetic_slides

SAMPLERS = ("cluster", "window", "walk", "random")
BAGS = {
    "lattice with holes": grid_bag(300, seed=4),
    "pieces of tissue": grid_bag(200, seed=1),
    "scan": chain_bag(90),
    "woven": replace(grid_bag(150), graph=random_graph(150, 3, share=0.02)),
    "lonely": without_edges(grid_bag(80)),
    "tissue": synthetic_slides(1, seed=2, size=(500, 500), dim=4)[0],
}


def drawn(bag, most, how, *, seed=0, epoch=0, place=0):
    return PartSampler(most, how, seed, epoch).rows(bag, place)


def pieces(graph):
    """Number of connected pieces, and the piece of every node."""
    shape = (graph.n, graph.n)
    return connected_components(csr_matrix((graph.weight.numpy(), graph.indices, graph.indptr), shape), directed=False)


def solid(side=40):
    """A full lattice, in one piece."""
    coords = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2) * 8
    return Bag("solid", torch.zeros(len(coords), 1), torch.from_numpy(coords), Frame((8, 8)), grid_graph(coords, 8))


@pytest.mark.parametrize("how", SAMPLERS)
@pytest.mark.parametrize("name", BAGS)
def test_a_part_has_as_many_distinct_rows_as_asked_for_and_small_bags_are_used_whole(name, how):
    bag = BAGS[name]
    for most in (1, 2, 31, bag.n - 1):
        rows = drawn(bag, most, how, place=most)
        assert len(rows) == most == len(np.unique(rows))
        assert (np.diff(rows) > 0).all()
        assert 0 <= rows[0] <= rows[-1] < bag.n
    for most in (bag.n, bag.n + 1):
        assert drawn(bag, most, how) is None
        assert PartSampler(most, how, 0, 0).part(bag, 0) is bag


@pytest.mark.parametrize("name", BAGS)
def test_a_walk_cuts_no_more_than_one_piece_of_tissue(name):
    bag = BAGS[name]
    _, piece = pieces(bag.graph)
    for place in range(20):
        part = PartSampler(bag.n // 3, "walk", 0, 0).part(bag, place)
        rows, (count, found) = drawn(bag, bag.n // 3, "walk", place=place), pieces(part.graph)
        cut = [k for k in range(count) if (found == k).sum() < (piece == piece[rows[found == k][0]]).sum()]
        assert len(cut) <= 1


def test_in_one_piece_of_tissue_a_walk_is_one_piece_and_a_cluster_a_few_from_far_apart():
    bag, spread = solid(), {}
    for how in ("walk", "cluster", "random"):
        counts = []
        for place in range(10):
            part = PartSampler(320, how, 1, 0).part(bag, place)
            counts.append(pieces(part.graph)[0])
            spread.setdefault(how, []).append(part.coords.double().std(0).mean())
        if how == "walk":
            assert set(counts) == {1}
        elif how == "cluster":
            assert 2 <= max(counts) <= PATCHES
        else:
            assert min(counts) > 50
    assert 1.5 * np.mean(spread["walk"]) < np.mean(spread["cluster"])


def test_connected_parts_keep_most_edges_and_random_ones_hardly_any():
    bag = solid()
    share = {}
    for how in SAMPLERS:
        part = PartSampler(320, how, 0, 0).part(bag, 0)
        share[how] = (len(part.graph.indices) / part.n) / (len(bag.graph.indices) / bag.n)
    assert share["random"] < 0.3
    assert min(share[how] for how in ("cluster", "window", "walk")) > 0.6
    assert share["window"] == max(share.values())


@pytest.mark.parametrize("bag", [grid_bag(110, seed=4), BAGS["scan"]], ids=["lattice with holes", "scan"])
def test_a_window_holds_the_nearest_by_brute_force(bag):
    points = bag.coords.double().numpy() / np.array(bag.frame.step)
    possible = set()
    for centre in points:
        apart = np.abs(points - centre)
        keys = [(a.max(), (a**2).sum(), row) for row, a in enumerate(apart)]
        possible.add(tuple(sorted(row for *_, row in sorted(keys)[:37])))
    seen = {tuple(drawn(bag, 37, "window", place=place)) for place in range(60)}
    assert seen <= possible
    assert len(seen) > 10


def test_a_window_measures_every_axis_in_its_own_steps():
    across, along = np.meshgrid(np.arange(9), np.arange(9))
    coords = torch.from_numpy(np.stack([across.ravel() * 100, along.ravel()], 1))
    bag = Bag("flat", torch.zeros(81, 1), coords, Frame((100.0, 1.0)))
    rows = drawn(bag, 25, "window", place=3)
    widths = np.ptp(coords.numpy()[rows] / [100, 1], axis=0)
    assert abs(widths[0] - widths[1]) <= 4


@pytest.mark.parametrize("how", SAMPLERS)
def test_the_draw_depends_on_seed_epoch_place_and_id_alone(how):
    bag = BAGS["tissue"]
    first = drawn(bag, 50, how)
    assert np.array_equal(first, drawn(replace(bag, x=torch.zeros(bag.n, 9), y=0), 50, how))
    others = [
        drawn(bag, 50, how, seed=1),
        drawn(bag, 50, how, epoch=1),
        drawn(bag, 50, how, place=1),
        drawn(replace(bag, id="other"), 50, how),
    ]
    assert all(not np.array_equal(first, other) for other in others)
    assert len({tuple(rows) for rows in others}) == 4


@pytest.mark.parametrize("how", SAMPLERS)
def test_every_instance_comes_up_in_the_end(how):
    bag, seen = grid_bag(40, seed=1), set()  # in four pieces of 2 to 24
    for place in range(500):
        seen.update(drawn(bag, 10, how, place=place).tolist())
    assert len(seen) == bag.n


@pytest.mark.parametrize("name", BAGS)
def test_the_graph_of_a_part_is_the_dense_submatrix(name):
    bag = BAGS[name]
    labelled = replace(bag, y_inst=torch.arange(bag.n), quality=torch.arange(bag.n)[:, None].float())
    for how in SAMPLERS:
        rows = torch.from_numpy(drawn(bag, bag.n // 2, how))
        part = PartSampler(bag.n // 2, how, 0, 0).part(labelled, 0)
        assert torch.equal(part.graph.dense(), bag.graph.dense()[rows][:, rows])
        assert torch.equal(part.x, bag.x[rows])
        assert torch.equal(part.coords, bag.coords[rows])
        assert torch.equal(part.y_inst, rows)
        assert torch.equal(part.quality[:, 0].long(), rows)
        assert (part.id, part.y, part.frame) == (bag.id, bag.y, bag.frame)


def test_what_a_sampler_cannot_do_is_said():
    bag = grid_bag(30)
    with pytest.raises(DataError, match=r"grid_30_0: it has no graph .* window or random"):
        drawn(replace(bag, graph=None), 5, "walk")
    with pytest.raises(DataError, match=r"grid_30_0: .*window needs coordinates; use walk or random"):
        drawn(replace(bag, coords=None), 5, "window")
    scan = drawn(replace(chain_bag(30), coords=None), 5, "window")
    assert np.ptp(scan) == 4
    with pytest.raises(DataError, match="ascending order"):
        bag.graph.induced(torch.tensor([3, 1]))


# Reading parts of files


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A manifest of six native slides, of two precisions and one with pairs of its own."""
    folder, rows = tmp_path_factory.mktemp("large"), []
    for i in range(6):
        bag = replace(grid_bag(60 + 20 * i, seed=i, y=i % 2), id=f"s{i}", y_inst=None)
        bag = replace(bag, x=bag.x.half()) if i % 2 else bag
        if i == 4:  # pairs that no rule gives
            bag = replace(bag, graph=random_graph(bag.n, 9))
        write_bag(folder / f"{i}.h5", bag, graph="edges" if i == 4 else "grid")
        rows.append({"id": f"s{i}", "path": f"{i}.h5", "label": str(i % 2), "group": f"p{i // 2}"})
    return Manifest(pd.DataFrame(rows), folder)


@pytest.mark.parametrize("how", SAMPLERS)
def test_a_part_read_from_disk_is_the_part_of_the_bag_read_whole(large, how):
    for id_ in large.ids:
        opened, whole, parts = large.open_bag(id_), large.bag(id_), PartSampler(40, how, 0, 0)
        part, wanted = parts.drawn(opened, 5), parts.part(whole, 5)
        assert opened.bag.x.shape == (whole.n, 0)
        assert part.x.dtype == whole.x.dtype
        assert torch.equal(part.x, wanted.x)
        assert torch.equal(part.coords, wanted.coords)
        assert part.graph.same_as(wanted.graph)
        assert (part.id, part.y, part.frame) == (wanted.id, wanted.y, wanted.frame)
        assert torch.equal(torch.cat(list(opened.rows.blocks(7))), whole.x)


def test_parts_of_the_bag_of_a_patient_come_from_all_files(large):
    by_patient = StudyBags(large.select(["s0", "s2"]), bags="patient")
    by_patient.members = {"s0": ("s0", "s2")}
    opened, whole = by_patient.open_bag("s0"), by_patient.bag("s0")
    rows = np.array([0, 3, 58, 59, 60, 61, 159])
    assert torch.equal(opened.rows.take(rows), whole.x[rows])
    assert torch.equal(torch.cat(list(opened.rows.blocks(9))), whole.x)
    assert opened.bag.graph.same_as(whole.graph)
    parts = PartSampler(100, "cluster", 0, 0)
    assert torch.equal(parts.drawn(opened, 1).x, parts.part(whole, 1).x)
    with pytest.raises(DataError, match=r"16 and 17 features per instance; use one encoder"):
        JoinedRows("p", [opened.rows, HeldRows(torch.zeros(3, 17))])


def packed(dataset, **how):
    order = [0, 5, 3, 3, 1, 2, 4, 5]
    return [(b.ids, b.x, b.coords, b.graph) for b in batches(dataset, batch_size=3, order=order, **how)]


def equal(found, wanted):
    return all(
        a[0] == b[0] and torch.equal(a[1], b[1]) and torch.equal(a[2], b[2]) and a[3].same_as(b[3])
        for a, b in zip(found, wanted, strict=True)
    )


def test_batches_of_parts_are_the_same_however_they_are_read(large):
    parts = PartSampler(70, "cluster", 1, 2)
    wanted = packed(BagDataset(large, cache=False), parts=parts)
    sizes = [large.bag(i).n for i in large.ids]
    assert [len(x) for _, x, _, _ in wanted] == [
        sum(min(70, sizes[i]) for i in some) for some in ([0, 5, 3], [3, 1, 2], [4, 5])
    ]
    held = BagDataset(large)
    for i in range(6):
        held[i]
    fresh = BagDataset(large)
    for dataset in (held, fresh, fresh):
        assert equal(packed(dataset, parts=parts), wanted)
    assert equal(packed(BagDataset(large), parts=parts, start=1), wanted[1:])
    again = packed(fresh)  # whole bags afterwards: no part was taken for its bag
    assert equal(again, packed(BagDataset(large, cache=False)))
    assert not equal(packed(held, parts=PartSampler(70, "cluster", 1, 3)), wanted)


@pytest.mark.slow
def test_batches_of_parts_are_the_same_for_any_number_of_workers(large):
    parts, dataset = PartSampler(70, "cluster", 1, 2), BagDataset(large)
    wanted = packed(BagDataset(large), parts=parts)
    assert equal(packed(dataset, parts=parts, workers=1), wanted)
    assert equal(packed(dataset, parts=parts, workers=2), wanted)
    assert equal(packed(dataset, workers=2), packed(BagDataset(large, cache=False)))  # no part was taken for its bag


def test_large_bags_are_never_read_whole_and_small_ones_are_kept(large, monkeypatch):
    read, real = [], Manifest.bag
    monkeypatch.setattr(Manifest, "bag", lambda self, id_, **o: read.append(id_) or real(self, id_, **o))
    dataset = BagDataset(large)
    for _ in range(2):
        packed(dataset, parts=PartSampler(70, "walk", 0, 0))
    assert read == ["s0"]
    assert dataset.widths == (16, None)


def test_opening_compares_the_checksum_and_finds_what_is_not_finite(tmp_path):
    bag = replace(grid_bag(50), y_inst=None)
    path = tmp_path / "a.h5"
    write_bag(path, bag)
    assert torch.equal(torch.cat(list(open_bag(path).rows.blocks())), read_bag(path).x)
    content = path.read_bytes()
    at = content.index(bag.x.numpy().tobytes())
    path.write_bytes(content[: at + 400] + b"\x01\x02\x03\x04" + content[at + 404 :])
    with pytest.raises(DataError, match=r"a\.h5: content does not match its checksum"):
        open_bag(path)
    rows = open_bag(path, verify=False).rows
    path.write_bytes(content[: at + 400] + np.array([np.nan], "f4").tobytes() + content[at + 404 :])
    with pytest.raises(DataError, match=r"a\.h5: features: row 6 holds NaN or Inf"):
        rows.take(np.array([1, 6, 30]))
    write_bag(path, grid_bag(40))
    with pytest.raises(DataError, match=r"a\.h5: features changed their shape while in use"):
        rows.take(np.array([1]))


def test_graphs_of_parts_may_be_normalised_already_and_then_keep_the_degrees_of_the_whole():
    graph = random_graph(40, 2, share=0.3)
    rows = torch.tensor([0, 3, 4, 11, 17, 39])
    for kind in (None, "sym", "sym_loop", "rw"):
        whole = graph if kind is None else graph.normalized(kind)
        part = whole.induced(rows)
        assert (part.kind, part.n) == (kind, 6)
        assert torch.equal(part.dense(), whole.dense()[rows][:, rows])
    alone = graph.induced(torch.tensor([7]))
    assert (alone.n, len(alone.indices)) == (1, 0)
    assert Graph.from_edges(np.zeros((2, 0)), n=3).induced(torch.tensor([0, 2])).n == 2
