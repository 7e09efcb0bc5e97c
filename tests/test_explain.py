"""Maps of any model: each method by its definition, and the sums that integrated gradients and LRP must have."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.bags import chain_bag, grid_bag, reordered, without_edges
from torch import nn

import smmil
from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.graph import Graph
from smmil.models import Output, create_model, list_models
from smmil.predict import METHODS, explain, faithfulness, predict
from smmil.predict.removal import _blocks, _CaseCurves, _one_by_one

DIM = 6
TINY = {
    "abmil": {"dim": 8, "att_dim": 4},
    "ac_mil": {"dim": 8, "att_dim": 4, "branches": 3},
    "additive_mil": {"dim": 8, "att_dim": 4, "hidden": 6},
    "attri_mil": {"dim": 8, "att_dim": 4},
    "bayes_mil": {"dim": 8, "att_dim": 4},
    "camil": {"dim": 8, "heads": 2, "context_dim": 4, "att_dim": 4, "landmarks": 4},
    "clam": {"dim": 8},
    "deep_graph_surv": {"dim": 8, "att_dim": 4, "K": 3},
    "dsmil": {"query_dim": 4},
    "dtfd_mil": {"dim": 8, "att_dim": 4},
    "gtp": {"dim": 8, "clusters": 3, "heads": 2, "layers": 2},
    "iib_mil": {"dim": 8, "depth": 2, "hidden": 8, "queries": 2},
    "max_pool": {"dim": 8},
    "mean_pool": {"dim": 8},
    "patch_gcn": {"dim": 4},
    "prob_sm_ap": {"dim": 8, "att_dim": 4},
    "prob_smooth": {"dim": 8, "att_dim": 4},
    "set_mil": {"size": 4, "depth": 2, "level_dim": 4, "heads": 2, "reduced": 8},
    "sm_ap": {"dim": 8, "att_dim": 4},
    "sm_gcn": {"dim": 4, "att_dim": 4},
    "sm_instance": {"dim": 8},
    "sm_tap": {"dim": 8, "att_dim": 4, "trans_dim": 4, "heads": 2},
    "smmile": {"dim": 8, "att_dim": 4},
    "trans_mil": {"dim": 8, "heads": 2, "landmarks": 4},
    "transformer_abmil": {"dim": 8, "att_dim": 4, "trans_dim": 4, "heads": 2},
}
every_model = pytest.mark.parametrize("name", list_models())
# Rows have a place in a sequence (see the exam of every model).
ORDERED = ("dtfd_mil", "trans_mil", "camil")
# Products of attentions (set_mil) and logarithms of sums (smmile, sm_instance but for its mean) are not shared out.
CONSERVED = [name for name in list_models() if name not in ("set_mil", "sm_instance", "smmile")]


def build(name, n_classes=1, dtype=torch.float64, **options):
    """A small model with biases that are not zero, and weights large enough for logits that matter."""
    torch.manual_seed(1)
    model = create_model(name, DIM, n_classes, **TINY.get(name, {}), **options).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 0.1))
    return model


def grid(n, seed=0, dtype=torch.float64):
    bag = grid_bag(n, dim=DIM, seed=seed, dtype=dtype)
    return replace(bag, x=bag.x + 0.5)


def logit(model, bag):
    with torch.no_grad():
        return model.eval()(BagBatch.pack([bag]).without_labels()).logits[0].double().numpy()


def kept(bag, rows):
    """These rows of a bag, with the edges among them found one by one."""
    rows = list(rows)
    pairs = [(i, j, float(w)) for (i, j), w in zip(bag.graph.edges().T.tolist(), bag.graph.weight, strict=True)]
    inside = [(rows.index(i), rows.index(j), w) for i, j, w in pairs if i in rows and j in rows]
    index = np.array([p[:2] for p in inside], dtype=int).reshape(-1, 2).T
    graph = Graph.from_edges(index, [p[2] for p in inside], len(rows))
    return Bag(bag.id, bag.x[rows], bag.coords[rows], bag.frame, graph)


class LinearMean(nn.Module):
    """f = mean of w·x + c."""

    def __init__(self, n_classes=1):
        super().__init__()
        self.head = nn.Linear(DIM, n_classes).double()
        self.seen = []

    def forward(self, batch):
        self.seen.append((batch.y, batch.y_inst, self.training))
        s = self.head(batch.x)
        return Output(torch.stack([rows.mean(0) for rows in batch.split(s)]), s)


def test_every_method_has_its_closed_form_on_a_linear_model():
    model, bag = LinearMean(2), grid(9)
    w, c = model.head.weight.detach().numpy(), model.head.bias.detach().numpy()
    x, n = bag.x.numpy(), bag.n
    s = x @ w.T + c
    maps = {method: explain(model, [bag], method)[0].scores for method in METHODS}
    maps["mean"] = explain(model, [bag], "integrated-gradients", baseline="mean")[0].scores
    expected = {
        "attention": s,
        "single": s,
        "drop": (s - s.mean(0)) / (n - 1),
        "gradient": x @ w.T / n,
        "integrated-gradients": x @ w.T / n,
        "mean": (x - x.mean(0)) @ w.T / n,
        "lrp": s / n,
    }
    for method, values in expected.items():
        np.testing.assert_allclose(maps[method], values, rtol=1e-5, atol=1e-6, err_msg=method)


@every_model
@pytest.mark.parametrize("n_classes", [1, 3])
def test_single_is_the_logit_of_the_bag_with_this_instance_alone(name, n_classes):
    model, bag = build(name, n_classes), grid(7)
    found = explain(model, [bag], "single")[0].scores
    assert found.shape == (7, n_classes)
    np.testing.assert_allclose(found, [logit(model, kept(bag, [i])) for i in range(7)], rtol=1e-5, atol=1e-6)


@every_model
def test_drop_is_what_the_logit_loses_without_the_instance(name):
    model, bag = build(name), grid(9)
    rest = [logit(model, kept(bag, [j for j in range(9) if j != i])) for i in range(9)]
    found = explain(model, [bag], "drop")[0].scores
    np.testing.assert_allclose(found, logit(model, bag) - np.array(rest), rtol=1e-4, atol=1e-6)
    blocks = explain(model, [replace(bag, coords=None, frame=None)], "drop", block=4)[0].scores
    for rows in (range(4), range(4, 8), [8]):
        lost = logit(model, replace(bag, coords=None, frame=None)) - logit(
            model, replace(kept(bag, [j for j in range(9) if j not in rows]), coords=None, frame=None)
        )
        np.testing.assert_allclose(blocks[list(rows)], np.tile(lost / len(rows), (len(rows), 1)), rtol=1e-4, atol=1e-6)


@every_model
def test_gradient_is_the_slope_in_the_size_of_an_instance(name):
    model, bag, h = build(name, 2), grid(8), 1e-5
    found = explain(model, [bag], "gradient")[0].scores
    for i in range(8):
        grown = torch.zeros(8, 1, dtype=torch.float64)
        grown[i] = h
        up, down = (logit(model, replace(bag, x=bag.x * (1 + sign * grown))) for sign in (1, -1))
        np.testing.assert_allclose(found[i], (up - down) / (2 * h), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "baseline"), [*((m, "zero") for m in list_models()), ("abmil", "mean"), ("gtp", "mean")]
)
def test_integrated_gradients_are_complete(name, baseline):
    model, bag = build(name), grid(5)
    start = bag.x * 0 if baseline == "zero" else bag.x.mean(0, keepdim=True).expand(5, DIM)
    found = explain(model, [bag], "integrated-gradients", baseline=baseline, steps=20_000)[0]
    change = logit(model, bag) - logit(model, replace(bag, x=start))
    assert abs(found.scores.astype(float).sum() - change) <= 1e-3 * abs(change)
    assert found.meta["completeness_gap"] <= 1e-3


def test_integrated_gradients_equal_a_plain_sum_of_many_gradients():
    for name in ("sm_ap", "transformer_abmil"):
        model, bag = build(name, 2), grid(4)
        total = torch.zeros(4, 2, dtype=torch.float64)
        times = np.linspace(0, 1, 201) ** 3  # dense where a LayerNorm of small features changes fast
        for left, right in pairwise(times):
            x = ((left + right) / 2 * bag.x).requires_grad_()
            logits = model.eval()(BagBatch.pack([replace(bag, x=x)])).logits
            for c in range(2):
                (slope,) = torch.autograd.grad(logits[0, c], x, retain_graph=True)
                total[:, c] += (right - left) * (slope * bag.x).sum(1)
        found = explain(model, [bag], "integrated-gradients")[0].scores
        assert np.abs(found - total.numpy()).max() <= 5e-3 * np.abs(total.numpy()).max()


def test_too_few_steps_are_told():
    model, bag = build("transformer_abmil"), grid(12)
    gaps = [explain(model, [bag], "integrated-gradients", steps=n)[0].meta["completeness_gap"] for n in (2, 300)]
    assert gaps[0] > 1e-2 > 1e-3 >= gaps[1]


@pytest.mark.parametrize("name", CONSERVED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lrp_shares_out_the_logit(name, dtype):
    model, bag = build(name, 2, dtype), grid(12, dtype=dtype)
    found, logits = explain(model, [bag], "lrp")[0].scores.astype(float).sum(0), logit(model, bag)
    assert np.abs(found - logits).max() <= 1e-4 * np.abs(logits).max()


def test_lrp_of_pooled_instances_is_their_share_of_the_pool():
    bag = grid(10)
    model = build("mean_pool", 2)
    np.testing.assert_allclose(
        explain(model, [bag], "lrp")[0].scores, predict(model, [bag])[0].scores / 10, rtol=1e-5, atol=1e-7
    )
    for name, options in {"abmil": {"gated": True}, "sm_ap": {"where": "early"}}.items():
        model = build(name, **options).eval()
        with torch.no_grad():
            h = model.embed(bag.x).relu()
            weights = model(BagBatch.pack([bag])).scores.softmax(0)
            if name == "sm_ap":
                p, alpha = bag.graph.normalized().dense(), model.pool.sm.alpha
                smooth = torch.eye(10, dtype=torch.float64)
                for _ in range(10):
                    smooth = alpha * p @ smooth + (1 - alpha) * torch.eye(10, dtype=torch.float64)
                weights = smooth.T @ weights
            expected = weights * (h @ model.head.weight.T) + model.head.bias / 10
        np.testing.assert_allclose(explain(model, [bag], "lrp")[0].scores, expected.numpy(), rtol=1e-5, atol=1e-7)


class Squares(LinearMean):
    def forward(self, batch):
        out = super().forward(batch)
        return Output(out.logits**2, out.scores)


class Cut(LinearMean):
    def forward(self, batch):
        return super().forward(replace(batch, x=batch.x.detach()))


def test_lrp_of_smooth_instance_logits_is_their_share_of_the_mean():
    model, bag = build("sm_instance", 2, pool="mean"), grid(12)
    found = explain(model, [bag], "lrp")[0].scores.astype(float).sum(0)
    np.testing.assert_allclose(found, logit(model, bag), rtol=1e-5)


def test_a_model_that_lrp_has_no_rule_for_is_refused_with_the_methods_that_work():
    for model, bag in ((build("set_mil"), grid(12)), (build("sm_instance"), grid(12)), (Squares(), grid(5))):
        with pytest.raises(ConfigError, match=r"lrp: no rule for a part of \w+: relevance sums to .* use integrated"):
            explain(model, [bag], "lrp")
        assert len(explain(model, [bag], "drop")) == 1


def test_a_model_without_gradients_is_refused_with_the_methods_that_work():
    with torch.no_grad():
        model = Cut().requires_grad_(False)
    with pytest.raises(ConfigError, match="passes no gradient on to its features; use the method attention, single"):
        explain(model, [grid(5)], "gradient")


@every_model
@pytest.mark.parametrize("method", list(METHODS))
def test_packed_bags_get_the_maps_of_single_bags(name, method):
    if method == "lrp" and name not in CONSERVED:
        pytest.skip("refused, as tested above")
    options = {"steps": 6} if method == "integrated-gradients" else {}
    model, bags = build(name), [grid(n, seed=n) for n in (4, 1, 5)]
    packed = explain(model, [BagBatch.pack(bags)], method, **options)
    for bag, one in zip(bags, packed, strict=True):
        alone = explain(model, [bag], method, **options)[0]
        np.testing.assert_allclose(one.scores, alone.scores, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one.probs, predict(model, [bag])[0].probs, rtol=1e-9)
        assert (one.id, one.y, one.n) == (bag.id, bag.y, bag.n)
        assert np.array_equal(one.edges, alone.edges)


@pytest.mark.parametrize("name", [m for m in list_models() if m not in ORDERED])
def test_the_order_of_instances_does_not_matter(name):
    model, bag = build(name), grid(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    for method in METHODS:
        if method == "lrp" and name not in CONSERVED:
            continue
        chosen = {"drop": [{"block": 1}, {"block": 3}], "integrated-gradients": [{"steps": 6}]}
        for options in chosen.get(method, [{}]):
            a, b = (explain(model, [one], method, **options)[0].scores for one in (bag, reordered(bag, order)))
            np.testing.assert_allclose(a[order.numpy()], b, rtol=1e-4, atol=1e-5, err_msg=method)


def test_labels_stay_away_and_the_model_is_as_it_was():
    model, bag = LinearMean().train(), grid(6)
    model.head.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones(1, DIM, dtype=torch.float64)
    for method in METHODS:
        explain(model, [bag], method)
    faithfulness(model, [bag], {"a": predict(model, [bag])})
    assert {(y, y_inst, training) for y, y_inst, training in model.seen} == {(None, None, False)}
    assert model.training
    assert model.head.weight.requires_grad
    assert not model.head.bias.requires_grad
    assert (model.head.weight.grad == 1).all()
    assert model.head.bias.grad is None


def test_gtp_keeps_its_own_scores():
    model, bag = build("gtp"), grid(6)
    before = predict(model, [bag])[0].scores
    explain(model, [bag], "single")
    assert np.array_equal(predict(model, [bag])[0].scores, before)
    assert np.array_equal(explain(model, [bag], "attention")[0].scores, before)


@every_model
def test_half_precision_chains_and_lonely_instances_are_explained(name):
    model = build(name, dtype=torch.float32)
    bags = [chain_bag(5, dim=DIM), without_edges(grid_bag(4, dim=DIM)), grid_bag(1, dim=DIM)]
    for bag in bags:
        half = replace(bag, x=bag.x.half())
        for method in METHODS:
            if method == "lrp" and name not in CONSERVED:
                continue
            options = {"steps": 3} if method == "integrated-gradients" else {}
            assert np.isfinite(explain(model, [half], method, **options)[0].scores).all()


def test_the_map_says_what_it_is():
    one = explain(build("abmil"), [grid(5)], "drop", block=2, meta={"seed": 4})[0]
    assert one.meta == {
        "score_kind": "logit lost without the instance",
        "explained": {"method": "drop", "block": 2},
        "seed": 4,
    }
    assert explain(build("max_pool"), [grid(5)], "attention")[0].meta["score_kind"] == "instance logit"
    assert smmil.explain is explain


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "gradent"}, "method: unknown value 'gradent'; did you mean gradient"),
        ({"method": "single", "block": 4}, "block: is for the method drop, not single"),
        ({"method": "drop", "block": 0}, "block: must be a whole number of at least 1, got 0"),
        ({"method": "integrated-gradients", "baseline": "noise"}, "baseline: unknown value 'noise'"),
        ({"method": "integrated-gradients", "steps": 1}, "steps: must be a whole number of at least 2"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(ConfigError, match=words):
        explain(LinearMean(), [grid(4)], **options)


@pytest.mark.parametrize(("n", "size"), [(1, 1), (7, 3), (64, 8), (57, 10), (300, 7)])
def test_blocks_are_neighbours_share_the_bag_and_are_full_but_one(n, size):
    bag = grid(n)
    blocks = _blocks(BagBatch.pack([bag]), size)
    assert sorted(torch.cat(blocks).tolist()) == list(range(n))
    assert sorted(map(len, blocks))[1:] == [size] * (len(blocks) - 1)
    assert len(blocks) == -(-n // size)
    if (n, size) == (64, 8):
        apart = [np.ptp(bag.coords[rows].numpy(), axis=0).max() for rows in blocks]
        assert max(apart) < np.ptp(bag.coords.numpy(), axis=0).max() * 0.6


class Counted(LinearMean):
    """Counts calls, bags and rows."""

    def forward(self, batch):
        self.calls = [*getattr(self, "calls", []), (len(batch), len(batch.x))]
        return super().forward(batch)


def test_the_work_for_a_large_bag_is_bounded():
    bag = Bag("large", torch.randn(3000, DIM, dtype=torch.float64), torch.arange(3000)[:, None])
    model = Counted()
    explain(model, [bag], "drop")
    assert sum(bags for bags, _ in model.calls) == 2 + 250  # the prediction, the whole bag, and blocks of 12
    assert max(rows for _, rows in model.calls) <= 16_384
    model = Counted()
    explain(model, [bag], "single")
    assert len(model.calls) == 1 + 12
    model = Counted()
    _CaseCurves(model, BagBatch.pack([bag]), "cpu", seed=0, repeats=1).of(np.zeros((3000, 1)))
    assert sum(bags for bags, _ in model.calls) <= 1 + 3 * 101


def test_bags_of_a_batch_come_apart_as_they_were():
    bags = [grid(5), grid(1), chain_bag(4, dim=DIM)]
    for bag, one in zip(bags[:2], _one_by_one(BagBatch.pack(bags[:2])), strict=True):
        assert one.ids == (bag.id,)
        assert torch.equal(one.x, bag.x)
        assert torch.equal(one.coords, bag.coords)
        assert one.graph.same_as(bag.graph)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_curves_of_a_linear_model_are_the_means_of_what_is_left(n):
    model, bag = LinearMean().eval(), grid(n)
    s = model.head(bag.x).detach().numpy()[:, 0]
    scores = np.random.default_rng(5).normal(size=(n, 1))
    found = _CaseCurves(model, BagBatch.pack([bag]), "cpu", seed=0, repeats=2).of(scores)
    ranked, sigmoid = s[np.argsort(-scores[:, 0])], lambda v: 1 / (1 + np.exp(-v))
    assert found.removed.tolist() == [k / n for k in range(n + 1)]
    empty = float(model.head.bias.detach())  # one instance of zero features
    deletion = [sigmoid(ranked[k:].mean() if k < n else empty) for k in range(n + 1)]
    insertion = [sigmoid(ranked[:k].mean() if k else empty) for k in range(n + 1)]
    np.testing.assert_allclose(found.deletion, deletion, rtol=1e-6)
    np.testing.assert_allclose(found.insertion, insertion, rtol=1e-6)
    np.testing.assert_allclose(found.random[[0, -1]], [sigmoid(empty), sigmoid(s.mean())], rtol=1e-6)
    area = sum((a + b) / 2 / n for a, b in pairwise(deletion))
    assert found.areas["deletion"] == pytest.approx(area, rel=1e-6)
    assert found.areas["deletion_gain"] == pytest.approx(found.areas["random"] - area, rel=1e-6)


@pytest.mark.parametrize("name", ["sm_ap", "trans_mil", "gtp"])
def test_curves_are_those_of_the_parts_with_their_edges_in_their_order(name):
    model, bag = build(name, 2), grid(7)
    scores = np.random.default_rng(5).normal(size=(7, 2))
    chosen = int(logit(model, bag).argmax())
    found = _CaseCurves(model.eval(), BagBatch.pack([bag]), "cpu", seed=0, repeats=1).of(scores)
    ranked = np.argsort(-scores[:, chosen]).tolist()
    for k in range(1, 7):
        for curve, rows in ((found.deletion, ranked[k:]), (found.insertion, ranked[:k])):
            powers = np.exp(logit(model, kept(bag, sorted(rows))))
            assert curve[k] == pytest.approx(powers[chosen] / powers.sum(), rel=1e-6)


def test_a_true_map_gains_a_reversed_one_loses_and_a_flat_one_does_neither():
    model, bags = LinearMean().eval(), [grid(60, seed=k) for k in range(12)]
    true = predict(model, bags)
    maps = {
        "true": true,
        "reversed": [replace(p, scores=-p.scores) for p in true],
        "flat": [replace(p, scores=np.zeros_like(p.scores)) for p in true],
    }
    rows = {row["map"]: row for row in faithfulness(model, bags, maps, repeats=8)}
    assert rows["true"]["deletion_gain_low"] > 0
    assert rows["true"]["insertion_gain_low"] > 0
    assert rows["reversed"]["deletion_gain_high"] < 0
    assert abs(rows["flat"]["deletion_gain"]) < 0.3 * rows["true"]["deletion_gain"]
    assert rows["true"]["random"] == rows["reversed"]["random"]
    assert rows["true"]["cases"] == 12
    with pytest.raises(DataError, match="none of the bags is among the predictions of 'other'"):
        faithfulness(model, bags, {"other": [replace(true[0], id="x")]})
    small = replace(true[0], scores=np.zeros((3, 1)), coords=None, edges=None, y_inst=None)
    with pytest.raises(DataError, match="the map has 3 instances but the bag 60"):
        faithfulness(model, bags, {"a": [small]})


@pytest.mark.parametrize("name", ["abmil", "sm_ap"])
def test_a_planted_instance_is_first_in_every_map_of_a_trained_model(name):
    g = torch.Generator().manual_seed(0)
    kinds, lesion = torch.randn(5, DIM, generator=g), torch.randn(DIM, generator=g) * 3
    bags = []
    for i in range(8):
        bag = grid_bag(20 + i, dim=DIM, seed=i, y=i % 2)
        x = kinds[torch.arange(bag.n) % 5].clone()
        if bag.y:
            x[i + 3] = lesion
        bags.append(replace(bag, x=x, y_inst=None))
    torch.manual_seed(0)
    model, batch = create_model(name, DIM, dim=16), BagBatch.pack(bags)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        out = model.train()(batch)
        loss = nn.functional.binary_cross_entropy_with_logits(out.logits[:, 0], batch.y.float()) + sum(
            out.losses.values()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for method in METHODS:
        options = {"steps": 20} if method == "integrated-gradients" else {}
        for i, one in zip(range(1, 8, 2), explain(model, bags[1::2], method, **options), strict=True):
            assert int(one.scores[:, 0].argmax()) == i + 3, (method, i)
