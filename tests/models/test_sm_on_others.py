"""Sm on top of other models: the same as smoothing by hand at the stated place, and nothing at all at α = 0."""

import numpy as np
import pytest
import torch
from support.bags import grid_bag, woven_bag
from torch.nn.functional import linear

from smmil.bag import BagBatch
from smmil.errors import ConfigError
from smmil.graph import Graph
from smmil.models import create_model, list_models, model_options
from smmil.models.dtfd_mil import _cut_bags, _fixed_orders

TAKES_SM = [name for name in list_models() if "sm" in model_options(name)]
FIXED = {"alpha": 0.6, "steps": 4, "spectral_norm": False}
# Where Sm stands does not depend on the size of what follows it: the largest models are made smaller.
SMALLER = {"set_mil": {"size": 8, "depth": 2}, "iib_mil": {"dim": 32, "hidden": 64}}


def build(name, seed=0, **options):
    torch.manual_seed(seed)
    return create_model(name, 16, **SMALLER.get(name, {}), **options).double()


def pair(name, where, **options):
    """The model with Sm at a place, and the plain model with the same weights."""
    smooth, plain = build(name, sm={**FIXED, "where": where}, **options), build(name, **options)
    plain.load_state_dict(smooth.state_dict())
    return smooth.eval(), plain.eval()


def dense_sm(u, adjacency, alpha=FIXED["alpha"], steps=FIXED["steps"]):
    """Literal: G ← α P G + (1-α) U with P = D^-½ A D^-½, lonely nodes kept."""
    degree = adjacency.sum(1)
    root = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1e-300)), 0)
    p = root[:, None] * adjacency * root[None, :] + np.diag((degree == 0).astype(float))
    g = u = u.detach().numpy()
    for _ in range(steps):
        g = alpha * p @ g + (1 - alpha) * u
    return torch.from_numpy(g)


def one(n=16):
    bag = woven_bag(n, dtype=torch.float64)
    return BagBatch.pack([bag]), bag.graph.dense().numpy()


def same(a, b):
    torch.testing.assert_close(a.logits, b.logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(a.scores, b.scores, rtol=1e-9, atol=1e-9)


def test_every_model_of_the_papers_table_takes_sm():
    assert {"clam", "dsmil", "dtfd_mil", "trans_mil", "patch_gcn", "deep_graph_surv"} <= set(TAKES_SM)


@pytest.mark.parametrize("name", TAKES_SM)
@pytest.mark.parametrize("off", [{"alpha": 0.0}, {"alpha": 0}, {"steps": 0}])
@pytest.mark.parametrize("mode", [True, False])
def test_alpha_zero_is_the_plain_model_bit_for_bit(name, off, mode):
    batch = BagBatch.pack([grid_bag(3, dtype=torch.float64), woven_bag(16, dtype=torch.float64)])
    outputs = []
    for options in ({}, {"sm": off}):
        model = build(name, **options).train(mode)
        torch.manual_seed(3)
        outputs.append((model(batch), model.state_dict()))
    (a, weights), (b, others) = outputs
    assert weights.keys() == others.keys()
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.scores, b.scores)
    assert all(torch.equal(a.losses[k], b.losses[k]) for k in a.losses | b.losses)


@pytest.mark.parametrize("name", TAKES_SM)
def test_one_parameter_is_added_and_the_weights_of_a_seed_stay(name):
    plain, smooth = build(name), build(name, sm={"spectral_norm": False})
    ours, theirs = dict(smooth.named_parameters()), dict(plain.named_parameters())
    assert {k: v for k, v in ours.items() if k not in theirs}.keys() == {"sm.sm.logit"}
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


@pytest.mark.parametrize("name", TAKES_SM)
def test_without_edges_smoothing_changes_nothing(name):
    bag = grid_bag(30, dtype=torch.float64)
    lonely = BagBatch.pack([type(bag)(bag.id, bag.x, bag.coords, bag.frame, Graph.from_edges(np.zeros((2, 0)), n=30))])
    smooth, plain = pair(name, "early")
    same(smooth(lonely), plain(lonely))


@pytest.mark.parametrize("name", TAKES_SM)
def test_smoothing_reaches_the_bag_and_alpha_learns(name):
    batch = BagBatch.pack([grid_bag(30, dtype=torch.float64), grid_bag(40, seed=1, y=0, dtype=torch.float64)])
    weak, strong = (build(name, sm={**FIXED, "alpha": a}).eval()(batch) for a in (0.1, 0.9))
    assert (weak.logits - strong.logits).abs().max() > 1e-6
    model = build(name, sm={}).train()
    out = model(batch)
    (out.logits.sum() + sum(out.losses.values())).backward()
    assert model.sm.sm.logit.grad.abs() > 0


def test_sm_clam_smooths_the_embedded_instances():
    smooth, plain = pair("clam", "early")
    batch, adjacency = one()
    h = dense_sm(plain.embed(batch.x).relu(), adjacency)
    scores = plain.attention(h)
    out = smooth(batch)
    torch.testing.assert_close(out.scores, scores)
    torch.testing.assert_close(out.logits, plain.head(scores.softmax(0).T @ h))


def test_sm_clam_late_smooths_its_attention_logits():
    smooth, plain = pair("clam", "late")
    batch, adjacency = one()
    out = smooth(batch)
    scores = dense_sm(plain(batch).scores, adjacency)
    torch.testing.assert_close(out.scores, scores)
    torch.testing.assert_close(out.logits, plain.head(scores.softmax(0).T @ plain.embed(batch.x).relu()))


def test_sm_dsmil_is_dsmil_on_smoothed_features():
    smooth, plain = pair("dsmil", "early")
    batch, adjacency = one()
    given = BagBatch(batch.ids, dense_sm(batch.x, adjacency), batch.offsets, batch.frames)
    same(smooth(batch), plain(given))


def test_sm_dsmil_late_smooths_the_instance_logits_that_name_the_critical_instance():
    smooth, plain = pair("dsmil", "late", score="instance", average=False)
    batch, adjacency = one()
    found = dense_sm(plain(batch).scores, adjacency)
    out = smooth(batch)
    torch.testing.assert_close(out.scores, found)
    q = plain.query(batch.x)
    weights = (q @ q[found[:, 0].argmax()] / q.shape[1] ** 0.5).softmax(0)
    torch.testing.assert_close(out.logits, plain.head((weights @ batch.x)[None]))


def by_hand_dtfd(plain, h, adjacency, cut):
    """Tier 1 in every pseudo-bag of embedded rows h, smoothed over the edges inside it, then tier 2 (afs)."""
    pooled = []
    for a, b in zip(cut.offsets[:-1].tolist(), cut.offsets[1:].tolist(), strict=True):
        rows = cut.order[a:b]
        inside = dense_sm(h[rows], adjacency[np.ix_(rows, rows)])
        pooled.append(plain.attention(inside).softmax(0).T @ inside)
    z = torch.cat(pooled)
    return plain.tier2(z, torch.tensor([0, len(z)]))


@pytest.mark.parametrize("pseudo_bags", [1, 3])
def test_sm_dtfd_smooths_inside_each_pseudo_bag_with_its_own_degrees(pseudo_bags):
    smooth, plain = pair("dtfd_mil", "early", pseudo_bags=pseudo_bags)
    batch, adjacency = one()
    h = plain.embed(batch.x)
    out = smooth(batch)
    cut = _cut_bags(_fixed_orders(16, 1), pseudo_bags)
    torch.testing.assert_close(out.logits, by_hand_dtfd(plain, h, adjacency, cut))
    whole = dense_sm(h, adjacency)
    expected = 16 * plain.attention(whole).softmax(0) * linear(whole, plain.classifier.weight)
    torch.testing.assert_close(out.scores, expected)


def test_sm_dtfd_with_one_pseudo_bag_equals_smoothing_the_whole_bag():
    batch, _ = one()
    options = {"pseudo_bags": 1}
    same(pair("dtfd_mil", "early", **options)[0](batch), pair("dtfd_mil", "bag", **options)[0](batch))


def test_sm_dtfd_trains_on_the_cut_it_has_drawn():
    smooth, plain = pair("dtfd_mil", "early")
    batch, adjacency = one()
    torch.manual_seed(5)
    out = smooth.train()(batch)
    torch.manual_seed(5)
    cut = _cut_bags([torch.randperm(16)], 4)
    torch.testing.assert_close(out.logits, by_hand_dtfd(plain, plain.embed(batch.x), adjacency, cut))


@pytest.mark.parametrize(("name", "where"), [(n, w) for n in ("clam", "dsmil", "dtfd_mil") for w in ("early", "late")])
def test_layers_that_read_smoothed_rows_have_norm_one(name, where):
    model = build(name, sm={"where": where}).eval()
    early = {
        "clam": ["attention.project", "attention.gate", "instance_heads.0", "instance_heads.1"],
        "dsmil": ["instance", "query.0"],
        "dtfd_mil": ["attention.project", "attention.gate"],
    }[name]
    normed = [k for k, m in model.named_modules() if hasattr(m, "parametrizations")]
    assert sorted(normed) == sorted(early if where == "early" else [])
    for layer in normed:
        weight = model.get_submodule(layer).weight
        assert float(torch.linalg.matrix_norm(weight.detach(), 2)) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("sm", "message"),
    [
        ({"were": "early"}, "clam: sm: unknown option 'were'; did you mean where"),
        ({"where": "mid"}, "sm.where: unknown value 'mid'"),
        ({"alpha": 1.0}, r"alpha must lie in \[0, 1\)"),
        ("early", "expected options such as"),
        ({"steps": -1}, "steps must be a whole number"),
    ],
)
def test_wrong_options_are_refused_by_name(sm, message):
    with pytest.raises(ConfigError, match=message):
        create_model("clam", 16, sm=sm)
