"""Bags in blocks: Sm with a halo, and models that read their features a few rows at a time, as they do at once."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, grid_coords, random_graph

from smmil.bag import BagBatch
from smmil.errors import ConfigError, DataError
from smmil.formats import open_bag, write_bag
from smmil.formats.rows import HeldRows, OpenBag, without_features
from smmil.graph import chain_graph, grid_graph
from smmil.models import create_model, list_models, model_class
from smmil.nn import sm
from smmil.nn.blocks import RowBlocks, smooth_in_blocks
from smmil.nn.covariates import WithCovariates
from smmil.predict.inference import predict

GRAPHS = {
    "lattice": grid_graph(grid_coords(130, seed=2), 512),
    "four neighbours": grid_graph(grid_coords(130, seed=2), 512, 4),
    "random": random_graph(60, 5, share=0.04),
    "chain": chain_graph(50),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_halo_holds_what_is_within_so_many_hops(name):
    graph = GRAPHS[name]
    near = torch.eye(graph.n) + (graph.dense() > 0).float()
    rows = torch.tensor([1, 7, 30])
    reached = near[rows].sum(0) * 0
    reached[rows] = 1
    for hops in range(5):
        assert graph.halo(rows, hops).tolist() == (reached > 0).nonzero().flatten().tolist()
        reached = (near @ reached > 0).float()


@pytest.mark.parametrize(("name", "kind"), [*((n, "sym") for n in GRAPHS), ("random", "rw"), ("lattice", "sym_loop")])
def test_sm_in_blocks_with_a_halo_of_as_many_hops_as_steps_is_sm(name, kind):
    graph = GRAPHS[name].normalized(kind)
    for dtype, limit in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        u = torch.randn(graph.n, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
        for steps in range(11):
            whole = sm(u, graph, 0.7, steps)
            for block in (9, 37) if steps == 3 else (37,):
                assert (smooth_in_blocks(u, graph, 0.7, steps, block) - whole).abs().max() < limit


def test_a_halo_one_hop_short_does_not_do():
    graph = chain_graph(30).normalized()
    u, inside = torch.randn(30, 1, dtype=torch.float64), torch.arange(10, 15)
    for steps in (1, 4, 7):
        wrong = graph.halo(inside, steps - 1)
        part = sm(u[wrong], graph.induced(wrong), 0.7, steps)[torch.searchsorted(wrong, inside)]
        assert (part - sm(u, graph, 0.7, steps)[inside]).abs().max() > 1e-5


EARLY, LATE, RW = {"where": "early"}, {"where": "late"}, {"where": "early", "normalization": "rw"}
OPTIONS = {
    "abmil": [{}, {"gated": True}, {"spectral_norm": True}, {"att_bias": False}],
    "sm_ap": [
        {"where": where, "spectral_norm": norm, **more}
        for where in ("early", "mid", "late")
        for norm in (True, False)
        for more in ({}, {"gated": True, "normalization": "rw"}, {"steps": "exact", "att_bias": False})
    ],
    "clam": [{}, {"branches": "multi"}, {"sm": EARLY}, {"sm": LATE}, {"sm": RW, "branches": "multi"}],
    "dsmil": [
        {},
        {"passing_v": True},
        {"sm": EARLY},
        {"sm": LATE},
        {"score": "instance", "nonlinear": False, "sm": RW},
    ],
    "mean_pool": [{}, {"sm": EARLY}, {"sm": LATE}],
    "max_pool": [{}, {"sm": EARLY}, {"sm": LATE}],
    "sm_gcn": [{}, {"layers": 2, "where": "none", "norm": True}],
    "sm_instance": [{}, {"pool": "noisy_or"}],
}


@cache
def able():
    return [name for name in list_models() if hasattr(model_class(name), "in_blocks")]


def made(name, in_dim=16, n_classes=1, **options):
    torch.manual_seed(0)
    sizes = {} if name == "dsmil" else {"dim": 24}
    sizes |= {"att_dim": 10} if name in ("abmil", "sm_ap", "sm_gcn") else {}
    model = create_model(name, in_dim, n_classes, **sizes, **options)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def assert_alike(found, wanted, limit=1e-6):
    size = max(1.0, np.abs(wanted.scores).max())
    assert np.abs(found.scores - wanted.scores).max() <= limit * size
    assert np.abs(found.probs - wanted.probs).max() <= limit


def test_every_model_that_reads_in_blocks_is_tested_here():
    assert set(able()) == set(OPTIONS)


@pytest.mark.parametrize("n_classes", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_prediction_in_blocks_is_that_of_the_whole_bag(name, n_classes):
    bags = [chain_bag(40), replace(grid_bag(60), graph=random_graph(60, 1)), grid_bag(1)]
    for options in OPTIONS[name]:
        model = made(name, n_classes=n_classes, **options)
        whole = predict(model, bags)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        found = predict(model, bags, block=32)
        for one, wanted in zip(found, whole, strict=True):
            assert_alike(one, wanted)
            assert (one.id, one.y, one.meta) == (wanted.id, wanted.y, wanted.meta)
            assert np.array_equal(one.coords, wanted.coords)
            assert np.array_equal(one.edges, wanted.edges)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        assert model.training  # and spectral norm in eval mode: the buffers of its power iteration stay


def test_double_precision_agrees_to_its_last_digits():
    model = made("sm_ap").double()
    bag = grid_bag(120, dtype=torch.float64)
    whole, found = model.eval()(BagBatch.pack([bag])), predict(model, [bag], block=7)[0]
    assert abs(whole.logits.sigmoid().item() - found.probs[0]) < 1e-12


class _Counted(HeldRows):
    """Rows that remember how many were asked for at a time."""

    largest, passes = 0, 0

    def blocks(self, size):
        self.passes += 1
        for block in super().blocks(size):
            self.largest = max(self.largest, len(block))
            yield block


@pytest.mark.parametrize("name", OPTIONS)
def test_no_model_asks_for_more_rows_than_a_block_or_reads_them_more_than_twice(name):
    bag = grid_bag(100)
    rows = _Counted(bag.x)
    predict(made(name), [OpenBag(without_features(bag), rows)], block=9)
    assert rows.largest == 9
    assert rows.passes <= 2


def test_half_precision_stays_in_the_file_and_is_widened_block_by_block(tmp_path):
    bag = replace(grid_bag(80), x=grid_bag(80).x.half(), y_inst=None)
    write_bag(tmp_path / "a.h5", bag)
    opened, model = open_bag(tmp_path / "a.h5"), made("sm_ap")
    assert {block.dtype for block in opened.rows.blocks(9)} == {torch.float16}
    assert {block.dtype for block in RowBlocks(opened.rows, 80, 9, model)} == {torch.float32}
    wanted, plain, found = (predict(model, one, block=b)[0] for one, b in ((bag, None), (opened, None), (opened, 9)))
    wanted = replace(wanted, id=bag.id)
    assert np.array_equal(plain.scores, wanted.scores)
    assert_alike(found, wanted)


def test_covariates_join_the_logits_in_blocks_too():
    bag = replace(grid_bag(50), covariates=torch.tensor([0.5, -2.0]))
    model = WithCovariates(made("sm_ap"), 2, 1)
    model.covariates.data = torch.tensor([[1.0, 0.3]])
    found, whole = predict(model, bag, block=9)[0], predict(model, bag)[0]
    assert_alike(found, whole)
    assert abs(found.probs[0] - predict(model.model, bag)[0].probs[0]) > 1e-3
    with pytest.raises(ConfigError, match="looks at all instances at once"):
        predict(WithCovariates(made("trans_mil"), 2, 1), bag, block=9)


def test_what_cannot_be_done_in_blocks_is_refused_in_words():
    bag = grid_bag(20)
    with pytest.raises(ConfigError, match=r"block: TransMIL looks at all .* abmil, clam, dsmil, .* sm_ap, sm_gcn"):
        predict(made("trans_mil"), bag, block=9)
    with pytest.raises(ConfigError, match=r"block: 0, expected a number of rows"):
        predict(made("abmil"), bag, block=0)
    with pytest.raises(ConfigError, match="dropout would differ"):
        predict(made("clam"), bag, block=9, dropout=True)
    with pytest.raises(ConfigError, match="dsmil with passing_v"):
        predict(made("dsmil", passing_v=True, sm=EARLY), bag, block=9)
    with pytest.raises(DataError, match=r"grid_20_0: 16 features per instance, but the model reads 12"):
        predict(made("abmil", 12), bag, block=9)
    lora = made("sm_ap", spectral_norm=False)
    lora.pool.project = torch.nn.Sequential(lora.pool.project)
    with pytest.raises(ConfigError, match="Sm stands before a Sequential, which is no plain linear layer"):
        predict(lora, bag, block=9)


def test_batches_are_predicted_as_packed():
    model, bags = made("sm_ap"), [grid_bag(20), grid_bag(30)]
    packed = predict(model, BagBatch.pack(bags), block=9)
    assert all(
        np.array_equal(a.scores, b.scores) for a, b in zip(packed, predict(model, BagBatch.pack(bags)), strict=True)
    )
