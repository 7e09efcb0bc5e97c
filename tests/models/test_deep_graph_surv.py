"""DeepGraphSurv and its GIN stand-in against slow references written from their equations, and what they imply."""

from dataclasses import replace

import pytest
import torch
from support.bags import chain_bag, grid_bag, mixed_bags, reordered, without_edges, woven_bag
from torch.nn.functional import dropout

from smmil.bag import Bag, BagBatch
from smmil.errors import ConfigError, DataError
from smmil.graph import Graph
from smmil.models import create_model

DOUBLE = torch.float64


def shaken(**options):
    """A small model with every weight moved off its starting value."""
    torch.manual_seed(0)
    model = create_model("deep_graph_surv", 16, **options).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


BAGS = mixed_bags(DOUBLE)


def affine(p, x, name):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def scaled_laplacian(graph, isolated):
    """2 L / 2 - I, entry by entry."""
    a, n = graph.dense(), graph.n
    degree = [sum(a[i].tolist()) for i in range(n)]
    result = torch.zeros(n, n, dtype=DOUBLE)
    for i in range(n):
        for j in range(n):
            if a[i, j] > 0:
                result[i, j] = -a[i, j] / (degree[i] * degree[j]) ** 0.5
        own = 1.0 if degree[i] > 0 or isolated == "shrink" else 0.0
        result[i, i] = own - 1
    return result


def filtered(p, name, x, laplacian):
    """Σ_k T_k x Θ_k + bias, with T_k as dense matrices."""
    weight = p[f"{name}.weight"]
    t = [torch.eye(len(x), dtype=DOUBLE), laplacian]
    while len(t) < len(weight):
        t.append(2 * laplacian @ t[-1] - t[-2])
    return sum(m @ x @ w for m, w in zip(t, weight, strict=False)) + p.get(f"{name}.bias", 0)


def literal_cheb(model, bag, isolated="keep"):
    p = dict(model.named_parameters())
    laplacian = scaled_laplacian(bag.graph, isolated)
    r = filtered(p, "net.represent", bag.x, laplacian).clamp_min(0)
    scores = affine(p, filtered(p, "net.attend", bag.x, laplacian).clamp_min(0), "net.score")
    return affine(p, (scores.softmax(0) * r).sum(0), "head"), scores


def literal_gin(model, bag, drop=0.0):
    p, x = dict(model.named_parameters()), bag.x
    for layer in range(3):
        s = torch.stack([x[i] + sum(x[j] for j in row.nonzero()[:, 0]) for i, row in enumerate(bag.graph.dense())])
        hidden = affine(p, s, f"net.convs.{layer}.first").clamp_min(0)
        x = affine(p, hidden, f"net.convs.{layer}.second").clamp_min(0)
    a = dropout(affine(p, x, "net.attention.project").tanh(), drop)
    b = dropout(affine(p, x, "net.attention.gate").sigmoid(), drop)
    scores = affine(p, a * b, "net.attention.score")
    z = affine(p, (scores.softmax(0) * x).sum(0), "bag.0").clamp_min(0)
    return affine(p, z, "head"), scores


CHEB = [{}, {"K": 1}, {"K": 2}, {"K": 7}, {"conv_bias": True}, {"dim": 5, "att_dim": 3}, {"n_classes": 3}]
CHEB += [{"isolated": "shrink"}]
GIN = [{}, {"dim": 5}, {"dim": 5, "att_dim": 3}, {"n_classes": 3}]


@pytest.mark.parametrize("options", CHEB)
@pytest.mark.parametrize("mode", [True, False])
def test_the_chebyshev_network_is_its_equations(options, mode):
    model = shaken(**options).train(mode)
    for bag in BAGS:
        out = model(BagBatch.pack([bag]))
        logits, scores = literal_cheb(model, bag, options.get("isolated", "keep"))
        assert torch.allclose(out.logits[0], logits, atol=1e-9), bag.id
        assert torch.allclose(out.scores, scores, atol=1e-9), bag.id
        assert out.losses == {}


@pytest.mark.parametrize("options", GIN)
def test_the_gin_network_is_its_equations(options):
    model = shaken(variant="gin", **{"dim": 12, **options}).eval()
    for bag in BAGS:
        out = model(BagBatch.pack([bag]))
        logits, scores = literal_gin(model, bag)
        assert torch.allclose(out.logits[0], logits, atol=1e-9, rtol=1e-10), bag.id
        assert torch.allclose(out.scores, scores, atol=1e-9, rtol=1e-10), bag.id


@pytest.mark.parametrize(("given", "rate"), [({}, 0.25), ({"dropout": 0.6}, 0.6)])
def test_dropout_falls_on_both_gates(given, rate):
    model, bag = shaken(variant="gin", dim=12, **given).train(), BAGS[3]
    torch.manual_seed(7)
    out = model(BagBatch.pack([bag]))
    torch.manual_seed(7)
    logits, scores = literal_gin(model, bag, rate)
    assert torch.allclose(out.logits[0], logits, atol=1e-9)
    assert torch.allclose(out.scores, scores, atol=1e-9)
    assert out.losses == {}


@pytest.mark.parametrize(("variant", "truth"), [("cheb", literal_cheb), ("gin", literal_gin)])
def test_packed_bags_keep_to_themselves(variant, truth):
    model, bags = shaken(variant=variant, dim=12).eval(), [b for b in BAGS if b.coords.shape[1] == 2]
    out = model(BagBatch.pack(bags))
    wanted = [truth(model, bag) for bag in bags]
    assert torch.allclose(out.logits, torch.stack([logits for logits, _ in wanted]), atol=1e-9)
    assert torch.allclose(out.scores, torch.cat([scores for _, scores in wanted]), atol=1e-9)


@pytest.mark.parametrize(
    ("count", "classes", "options"),
    [
        (1_639_042, 1, {}),
        (1_639_682, 1, {"conv_bias": True}),
        (658_435, 2, {"variant": "gin"}),
    ],
)
def test_the_number_of_parameters_is_the_published_one(count, classes, options):
    model = create_model("deep_graph_surv", 512, classes, **options)
    assert sum(p.numel() for p in model.parameters()) == count


def outputs(model, bag):
    out = model(BagBatch.pack([bag]))
    return out.logits, out.scores


def test_one_term_sees_no_graph():
    model, bag = shaken(K=1).eval(), grid_bag(20, dtype=DOUBLE)
    for a, b in zip(outputs(model, bag), outputs(model, without_edges(bag)), strict=True):
        assert torch.equal(a, b)


def reach(model):
    """How far along a chain a changed slice is noticed, if nothing beyond notices it."""
    bag = chain_bag(12, dtype=DOUBLE)
    changed = replace(bag, x=bag.x.index_fill(0, torch.tensor([0]), 1.0))
    moved = ((outputs(model, bag)[1] - outputs(model, changed)[1]).abs()[:, 0] > 1e-12).tolist()
    assert moved == sorted(moved, reverse=True)
    return sum(moved) - 1


def test_an_instance_sees_one_step_less_than_there_are_terms():
    assert [reach(shaken(K=k).eval()) for k in (1, 2, 5)] == [0, 1, 4]


def test_the_gin_network_sees_three_steps():
    assert reach(shaken(variant="gin", dim=12).eval()) == 3


@pytest.mark.parametrize("variant", ["cheb", "gin"])
def test_the_order_of_instances_does_not_matter(variant):
    model, bag = shaken(variant=variant).eval(), grid_bag(80, dtype=DOUBLE)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    (logits, scores), (same, moved) = (outputs(model, b) for b in (bag, reordered(bag, order)))
    assert torch.allclose(logits, same, atol=1e-9)
    assert torch.allclose(scores[order], moved, atol=1e-9)


@pytest.mark.parametrize("variant", ["cheb", "gin"])
def test_attention_sums_to_one(variant):
    """Many copies of one lonely instance are that instance."""
    model, bag = shaken(variant=variant).eval(), grid_bag(1, dtype=DOUBLE)
    copies = without_edges(Bag("copies", bag.x.repeat(9, 1)))
    assert torch.allclose(outputs(model, copies)[0], outputs(model, bag)[0], atol=1e-10)


def test_edge_weights_count_in_the_laplacian_only():
    bag = woven_bag(16, dtype=DOUBLE)
    plain = replace(bag, graph=Graph(bag.graph.indptr, bag.graph.indices, torch.ones_like(bag.graph.weight)))
    for variant, counts in (("cheb", True), ("gin", False)):
        a, b = (outputs(shaken(variant=variant).eval(), one)[0] for one in (bag, plain))
        assert torch.equal(a, b) != counts


def test_a_normalised_graph_serves_the_chebyshev_network():
    model, bag = shaken().eval(), woven_bag(16, dtype=DOUBLE)
    ready = replace(bag, graph=bag.graph.normalized())
    assert torch.equal(outputs(model, bag)[0], outputs(model, ready)[0])
    with pytest.raises(DataError, match="as built"):
        outputs(shaken(variant="gin"), ready)


def test_options_of_the_other_variant_are_refused():
    for wrong in ({"K": 3}, {"conv_bias": True}, {"isolated": "shrink"}):
        with pytest.raises(ConfigError, match=f"'{next(iter(wrong))}' has no meaning with variant='gin'"):
            create_model("deep_graph_surv", 16, variant="gin", **wrong)
    with pytest.raises(ConfigError, match="'dropout' has no meaning with variant='cheb'"):
        create_model("deep_graph_surv", 16, dropout=0.1)
    with pytest.raises(ConfigError, match="did you mean cheb"):
        create_model("deep_graph_surv", 16, variant="chebb")
    with pytest.raises(ConfigError, match="isolated"):
        create_model("deep_graph_surv", 16, isolated="drop")
    with pytest.raises(DataError, match="'graph'"):
        outputs(shaken(), replace(BAGS[3], graph=None))


@pytest.mark.parametrize("variant", ["cheb", "gin"])
def test_gradients_are_finite_also_under_autocast(variant):
    torch.manual_seed(0)
    model, batch = create_model("deep_graph_surv", 16, variant=variant).eval(), BagBatch.pack([grid_bag(40)])
    plain = model(batch).logits
    for on in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            logits = model(batch).logits
        logits.sum().backward()
        assert torch.allclose(plain, logits.float(), atol=0.1)
        assert all(p.grad.isfinite().all() for p in model.parameters())
