import time
import warnings

import numpy as np
import pytest
import torch
from support.bags import STEP, grid_coords, random_graph

from smmil.errors import DataError
from smmil.graph import KINDS, Graph, _weight_dtype, chain_graph, grid_graph, join, knn_graph, radius_graph
from smmil.sparse import plain_product


def slow_grid(coords, step, neighbours):
    """The definition, pair by pair."""
    n = len(coords)
    dense = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            apart = np.abs(coords[i] - coords[j]) / step
            near = apart.max() < 1.5 if neighbours == 8 else apart.sum() < 1.5
            dense[i, j] = i != j and near
    return dense


def dense_normalized(a, kind):
    """Textbook propagation matrices, dense; a lonely node keeps its value."""
    a = a + np.eye(len(a)) if kind == "sym_loop" else a
    d = a.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = a / d[:, None] if kind == "rw" else a / np.sqrt(d[:, None] * d[None])
    return np.where(d[:, None] * d[None] == 0, 0, p) + np.diag((d == 0).astype(float))


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_lattice_joins_exactly_the_touching_cells(neighbours, dims):
    cells = np.argwhere(np.random.default_rng(dims).random((5,) * dims) < 0.6)
    coords = cells * STEP + 1000
    assert np.array_equal(grid_graph(coords, STEP, neighbours).dense(), slow_grid(coords, STEP, neighbours))


@pytest.mark.parametrize("neighbours", [4, 8])
def test_pieces_with_their_own_origin_are_joined_where_they_meet(neighbours):
    coords = grid_coords(60).astype(float)
    coords[30:] += (200, 77)
    assert np.array_equal(grid_graph(coords, STEP, neighbours).dense(), slow_grid(coords, STEP, neighbours))


def test_two_patches_at_one_place_are_neighbours():
    coords = np.array([[0, 0], [0, 0], [STEP, 0], [5 * STEP, 0]])
    dense = grid_graph(coords, STEP).dense()
    assert dense[0, 1] == dense[0, 2] == dense[1, 2] == 1
    assert dense[3].sum() == 0


def test_overlapping_patches_are_neighbours_by_their_stride():
    coords = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2) * 256
    assert grid_graph(coords, 256).indptr.diff().max() == 8
    assert grid_graph(coords, 512).indptr.diff().max() == 15  # everything within 1.5 · 512


def test_scattered_coordinates_do_not_fill_the_memory():
    coords = np.array([[0, 0], [10**9, 10**9], [10**9 + 512, 10**9]])
    assert grid_graph(coords, 512).indptr.diff().tolist() == [0, 1, 1]


def test_a_step_for_every_axis():
    coords = np.array([[0, 0], [100, 0], [0, 300], [200, 0]])
    assert np.array_equal(grid_graph(coords, (100, 300)).dense(), slow_grid(coords, np.array([100, 300]), 8))


@pytest.mark.parametrize("build", [lambda c: grid_graph(c, 1), lambda c: knn_graph(c, 3), lambda c: radius_graph(c, 2)])
def test_a_single_instance_is_a_graph_without_edges(build):
    graph = build(torch.tensor([[3, 4]]))
    assert (graph.n, graph.indices.numel(), graph.isolated_share) == (1, 0, 1.0)


def test_knn_joins_when_at_least_one_chose_the_other():
    coords = np.random.default_rng(0).normal(size=(40, 2))
    apart = np.linalg.norm(coords[:, None] - coords[None], axis=2) + np.diag([np.inf] * 40)
    chosen = np.zeros((40, 40))
    np.put_along_axis(chosen, np.argsort(apart, 1)[:, :5], 1, axis=1)
    assert np.array_equal(knn_graph(coords, 5).dense(), np.maximum(chosen, chosen.T))


def test_knn_survives_many_instances_at_one_place():
    graph = knn_graph(np.zeros((12, 2)), 3)
    assert (graph.indptr.diff() >= 3).all()
    assert graph.dense().diagonal().sum() == 0


def test_radius_includes_its_border():
    assert radius_graph(np.array([[0.0], [1.0], [2.5]]), 1.0).dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_a_chain_is_a_path():
    assert chain_graph(4).edges().T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 3], [3, 2]]
    assert chain_graph(4).is_chain
    assert not grid_graph(grid_coords(30), STEP).is_chain


def test_a_pair_given_once_counts_in_both_directions():
    once = Graph.from_edges([[0, 1], [1, 2]], [2.0, 3.0], 4)
    both = Graph.from_edges([[0, 1, 1, 2], [1, 2, 0, 1]], [2.0, 3.0, 2.0, 3.0], 4)
    assert torch.equal(once.dense(), both.dense())
    assert torch.equal(once.dense(), once.dense().T)


@pytest.mark.parametrize(
    ("index", "weight", "n", "word"),
    [
        ([[0], [0]], None, 2, "itself"),
        ([[0], [5]], None, 3, "outside"),
        ([[0, 1], [1, 0]], [1.0, 2.0], 2, "two different weights"),
        ([[0], [1]], [-1.0], 2, "positive"),
        ([[0], [1]], [float("nan")], 2, "positive"),
        ([[0], [1]], [1.0, 1.0], 2, "2 weights"),
        ([[], []], None, 0, "at least one"),
    ],
)
def test_impossible_edges_are_refused(index, weight, n, word):
    with pytest.raises(DataError, match=word):
        Graph.from_edges(index, weight, n)


@pytest.mark.parametrize("kind", KINDS)
def test_normalisation_is_the_textbook_matrix(kind):
    for graph in (random_graph(25), chain_graph(6), grid_graph(grid_coords(30), STEP)):
        expected = dense_normalized(graph.dense().numpy(), kind)
        assert np.allclose(graph.normalized(kind).dense(), expected, atol=1e-14)


@pytest.mark.parametrize("kind", ["sym", "rw"])
def test_a_lonely_node_keeps_itself_unless_asked_to_fade(kind):
    graph = Graph.from_edges([[0], [1]], n=3)
    assert graph.normalized(kind).dense()[2, 2] == 1
    assert graph.normalized(kind, isolated="shrink").dense()[2].sum() == 0


def test_normalising_twice_is_normalising_once_and_another_kind_is_refused():
    sym = chain_graph(3).normalized("sym")
    assert sym.normalized("sym") is sym
    with pytest.raises(DataError, match="already normalised"):
        sym.normalized("rw")


def test_normalised_graphs_are_made_once():
    graph = chain_graph(5)
    assert graph.normalized("rw") is graph.normalized("rw")


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_propagation_is_the_matrix_product_forward_and_backward(kind):
    graph = random_graph(20)
    graph = graph if kind is None else graph.normalized(kind)
    x = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(graph.propagate(x), graph.dense() @ x)
    assert torch.autograd.gradcheck(graph.propagate, (x,))
    assert torch.allclose(graph.transposed().dense(), graph.dense().T)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_joined_graphs_do_not_touch(kind):
    parts = [random_graph(9), chain_graph(1), grid_graph(grid_coords(14), STEP)]
    parts = parts if kind is None else [g.normalized(kind) for g in parts]
    assert torch.equal(join(parts).dense(), torch.block_diag(*[g.dense() for g in parts]))


@pytest.mark.parametrize("kind", KINDS)
def test_joining_and_normalising_commute(kind):
    parts = [random_graph(9), chain_graph(4)]
    a, b = join(parts).normalized(kind), join([g.normalized(kind) for g in parts])
    assert torch.allclose(a.dense(), b.dense())


def test_roughness_is_the_dirichlet_energy():
    graph, x = random_graph(15), torch.randn(15, 4, dtype=torch.float64)
    a = graph.dense()
    slow = sum(a[i, j] * (x[i] - x[j]).square().sum() for i in range(15) for j in range(15)) / 2
    assert torch.allclose(graph.roughness(x), slow)
    laplacian = torch.eye(15) - graph.normalized().dense()
    assert torch.allclose(graph.normalized().roughness(x), torch.trace(x.T @ laplacian @ x))
    assert graph.roughness(torch.ones(15)) == 0


def test_spectra_are_as_derived():
    def largest(graph, kind="sym"):
        return torch.linalg.eigvalsh(torch.eye(graph.n) - graph.normalized(kind).dense()).max().item()

    full = np.stack(np.meshgrid(np.arange(6), np.arange(7)), -1).reshape(-1, 2)
    assert largest(chain_graph(11)) == pytest.approx(2)
    assert largest(grid_graph(full, 1, neighbours=4)) == pytest.approx(2)
    assert largest(grid_graph(full, 1)) == pytest.approx(1.498, abs=1e-3)
    assert largest(chain_graph(34), "sym_loop") == pytest.approx(1.33, abs=5e-3)


def test_a_large_slide_gets_its_graph_well_under_a_second():
    coords = np.stack(np.meshgrid(np.arange(300), np.arange(200)), -1).reshape(-1, 2) * STEP
    coords[30_000:] += 100  # off the lattice: the slow path must be fast enough too
    start = time.perf_counter()
    graph = grid_graph(coords, STEP)
    assert graph.n == 60_000
    assert time.perf_counter() - start < 5


def test_graphs_are_the_same_in_whatever_order_their_entries_lie():
    lattice = grid_graph(grid_coords(30)[::-1].copy(), STEP)
    listed = Graph.from_edges(lattice.edges(), lattice.weight, lattice.n)
    assert not torch.equal(lattice.indices, listed.indices)
    assert lattice.same_as(listed)
    assert not lattice.same_as(chain_graph(30))
    assert not lattice.same_as(Graph.from_edges(lattice.edges(), 2 * lattice.weight, lattice.n))


def test_coordinates_that_are_not_numbers_are_named():
    with pytest.raises(DataError, match="row 1"):
        grid_graph(np.array([[0.0, 0], [np.nan, 1]]), 1)
    with pytest.raises(DataError, match="step must be positive"):
        grid_graph(np.array([[0.0, 0]]), 0)


def test_knn_chooses_k_others_even_among_many_at_one_place():
    graph = knn_graph(np.array([[0.0, 0.0]] * 5 + [[9.0, 9.0]]), 2)
    assert graph.indices.numel() <= 2 * 6 * 2
    assert graph.indptr.diff()[5] == 2


def test_propagation_of_half_precision_is_widened_inside():
    graph, x = random_graph(12).normalized(), torch.randn(12, 3)
    assert torch.allclose(graph.propagate(x.half()).float(), graph.propagate(x.half().float()), atol=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(graph.propagate(x), graph.normalized().propagate(x))
        assert graph.propagate(x).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolated", ["keep", "shrink"])
def test_a_traced_graph_is_the_same_matrix(kind, isolated, monkeypatch):
    """In a traced program, and on a GPU, no size may depend on which nodes are isolated."""
    graph = random_graph(23)
    wanted = graph.normalized(kind, isolated)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    traced = Graph(graph.indptr, graph.indices, graph.weight).normalized(kind, isolated)
    assert torch.allclose(traced.dense(), wanted.dense(), rtol=1e-15)
    assert torch.allclose(traced.transposed().dense(), wanted.dense().T, rtol=1e-15)
    if kind != "sym_loop":
        assert traced.indices.numel() == graph.indices.numel() + (23 if isolated == "keep" else 0)


def test_a_graph_normalises_and_multiplies_without_reading_numbers_from_its_device():
    """A meta tensor has none to read."""
    graph = random_graph(23).to("meta")
    for kind in ("sym", "sym_loop"):
        assert graph.normalized(kind).propagate(torch.ones(23, 2, device="meta")).shape == (23, 2)


def test_the_transposed_of_a_copied_graph_is_found_again():
    graph = random_graph(20).normalized("rw")
    copied = Graph(graph.indptr, graph.indices, graph.weight, graph.kind, graph.skew)
    assert torch.equal(copied.transposed().dense(), graph.dense().T)
    assert copied.transposed().transposed() is copied


def test_weights_are_float32_where_there_is_no_float64():
    assert _weight_dtype(torch.device("mps")) == torch.float32
    assert _weight_dtype(torch.device("cuda")) == torch.float64


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_product_by_gather_and_scatter_is_the_matrix_product(kind):
    graph = random_graph(20)
    graph = graph if kind is None else graph.normalized(kind)
    x = torch.randn(20, 3, dtype=torch.float64)
    assert torch.allclose(plain_product(x, *graph.csr), graph.dense() @ x, atol=1e-14)


def test_a_wrong_step_stops_and_names_the_one_found_in_the_coordinates():
    lattice = 512 * np.argwhere(np.ones((8, 8))) + 7
    with pytest.raises(DataError, match=r"100% of 64 instances .* step 256, .* 512 apart .* give step=512 or none"):
        grid_graph(lattice, 256)
    assert len(grid_graph(lattice, 256, check=False).indices) == 0


def test_without_a_step_the_graph_is_that_of_the_lattice():
    holes = 512 * np.argwhere(np.random.default_rng(0).random((12, 12)) > 0.3)
    assert np.array_equal(grid_graph(holes).dense(), slow_grid(holes, 512, 8))
    assert grid_graph(torch.zeros(1, 2)).n == 1
    assert len(grid_graph(np.zeros((2, 2))).indices) == 2


def test_patches_that_were_sampled_sparsely_are_warned_of_and_built():
    sparse = np.random.default_rng(1).integers(0, 100_000, (40, 2))
    with pytest.warns(UserWarning, match=r"of 40 instances have no neighbour .* knn_graph\(coords, 5\)"):
        assert grid_graph(sparse, 256).n == 40


def test_a_few_lonely_patches_are_built_without_a_word():
    lattice = np.concatenate([256 * np.argwhere(np.ones((6, 6))), [[9000, 9000]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert grid_graph(lattice, 256).isolated_share == 1 / 37
        assert grid_graph(1000 * np.eye(9), 256).n == 9
